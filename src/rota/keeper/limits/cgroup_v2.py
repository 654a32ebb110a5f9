"""Cgroups of version 2: one tree for all controllers, with processes in the leaves only."""

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
OTHERS_LEAF = "rota-rest"  # for other processes of the cgroup that the keeper was started in
KEEPER_CGROUP = "own"  # leaves with the keeper and attempts that have no cgroup of their own
LEAF_PROCESSES_MAX = 32  # processes beside the keeper in its leaf; with more it moves to a new one
WEIGHT, WEIGHT_MAX = 100, 10_000  # of one core, and the kernel's bound
EMPTY_SECONDS = 1.0
FREEZE_SECONDS = 2.0  # at most, until all are frozen: some may wait for a disk
_FIELDS = {MEMORY: "memory_bytes", PIDS: "pids", CPU: "cpu_milli"}


class CgroupV2(Cgroup):
    def kill(self) -> None:
        if self.is_empty():
            return
        try:
            write_file(f"{self.path}/cgroup.kill", "1")
        except OSError:  # a kernel before 5.14, or the cgroup was removed
            self._kill_frozen()

    def _kill_frozen(self) -> None:
        """Freeze, then kill, so that no member forks meanwhile. In version 2 frozen processes die as well."""
        with contextlib.suppress(OSError):
            write_file(f"{self.path}/cgroup.freeze", "1")
        super().kill()
        with contextlib.suppress(OSError):
            write_file(f"{self.path}/cgroup.freeze", "0")

    def oom_peak_bytes(self) -> int | None:
        if not read_counter(f"{self.path}/memory.events", "oom_kill"):
            return None
        # Kernels before 5.19 have no memory.peak.
        return sum(read_numbers(f"{self.path}/memory.peak")) or self.limits.memory_bytes


class CgroupsV2(Cgroups):
    """A process enters its cgroup by itself between fork and exec; single threads cannot be moved."""

    label = "cgroup-v2"
    can_freeze = True

    def __init__(self, home: str, name: str) -> None:
        """`home`: a delegated cgroup, or the root of the tree."""
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
        if CPU in self.controllers:  # all attempts together weigh as one process per core
            weight = str(min(WEIGHT_MAX, WEIGHT * (os.cpu_count() or 1)))
            for path in (self._parent, self._own):
                write_file(f"{path}/cpu.weight", weight)
            with contextlib.suppress(OSError):  # then the leaves share the CPU by their processes
                write_file(f"{self._own}/cgroup.subtree_control", f"+{CPU}")

    def leave_shared_cgroup(self) -> None:
        """Move the keeper out of a leaf with many processes, beside which it would hardly get CPU time."""
        if len(read_numbers(f"{self._own}/{self._leaf}/cgroup.procs")) > LEAF_PROCESSES_MAX:
            with contextlib.suppress(OSError):
                self._move_to_new_leaf()

    @contextlib.contextmanager
    def freeze_all(self) -> Iterator[None]:
        """Freeze leaves with many processes: a forking tree is in one of them. Other leaves go on."""
        self.leave_shared_cgroup()
        leaves = [leaf.path for leaf in subdirectories(self._own) if leaf.name != str(self._leaf)]
        large = [path for path in leaves if len(read_numbers(f"{path}/cgroup.procs")) > LEAF_PROCESSES_MAX]
        try:
            _freeze(large)
            yield
        finally:
            for path in large:
                with contextlib.suppress(OSError):
                    write_file(f"{path}/cgroup.freeze", "0")

    def _move_to_new_leaf(self) -> None:
        """Move the keeper, and what it spawns from now on, to a new leaf; empty leaves are removed later."""
        os.makedirs(f"{self._own}/{self._leaf + 1}", exist_ok=True)
        write_file(f"{self._own}/{self._leaf + 1}/cgroup.procs", str(os.getpid()))
        self._leaf += 1

    def remove_empty(self) -> None:
        super().remove_empty()
        for leaf in subdirectories(self._own):
            if leaf.name != str(self._leaf):
                with contextlib.suppress(OSError):  # it has processes
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
            # Before any process can enter: limits that are set later would not hold for what it did before.
            self._write_limits(group.path, limits)
        except OSError:
            group.remove()
            raise
        return group

    def update_limits(self, group: Cgroup, limits: AttemptLimits) -> None:
        """Update limits. If less memory is allowed than is used, the kernel kills the attempt."""
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
                with contextlib.suppress(OSError):  # swap is not accounted, or the kernel is old
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
    """Whether this is the root of the tree, which has no cgroup.type and may have processes itself."""
    return not os.path.exists(f"{path}/cgroup.type")


def read_words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def _freeze(paths: Sequence[str]) -> None:
    """Freeze and wait: a frozen process has left the kernel, and holds none of its locks."""
    for path in paths:
        with contextlib.suppress(OSError):
            write_file(f"{path}/cgroup.freeze", "1")
    give_up_at = time.monotonic() + FREEZE_SECONDS
    while time.monotonic() < give_up_at and not all(
        read_counter(f"{path}/cgroup.events", "frozen") for path in paths
    ):
        time.sleep(0.005)


def _enable_controllers(path: str) -> tuple[str, ...]:
    """Enable controllers for the cgroups below; return those that are enabled."""
    for controller in (MEMORY, PIDS, CPU):
        with contextlib.suppress(OSError):  # not delegated, or processes of this kind cannot be moved
            write_file(f"{path}/cgroup.subtree_control", f"+{controller}")
    shared = read_words(f"{path}/cgroup.subtree_control")
    return tuple(name for name in (MEMORY, PIDS, CPU) if name in shared)


def _move_processes_out(home: str) -> None:
    """Move all processes of a cgroup into a leaf: a cgroup with controllers below may have none itself."""
    os.makedirs(f"{home}/{OTHERS_LEAF}", exist_ok=True)
    give_up_at = time.monotonic() + EMPTY_SECONDS
    while (pids := read_numbers(f"{home}/cgroup.procs")) and time.monotonic() < give_up_at:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                write_file(f"{home}/{OTHERS_LEAF}/cgroup.procs", str(pid))
