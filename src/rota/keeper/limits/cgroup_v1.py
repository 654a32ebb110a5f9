"""Cgroups of version 1: a tree for each controller."""

import contextlib
import os
import threading

from rota.keeper.limits.cgroups import (
    PERIOD_US,
    Cgroup,
    Cgroups,
    create_locked,
    read_counter,
    read_numbers,
    write_file,
)
from rota.keeper.limits.limits import CPU, MEMORY, NO_LIMITS, PIDS, AttemptLimits
from rota.keeper.resources.reservations import AttemptKey

FREEZER = "freezer"
THREAD_CONTROLLERS = (PIDS, FREEZER, CPU)  # whose parent cgroup threads that spawn stay in
SHARES = 1024  # cpu.shares of a process without a cgroup of its own


class CgroupV1(Cgroup):
    def kill(self) -> None:
        """Freeze, then kill. Race: without freezing, a member could fork before it is killed."""
        freezer = self.paths.get(FREEZER)
        if self.is_empty():
            return
        if freezer is None:
            super().kill()
            return
        with contextlib.suppress(OSError):
            write_file(f"{freezer}/freezer.state", "FROZEN")
        try:
            super().kill()
        finally:
            with contextlib.suppress(OSError):
                write_file(f"{freezer}/freezer.state", "THAWED")

    def oom_peak_bytes(self) -> int | None:
        path = self.paths.get(MEMORY)
        if path is None or not read_counter(f"{path}/memory.oom_control", "oom_kill"):
            return None
        return sum(read_numbers(f"{path}/memory.max_usage_in_bytes"))


class CgroupsV1(Cgroups):
    """Each controller has a tree of its own, and single threads can be moved.

    Threads that spawn stay in the parent cgroups, so that children are limited from their fork on. A new
    process enters the cgroups of its attempt by itself, before it executes its command.
    """

    label = "cgroup-v1"

    def __init__(self, homes: dict[str, str], name: str) -> None:
        """`homes`: the cgroups of this process, by controller."""
        super().__init__()
        self._parents = {controller: f"{home}/{name}" for controller, home in homes.items()}
        self.controllers = tuple(name for name in (MEMORY, PIDS, CPU) if name in homes)
        self._threads = threading.local()
        self._lock_fds = [create_locked(path) for path in self._parents.values()]
        if CPU in self._parents:  # all attempts together weigh as one process per core
            write_file(f"{self._parents[CPU]}/cpu.shares", str(SHARES * (os.cpu_count() or 1)))

    def limit_all(self, pids: int) -> None:
        if PIDS in self._parents:
            write_file(f"{self._parents[PIDS]}/pids.max", str(pids))

    def create(self, key: AttemptKey, limits: AttemptLimits) -> Cgroup | None:
        """Create cgroups in as few trees as possible; without limits one that serves to kill the attempt."""
        if not limits and (spare := self.pop_spare()):
            spare.limits = limits
            return spare
        needed = {
            FREEZER: True,
            MEMORY: limits.memory_bytes is not None,
            PIDS: limits.pids is not None or FREEZER not in self._parents,
            CPU: bool(limits),
        }
        name = self.name(key, limits)
        chosen = [controller for controller in needed if needed[controller] and controller in self._parents]
        chosen = chosen or list(self._parents)[:1]
        paths = {controller: f"{self._parents[controller]}/{name}" for controller in chosen}
        group = CgroupV1(limits, paths, self.controllers, is_plain=not limits)
        try:
            for path in paths.values():
                os.mkdir(path)
            self._write_limits(paths, limits)
        except OSError:
            group.remove()
            raise
        return group

    def update_limits(self, group: Cgroup, limits: AttemptLimits) -> None:
        """Update limits. What the kernel rejects, as less memory than is used, holds from the next start."""
        group.limits, group.is_plain = limits, group.is_plain and not limits
        name = os.path.basename(group.path)
        for controller, limit in ((MEMORY, limits.memory_bytes), (PIDS, limits.pids)):
            if limit is not None and controller in self._parents and controller not in group.paths:
                with contextlib.suppress(OSError):
                    self._add_controller(group, controller, f"{self._parents[controller]}/{name}")
        with contextlib.suppress(OSError):
            self._write_limits(group.paths, limits)

    def freeze_group(self, key: AttemptKey) -> Cgroup | None:
        if FREEZER not in self._parents:
            return None
        path = f"{self._parents[FREEZER]}/trap-{'-'.join(map(str, key))}"
        os.makedirs(path, exist_ok=True)
        write_file(f"{path}/freezer.state", "FROZEN")
        return CgroupV1(NO_LIMITS, {FREEZER: path})

    def enter_parent_cgroup(self) -> None:
        if getattr(self._threads, "has_entered", False):
            return
        for controller in THREAD_CONTROLLERS:
            if controller in self._parents:
                write_file(f"{self._parents[controller]}/tasks", "0")
        self._threads.has_entered = True

    def close(self) -> None:
        self.remove_empty()
        self.drop_spare()
        for path in self._parents.values():
            with contextlib.suppress(OSError):
                os.rmdir(path)
        for fd in self._lock_fds:
            os.close(fd)

    def _add_controller(self, group: Cgroup, controller: str, path: str) -> None:
        """Add the members to the tree of another controller. Race: twice, for children forked meanwhile."""
        os.mkdir(path)
        for pid in (*group.members(), *group.members()):
            with contextlib.suppress(ProcessLookupError):
                write_file(f"{path}/cgroup.procs", str(pid))
        group.paths[controller] = path

    def _write_limits(self, paths: dict[str, str], limits: AttemptLimits) -> None:
        if CPU in paths:
            write_file(f"{paths[CPU]}/cpu.shares", str(max(2, limits.cpu_weight_milli * SHARES // 1000)))
            quota_us = -1 if limits.cpu_milli is None else max(1000, limits.cpu_milli * PERIOD_US // 1000)
            write_file(f"{paths[CPU]}/cpu.cfs_quota_us", str(quota_us))
        if PIDS in paths:
            write_file(f"{paths[PIDS]}/pids.max", "max" if limits.pids is None else str(limits.pids))
        if MEMORY in paths:
            limit = str(-1 if limits.memory_bytes is None else limits.memory_bytes)
            with_swap = f"{paths[MEMORY]}/memory.memsw.limit_in_bytes"
            # It must not be below the plain limit: written before that, for a raise, and after it, for a cut.
            with contextlib.suppress(OSError):
                write_file(with_swap, limit)
            write_file(f"{paths[MEMORY]}/memory.limit_in_bytes", limit)
            with contextlib.suppress(OSError):  # fails if swap is not accounted
                write_file(with_swap, limit)
