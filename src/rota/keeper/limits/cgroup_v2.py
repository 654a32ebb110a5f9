"""Version 2: one tree of groups for all controllers, of which processes are in the leaves only."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from rota.keeper.limits.cgroups import PERIOD_US, Group, Groups, claim, counter, entries, numbers, write
from rota.keeper.limits.words import CPU, MEMORY, NO_LIMITS, PIDS, Limits
from rota.keeper.rules import Key

UNIFIED = "unified"
REST = "rota-rest"  # the leaf for whoever was in the group that the keeper was started in
OWN = "own"  # of the keeper itself, and of work without limits, which begins where it was made; in leaves
CROWD = 32  # so many processes of such work beside the keeper, and it goes on to the next leaf
WEIGHT, WEIGHT_MOST = 100, 10_000  # of one core, and the kernel's bound
EMPTY_SECONDS = 1.0
STILL_SECONDS = 2.0  # at most, for all to come to rest: some may wait for a disk
_FIELDS = {MEMORY: "memory_bytes", PIDS: "pids", CPU: "cpu_milli"}


class GroupV2(Group):
    def kill(self) -> None:
        if self.is_empty():
            return
        try:
            write(f"{self.path}/cgroup.kill", "1")
        except OSError:  # a kernel before 5.14, or the group is gone
            self._kill_frozen()

    def _kill_frozen(self) -> None:
        """Nobody forks away meanwhile. Who is frozen here dies all the same."""
        with contextlib.suppress(OSError):
            write(f"{self.path}/cgroup.freeze", "1")
        super().kill()
        with contextlib.suppress(OSError):
            write(f"{self.path}/cgroup.freeze", "0")

    def memory_peak_if_killed(self) -> int | None:
        if not counter(f"{self.path}/memory.events", "oom_kill"):
            return None
        return sum(numbers(f"{self.path}/memory.peak")) or self.limits.memory_bytes  # kernels before 5.19


class GroupsV2(Groups):
    """A process enters by itself, between its fork and its exec. Threads cannot go alone."""

    label = "cgroup-v2"
    can_hold_still = True

    def __init__(self, home: str, name: str) -> None:
        """`home`: a group that is ours to divide, or the root of the tree."""
        super().__init__()
        self._home = home
        self._parent = f"{home}/{name}"
        self._own = f"{self._parent}/{OWN}"
        self._leaf = 0
        self._lock_fd = claim(self._parent)
        try:
            if not is_root(home):
                _empty(home)
            _share_out(home)
            self._leave_behind()
            self.controllers = _share_out(self._parent)
        except OSError:
            self.close()
            raise
        if CPU in self.controllers:  # all the work together counts as a process on each core
            weight = str(min(WEIGHT_MOST, WEIGHT * (os.cpu_count() or 1)))
            for path in (self._parent, self._own):
                write(f"{path}/cpu.weight", weight)
            with contextlib.suppress(OSError):  # then leaves are equal to each other by their processes only
                write(f"{self._own}/cgroup.subtree_control", f"+{CPU}")

    def step_aside(self) -> None:
        """Where the keeper was one of many who never rest, it would hardly get to run."""
        if len(numbers(f"{self._own}/{self._leaf}/cgroup.procs")) > CROWD:
            with contextlib.suppress(OSError):
                self._leave_behind()

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Whoever forks all the time is in a crowd, as its children are: others are left alone."""
        self.step_aside()
        leaves = [leaf.path for leaf in entries(self._own) if leaf.name != str(self._leaf)]
        crowded = [path for path in leaves if len(numbers(f"{path}/cgroup.procs")) > CROWD]
        try:
            _freeze(crowded)
            yield
        finally:
            for path in crowded:
                with contextlib.suppress(OSError):
                    write(f"{path}/cgroup.freeze", "0")

    def _leave_behind(self) -> None:
        """Into a leaf of its own, with what is started from now on; earlier ones go when they are empty."""
        os.makedirs(f"{self._own}/{self._leaf + 1}", exist_ok=True)
        write(f"{self._own}/{self._leaf + 1}/cgroup.procs", str(os.getpid()))
        self._leaf += 1

    def bury(self) -> None:
        super().bury()
        for leaf in entries(self._own):
            if leaf.name != str(self._leaf):
                with contextlib.suppress(OSError):  # somebody is in it
                    os.rmdir(leaf.path)

    def limit_all(self, pids: int) -> None:
        if PIDS in self.controllers:
            write(f"{self._parent}/pids.max", str(pids))

    def make(self, key: Key, limits: Limits) -> Group | None:
        if not limits and (spare := self.take_spare()):
            if spare.limits != limits:
                self.revise(spare, limits)
            return spare
        paths = {UNIFIED: f"{self._parent}/{self.name(key, limits)}"}
        group = GroupV2(limits, paths, self.controllers, is_plain=not limits)
        os.mkdir(group.path)
        try:
            self._set(group.path, limits)
        except OSError:
            group.remove()
            raise
        return group

    def revise(self, group: Group, limits: Limits) -> None:
        """Less memory than is in use costs it its life, as the kernel has it."""
        group.limits, group.is_plain = limits, group.is_plain and not limits
        none = {MEMORY: "memory.max", PIDS: "pids.max", CPU: "cpu.max"}
        for controller, name in none.items():
            if controller in self.controllers and getattr(limits, _FIELDS[controller]) is None:
                with contextlib.suppress(OSError):
                    write(f"{group.path}/{name}", "max")
        with contextlib.suppress(OSError):
            self._set(group.path, limits)

    def trap(self, key: Key) -> Group | None:
        path = f"{self._parent}/trap-{'-'.join(map(str, key))}"
        os.makedirs(path, exist_ok=True)
        write(f"{path}/cgroup.freeze", "1")
        return GroupV2(NO_LIMITS, {UNIFIED: path})

    def close(self) -> None:
        self.bury()
        self.drop_spare()
        back = self._home if is_root(self._home) else f"{self._home}/{REST}"
        with contextlib.suppress(OSError):
            write(f"{back}/cgroup.procs", str(os.getpid()))
        for path in (f"{self._own}/{self._leaf}", self._own, self._parent):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        os.close(self._lock_fd)

    def _set(self, path: str, limits: Limits) -> None:
        if MEMORY in self.controllers and limits.memory_bytes is not None:
            write(f"{path}/memory.max", str(limits.memory_bytes))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with contextlib.suppress(OSError):  # where swap is not counted, or the kernel is old
                    write(f"{path}/{name}", value)
        if PIDS in self.controllers and limits.pids is not None:
            write(f"{path}/pids.max", str(limits.pids))
        if CPU in self.controllers:
            weight = limits.cpu_weight_milli * WEIGHT // 1000
            write(f"{path}/cpu.weight", str(max(1, min(WEIGHT_MOST, weight))))
            if limits.cpu_milli is not None:
                quota_us = max(1000, limits.cpu_milli * PERIOD_US // 1000)
                write(f"{path}/cpu.max", f"{quota_us} {PERIOD_US}")


def is_root(path: str) -> bool:
    """The root of the tree alone has no type, and may have processes beside groups."""
    return not os.path.exists(f"{path}/cgroup.type")


def words_of(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def _freeze(paths: Sequence[str]) -> None:
    """Each ends first what it is asking of the kernel, and holds no lock of it any more."""
    for path in paths:
        with contextlib.suppress(OSError):
            write(f"{path}/cgroup.freeze", "1")
    give_up_at = time.monotonic() + STILL_SECONDS
    while time.monotonic() < give_up_at and not all(
        counter(f"{path}/cgroup.events", "frozen") for path in paths
    ):
        time.sleep(0.005)


def _share_out(path: str) -> tuple[str, ...]:
    """Let the groups below have their own limits; which of the three kinds they can have."""
    for controller in (MEMORY, PIDS, CPU):
        with contextlib.suppress(OSError):  # not given to us, or not all processes of this kind may go there
            write(f"{path}/cgroup.subtree_control", f"+{controller}")
    shared = words_of(f"{path}/cgroup.subtree_control")
    return tuple(one for one in (MEMORY, PIDS, CPU) if one in shared)


def _empty(home: str) -> None:
    """Groups with limits may have no process beside them: whoever is there goes into a leaf."""
    os.makedirs(f"{home}/{REST}", exist_ok=True)
    give_up_at = time.monotonic() + EMPTY_SECONDS
    while (there := numbers(f"{home}/cgroup.procs")) and time.monotonic() < give_up_at:
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                write(f"{home}/{REST}/cgroup.procs", str(pid))
