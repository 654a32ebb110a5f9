"""Version 2: one tree of groups for all controllers, of which processes are in the leaves only."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from rota.keeper.limits.cgroups import (
    PERIOD_US,
    Cgroup,
    Cgroups,
    create_locked,
    read_counter,
    read_numbers,
    subdirectories,
    write_file,
)
from rota.keeper.limits.limits import CPU, MEMORY, NO_LIMITS, PIDS, AttemptLimits
from rota.keeper.resources.reservations import AttemptKey

UNIFIED = "unified"
OTHERS_LEAF = "rota-rest"  # the leaf for whoever was in the group that the keeper was started in
KEEPER_CGROUP = (
    "own"  # of the keeper itself, and of work without limits, which begins where it was made; in leaves
)
LEAF_PROCESSES_MAX = 32  # so many processes of such work beside the keeper, and it goes on to the next leaf
WEIGHT, WEIGHT_MAX = 100, 10_000  # of one core, and the kernel's bound
EMPTY_SECONDS = 1.0
FREEZE_SECONDS = 2.0  # at most, for all to come to rest: some may wait for a disk
_FIELDS = {MEMORY: "memory_bytes", PIDS: "pids", CPU: "cpu_milli"}


class CgroupV2(Cgroup):
    def kill(self) -> None:
        if self.is_empty():
            return
        try:
            write_file(f"{self.path}/cgroup.kill", "1")
        except OSError:  # a kernel before 5.14, or the group is gone
            self._kill_frozen()

    def _kill_frozen(self) -> None:
        """Nobody forks away meanwhile. Who is frozen here dies all the same."""
        with contextlib.suppress(OSError):
            write_file(f"{self.path}/cgroup.freeze", "1")
        super().kill()
        with contextlib.suppress(OSError):
            write_file(f"{self.path}/cgroup.freeze", "0")

    def oom_peak_bytes(self) -> int | None:
        if not read_counter(f"{self.path}/memory.events", "oom_kill"):
            return None
        return (
            sum(read_numbers(f"{self.path}/memory.peak")) or self.limits.memory_bytes
        )  # kernels before 5.19


class CgroupsV2(Cgroups):
    """A process enters by itself, between its fork and its exec. Threads cannot go alone."""

    label = "cgroup-v2"
    can_freeze = True

    def __init__(self, home: str, name: str) -> None:
        """`home`: a group that is ours to divide, or the root of the tree."""
        super().__init__()
        self._home = home
        self._parent = f"{home}/{name}"
        self._own = f"{self._parent}/{KEEPER_CGROUP}"
        self._leaf = 0
        self._lock_fd = create_locked(self._parent)
        try:
            if not is_root(home):
                _move_processes_out(home)
            _enable_controllers(home)
            self._move_to_new_leaf()
            self.controllers = _enable_controllers(self._parent)
        except OSError:
            self.close()
            raise
        if CPU in self.controllers:  # all the work together counts as a process on each core
            weight = str(min(WEIGHT_MAX, WEIGHT * (os.cpu_count() or 1)))
            for path in (self._parent, self._own):
                write_file(f"{path}/cpu.weight", weight)
            with contextlib.suppress(OSError):  # then leaves are equal to each other by their processes only
                write_file(f"{self._own}/cgroup.subtree_control", f"+{CPU}")

    def leave_shared_cgroup(self) -> None:
        """Where the keeper was one of many who never rest, it would hardly get to run."""
        if len(read_numbers(f"{self._own}/{self._leaf}/cgroup.procs")) > LEAF_PROCESSES_MAX:
            with contextlib.suppress(OSError):
                self._move_to_new_leaf()

    @contextlib.contextmanager
    def freeze_all(self) -> Iterator[None]:
        """Whoever forks all the time is in a crowd, as its children are: others are left alone."""
        self.leave_shared_cgroup()
        leaves = [leaf.path for leaf in subdirectories(self._own) if leaf.name != str(self._leaf)]
        crowded = [path for path in leaves if len(read_numbers(f"{path}/cgroup.procs")) > LEAF_PROCESSES_MAX]
        try:
            _freeze(crowded)
            yield
        finally:
            for path in crowded:
                with contextlib.suppress(OSError):
                    write_file(f"{path}/cgroup.freeze", "0")

    def _move_to_new_leaf(self) -> None:
        """Into a leaf of its own, with what is started from now on; earlier ones go when they are empty."""
        os.makedirs(f"{self._own}/{self._leaf + 1}", exist_ok=True)
        write_file(f"{self._own}/{self._leaf + 1}/cgroup.procs", str(os.getpid()))
        self._leaf += 1

    def remove_empty(self) -> None:
        super().remove_empty()
        for leaf in subdirectories(self._own):
            if leaf.name != str(self._leaf):
                with contextlib.suppress(OSError):  # somebody is in it
                    os.rmdir(leaf.path)

    def limit_all(self, pids: int) -> None:
        if PIDS in self.controllers:
            write_file(f"{self._parent}/pids.max", str(pids))

    def create(self, key: AttemptKey, limits: AttemptLimits) -> Cgroup | None:
        if not limits and (spare := self.pop_spare()):
            if spare.limits != limits:
                self.update_limits(spare, limits)
            return spare
        paths = {UNIFIED: f"{self._parent}/{self.name(key, limits)}"}
        group = CgroupV2(limits, paths, self.controllers, is_plain=not limits)
        os.mkdir(group.path)
        try:
            self._write_limits(group.path, limits)
        except OSError:
            group.remove()
            raise
        return group

    def update_limits(self, group: Cgroup, limits: AttemptLimits) -> None:
        """Less memory than is in use costs it its life, as the kernel has it."""
        group.limits, group.is_plain = limits, group.is_plain and not limits
        none = {MEMORY: "memory.max", PIDS: "pids.max", CPU: "cpu.max"}
        for controller, name in none.items():
            if controller in self.controllers and getattr(limits, _FIELDS[controller]) is None:
                with contextlib.suppress(OSError):
                    write_file(f"{group.path}/{name}", "max")
        with contextlib.suppress(OSError):
            self._write_limits(group.path, limits)

    def freeze_group(self, key: AttemptKey) -> Cgroup | None:
        path = f"{self._parent}/trap-{'-'.join(map(str, key))}"
        os.makedirs(path, exist_ok=True)
        write_file(f"{path}/cgroup.freeze", "1")
        return CgroupV2(NO_LIMITS, {UNIFIED: path})

    def close(self) -> None:
        self.remove_empty()
        self.drop_spare()
        back = self._home if is_root(self._home) else f"{self._home}/{OTHERS_LEAF}"
        with contextlib.suppress(OSError):
            write_file(f"{back}/cgroup.procs", str(os.getpid()))
        for path in (f"{self._own}/{self._leaf}", self._own, self._parent):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        os.close(self._lock_fd)

    def _write_limits(self, path: str, limits: AttemptLimits) -> None:
        if MEMORY in self.controllers and limits.memory_bytes is not None:
            write_file(f"{path}/memory.max", str(limits.memory_bytes))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with contextlib.suppress(OSError):  # where swap is not counted, or the kernel is old
                    write_file(f"{path}/{name}", value)
        if PIDS in self.controllers and limits.pids is not None:
            write_file(f"{path}/pids.max", str(limits.pids))
        if CPU in self.controllers:
            weight = limits.cpu_weight_milli * WEIGHT // 1000
            write_file(f"{path}/cpu.weight", str(max(1, min(WEIGHT_MAX, weight))))
            if limits.cpu_milli is not None:
                quota_us = max(1000, limits.cpu_milli * PERIOD_US // 1000)
                write_file(f"{path}/cpu.max", f"{quota_us} {PERIOD_US}")


def is_root(path: str) -> bool:
    """The root of the tree alone has no type, and may have processes beside groups."""
    return not os.path.exists(f"{path}/cgroup.type")


def read_words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def _freeze(paths: Sequence[str]) -> None:
    """Each ends first what it is asking of the kernel, and holds no lock of it any more."""
    for path in paths:
        with contextlib.suppress(OSError):
            write_file(f"{path}/cgroup.freeze", "1")
    give_up_at = time.monotonic() + FREEZE_SECONDS
    while time.monotonic() < give_up_at and not all(
        read_counter(f"{path}/cgroup.events", "frozen") for path in paths
    ):
        time.sleep(0.005)


def _enable_controllers(path: str) -> tuple[str, ...]:
    """Let the groups below have their own limits; which of the three kinds they can have."""
    for controller in (MEMORY, PIDS, CPU):
        with contextlib.suppress(OSError):  # not given to us, or not all processes of this kind may go there
            write_file(f"{path}/cgroup.subtree_control", f"+{controller}")
    shared = read_words(f"{path}/cgroup.subtree_control")
    return tuple(one for one in (MEMORY, PIDS, CPU) if one in shared)


def _move_processes_out(home: str) -> None:
    """Groups with limits may have no process beside them: whoever is there goes into a leaf."""
    os.makedirs(f"{home}/{OTHERS_LEAF}", exist_ok=True)
    give_up_at = time.monotonic() + EMPTY_SECONDS
    while (there := read_numbers(f"{home}/cgroup.procs")) and time.monotonic() < give_up_at:
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                write_file(f"{home}/{OTHERS_LEAF}/cgroup.procs", str(pid))
