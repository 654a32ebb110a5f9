"""Control groups that the work is put into; where there are none, nothing is done here."""

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

PERIOD_US = 100_000  # the kernel's own; a quota is so much of each
HANDLES_MAX = 256  # open at one time
SPARES_MAX = 64  # groups that are kept: as many as are started and ended within a moment


@dataclass(slots=True)
class Cgroup:
    """The groups of one attempt, by controller: all have the same members."""

    limits: AttemptLimits
    paths: dict[str, str] = field(default_factory=dict)
    enforced: tuple[str, ...] = ()  # the limits that the kernel keeps; others are watched
    is_plain: bool = False  # it limits nothing: when it is empty, another attempt may have it
    is_unused: bool = True  # no process has entered since it was last seen empty

    @property
    def path(self) -> str:
        return next(iter(self.paths.values()))

    @property
    def procs_files(self) -> tuple[str, ...]:
        """The files by which a new process enters by itself, before it becomes the work."""
        return tuple(f"{path}/cgroup.procs" for path in self.paths.values())

    def members(self) -> list[int]:
        return read_numbers(f"{self.path}/cgroup.procs")

    def is_empty(self) -> bool:
        """No process in it can run.

        That stays so until the keeper starts another one in there. Invariant: in a plain group only one
        thread at a time starts or ends anything, so that it need not be looked at twice.
        """
        if not (self.is_plain and self.is_unused):
            self.is_unused = fast_syscalls.is_file_empty(f"{self.path}/cgroup.procs")
        return self.is_unused

    def signal(self, signum: int, pids: Sequence[int]) -> None:
        """Signal these members. Handles are opened first: a number reused since is never hit."""
        for start in range(0, len(pids), HANDLES_MAX):
            handles = {pid: trees.open_handle(pid) for pid in pids[start : start + HANDLES_MAX]}
            still = set(self.members())
            for pid, handle in handles.items():
                if handle is not None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        if pid in still:
                            signal.pidfd_send_signal(handle, signum)
                    os.close(handle)

    def kill(self) -> None:
        self.signal(signal.SIGKILL, self.members())

    def add_process(self, pid: int, is_ours: Callable[[], bool]) -> None:
        """Put a process into it that is ours before and after: its number may be somebody else's by then."""
        with contextlib.suppress(OSError):  # it is gone
            if is_ours():
                write_file(f"{self.path}/cgroup.procs", str(pid))
                if not is_ours():
                    write_file(f"{os.path.dirname(self.path)}/cgroup.procs", str(pid))

    def oom_peak_bytes(self) -> int | None:
        """How much memory it had at most, if the kernel had to kill for it; else None."""
        return None

    def remove(self) -> bool:
        """False: somebody in it has not yet gone."""
        try:
            for path in self.paths.values():
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(path)
        except OSError:
            return False
        return True


class Cgroups:
    """Where there are none: limits are watched by looking at the processes again and again."""

    label = "polling"
    controllers: tuple[str, ...] = (MEMORY, PIDS)
    can_freeze = False

    def __init__(self) -> None:
        self._to_remove: list[Cgroup] = []
        self._spare: list[Cgroup] = []  # empty, and plain
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def limit_all(self, pids: int) -> None:
        """So many processes at most for all the work of this keeper."""

    def leave_shared_cgroup(self) -> None:
        """Leave a crowd of work without limits behind, if the keeper is among one."""

    def freeze_all(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile crowds of work without limits do nothing, where that can be had; who is killed dies."""
        return contextlib.nullcontext()

    def create(self, key: AttemptKey, limits: AttemptLimits) -> Cgroup | None:
        """For one attempt."""
        del key, limits
        return None

    def enter_parent_cgroup(self) -> None:
        """What this thread starts from now on counts as work of this keeper from its first instruction on."""

    def name(self, key: AttemptKey, limits: AttemptLimits) -> str:
        """Plain groups are not named by an attempt, because others will have them."""
        return "-".join(map(str, key)) if limits else f"plain-{next(self._numbers)}"

    def pop_spare(self) -> Cgroup | None:
        """A plain group that is empty; appending and popping need no lock."""
        try:
            return self._spare.pop()
        except IndexError:
            return None

    def update_limits(self, group: Cgroup, limits: AttemptLimits) -> None:
        """Of what is in the group already."""

    def freeze_group(self, key: AttemptKey) -> Cgroup | None:
        """A frozen group: who is put into it does nothing more, and so are its children."""
        del key
        return None

    def kill_and_remove(self, group: Cgroup) -> None:
        """Kill all that is left in it, and remove it, later if a process takes time to go.

        To make and remove groups is most of their cost: those that limit nothing are kept for other attempts.
        """
        if not group.is_empty():
            group.kill()
        elif group.is_plain and len(self._spare) < SPARES_MAX:
            self._spare.append(group)
            return
        if not group.remove():
            with self._lock:
                self._to_remove.append(group)

    def remove_empty(self) -> None:
        """Remove what could not be removed before."""
        if self._to_remove:
            with self._lock:
                dying, self._to_remove = self._to_remove, []
            for group in dying:
                self.kill_and_remove(group)

    def drop_spare(self) -> None:
        while group := self.pop_spare():
            group.remove()

    def close(self) -> None:
        """The keeper goes, its work has ended."""


def create_locked(path: str) -> int:
    """Make a keeper's group, and hold its lock: as long as it is held, the keeper lives."""
    while True:
        os.makedirs(path, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):  # nobody took it for a leftover meanwhile
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
    except OSError:  # gone
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
