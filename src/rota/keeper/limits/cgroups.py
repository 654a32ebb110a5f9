"""Cgroups of attempts: what both versions share, and the fallback for machines without them."""

import contextlib
import fcntl
import itertools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rota.keeper.limits.limits import MEMORY, PIDS, AttemptLimits
from rota.keeper.process import fast_syscalls, trees
from rota.keeper.resources.reservations import AttemptKey

PERIOD_US = 100_000  # the kernel's default period of CPU quotas
HANDLES_MAX = 256  # pidfds open at a time
SPARES_MAX = 64  # empty cgroups kept for reuse


@dataclass(slots=True)
class Cgroup:
    """The cgroups of one attempt, by controller; all have the same members."""

    limits: AttemptLimits
    paths: dict[str, str] = field(default_factory=dict)
    enforced: tuple[str, ...] = ()  # limits that the kernel enforces; others are polled
    is_plain: bool = False  # without limits: when it is empty, another attempt may reuse it
    is_unused: bool = True  # no process was spawned into it since it was last found empty

    @property
    def path(self) -> str:
        return next(iter(self.paths.values()))

    @property
    def procs_files(self) -> tuple[str, ...]:
        """The files by which a new process enters, before it executes its command."""
        return tuple(f"{path}/cgroup.procs" for path in self.paths.values())

    def members(self) -> list[int]:
        return read_numbers(f"{self.path}/cgroup.procs")

    def is_empty(self) -> bool:
        """Whether it has no processes; that stays so until the keeper spawns into it.

        Invariant: only one thread at a time spawns into a plain cgroup or ends its attempt, so that a result
        of True can be cached in `is_unused`.
        """
        if not (self.is_plain and self.is_unused):
            self.is_unused = fast_syscalls.is_file_empty(f"{self.path}/cgroup.procs")
        return self.is_unused

    def signal(self, signum: int, pids: Sequence[int]) -> None:
        """Signal these members. Race: pidfds are opened before membership is checked, so that a reused pid
        is never signalled."""
        for start in range(0, len(pids), HANDLES_MAX):
            handles = {pid: trees.open_handle(pid) for pid in pids[start : start + HANDLES_MAX]}
            # After the handles were opened, for the race above.
            members = set(self.members())
            for pid, handle in handles.items():
                if handle is not None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        if pid in members:
                            signal.pidfd_send_signal(handle, signum)
                    os.close(handle)

    def kill(self) -> None:
        self.signal(signal.SIGKILL, self.members())

    def add_process(self, pid: int, is_ours: Callable[[], bool]) -> None:
        """Move a process into it, and back if it is not ours. Race: its pid may have been reused."""
        with contextlib.suppress(OSError):  # the process has ended
            if is_ours():
                write_file(f"{self.path}/cgroup.procs", str(pid))
                if not is_ours():
                    write_file(f"{os.path.dirname(self.path)}/cgroup.procs", str(pid))

    def oom_peak_bytes(self) -> int | None:
        """Its peak memory, if the kernel killed a member for its memory limit; else None."""
        return None

    def remove(self) -> bool:
        """Remove the cgroups; False: a process has not ended yet."""
        try:
            for path in self.paths.values():
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(path)
        except OSError:
            return False
        return True


class Cgroups:
    """The fallback without cgroups: limits are enforced by polling processes. Base of both versions."""

    label = "polling"
    controllers: tuple[str, ...] = (MEMORY, PIDS)
    can_freeze = False

    def __init__(self) -> None:
        self._to_remove: list[Cgroup] = []
        self._spare: list[Cgroup] = []  # empty plain cgroups
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def limit_all(self, pids: int) -> None:
        """Limit the processes of all attempts of this keeper together."""

    def leave_shared_cgroup(self) -> None:
        """Move the keeper out of a cgroup that it shares with many processes of attempts."""

    def freeze_all(self) -> contextlib.AbstractContextManager[None]:
        """Freeze attempts without cgroups of their own while the context is open, if possible."""
        return contextlib.nullcontext()

    def create(self, key: AttemptKey, limits: AttemptLimits) -> Cgroup | None:
        """Create a cgroup for an attempt; None: there are no cgroups."""
        del key, limits
        return None

    def enter_parent_cgroup(self) -> None:
        """Make children of this thread count as attempts of this keeper from their fork on."""

    def name(self, key: AttemptKey, limits: AttemptLimits) -> str:
        """The name of a new cgroup; a plain one is not named after its attempt, because others reuse it."""
        return "-".join(map(str, key)) if limits else f"plain-{next(self._numbers)}"

    def pop_spare(self) -> Cgroup | None:
        """Pop an empty plain cgroup, if there is one; list operations are atomic."""
        try:
            return self._spare.pop()
        except IndexError:
            return None

    def update_limits(self, group: Cgroup, limits: AttemptLimits) -> None:
        """Set new limits for the processes in the cgroup."""

    def freeze_group(self, key: AttemptKey) -> Cgroup | None:
        """Create a frozen cgroup: a process that is moved into it, and its children, run no more."""
        del key
        return None

    def kill_and_remove(self, group: Cgroup) -> None:
        """Kill everything in it and remove it, later if a process takes time to end.

        Creating and removing cgroups is most of their cost, so plain ones are kept for other attempts.
        """
        # Checked and not assumed: a process that left its session may still be in it.
        if not group.is_empty():
            group.kill()
        elif group.is_plain and len(self._spare) < SPARES_MAX:
            # List operations are atomic, so spares need no lock.
            self._spare.append(group)
            return
        if not group.remove():
            with self._lock:
                self._to_remove.append(group)

    def remove_empty(self) -> None:
        """Remove cgroups that could not be removed before."""
        if self._to_remove:
            with self._lock:
                # Swapped out under the lock: `kill_and_remove` below appends again what is still not empty.
                pending, self._to_remove = self._to_remove, []
            for group in pending:
                self.kill_and_remove(group)

    def drop_spare(self) -> None:
        while group := self.pop_spare():
            group.remove()

    def close(self) -> None:
        """Remove the keeper's own cgroups when it ends."""


def create_locked(path: str) -> int:
    """Create a keeper's cgroup and lock it; the lock tells other keepers that this one is alive."""
    while True:
        os.makedirs(path, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # The kernel releases it when this keeper dies, so
            # a leftover cgroup is recognised by its free lock.
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                # Race: another keeper may have removed it as a leftover before it was locked.
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            os.close(fd)


def subdirectories(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return [entry for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def read_numbers(path: str) -> list[int]:
    try:
        with open(path, encoding="ascii") as file:
            return [int(line) for line in file]
    except OSError:  # the cgroup was removed
        return []


def read_counter(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return next((int(value) for key, value in map(str.split, file) if key == name), 0)
    except OSError:
        return 0


def write_file(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
