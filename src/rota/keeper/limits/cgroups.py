"""Control groups that the work is put into; where there are none, nothing is done here."""

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rota.keeper.limits.words import MEMORY, PIDS, Limits
from rota.keeper.process import trees
from rota.keeper.rules import Key

PERIOD_US = 100_000  # the kernel's own; a quota is so much of each
HANDLES = 256  # open at one time


@dataclass(slots=True)
class Group:
    """The groups of one attempt, by controller: all have the same members."""

    limits: Limits
    paths: dict[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()  # the limits that the kernel keeps; others are watched

    @property
    def path(self) -> str:
        return next(iter(self.paths.values()))

    @property
    def entrance(self) -> str | None:
        """The file by which a new process enters by itself; None: it is born inside."""
        return None

    def members(self) -> list[int]:
        """Its processes; never the keeper itself, of which a thread is there for the time of a start."""
        return [pid for pid in numbers(f"{self.path}/cgroup.procs") if pid != os.getpid()]

    def signal(self, signum: int, pids: Sequence[int]) -> None:
        """Signal these members. Handles are opened first: a number reused since is never hit."""
        for start in range(0, len(pids), HANDLES):
            handles = {pid: trees.open_handle(pid) for pid in pids[start : start + HANDLES]}
            still = set(self.members())
            for pid, handle in handles.items():
                if handle is not None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        if pid in still:
                            signal.pidfd_send_signal(handle, signum)
                    os.close(handle)

    def kill(self) -> None:
        self.signal(signal.SIGKILL, self.members())

    def catch(self, pid: int, is_ours: Callable[[], bool]) -> None:
        """Put a process into it that is ours before and after: its number may be somebody else's by then."""
        with contextlib.suppress(OSError):  # it is gone
            if is_ours():
                write(f"{self.path}/cgroup.procs", str(pid))
                if not is_ours():
                    write(f"{os.path.dirname(self.path)}/cgroup.procs", str(pid))

    def memory_peak_if_killed(self) -> int | None:
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


class Groups:
    """Where there are none: limits are watched by looking at the processes again and again."""

    label = "polling"
    controllers: tuple[str, ...] = (MEMORY, PIDS)

    def __init__(self) -> None:
        self._dying: list[Group] = []
        self._lock = threading.Lock()

    def limit_all(self, pids: int) -> None:
        """So many processes at most for all the work of this keeper."""

    def step_aside(self) -> None:
        """Leave a crowd of work without limits behind, if the keeper is among one."""

    def still(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile crowds of work without limits do nothing, where that can be had; who is killed dies."""
        return contextlib.nullcontext()

    def make(self, key: Key, limits: Limits) -> Group | None:
        """For an attempt that has limits."""
        del key, limits
        return None

    def enter(self, group: Group | None) -> None:
        """What this thread starts now is in the group from its first instruction on."""

    def leave(self, group: Group | None) -> None:
        """The thread is what it was; safe after an `enter` that failed half-way."""

    def revise(self, group: Group, limits: Limits) -> None:
        """Of what is in the group already."""

    def trap(self, key: Key) -> Group | None:
        """A frozen group: who is put into it does nothing more, and so are its children."""
        del key
        return None

    def end(self, group: Group) -> None:
        """Kill whoever is left in it, and remove it, later if somebody takes time to go."""
        group.kill()
        if not group.remove():
            with self._lock:
                self._dying.append(group)

    def bury(self) -> None:
        """Remove what could not be removed before."""
        if self._dying:
            with self._lock:
                dying, self._dying = self._dying, []
            for group in dying:
                self.end(group)

    def close(self) -> None:
        """The keeper goes, its work has ended."""


def claim(path: str) -> int:
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


def entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return [entry for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def numbers(path: str) -> Sequence[int]:
    try:
        with open(path, encoding="ascii") as file:
            return [int(line) for line in file]
    except OSError:  # gone
        return []


def counter(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return next((int(value) for key, value in map(str.split, file) if key == name), 0)
    except OSError:
        return 0


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
