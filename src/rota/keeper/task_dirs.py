"""A directory for each task, with its token, its report and its outputs; closed to other tasks. [I/O]

    tasks/JOB                 the job's group may pass through
    tasks/JOB/INDEX           the task's group may pass through; the keeper writes tokens here
    tasks/JOB/INDEX/out       the work's own: ROTA_OUTPUT_DIR
    tasks/JOB/INDEX/report    the work's own, where the agent reports for it

Tasks of a job have one user, because they share a working directory. What tells them apart is a group: each
has one more than its job, numbered by its index. The two upper directories belong to root, so that no task
can put another directory into their place.

To make and remove directories takes longer than to start a process on some disks. So the directory of a task
that has left nothing is renamed for the next task of the job.
"""

import contextlib
import errno
import os
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from rota.keeper.directory_pool import DirectoryPool
from rota.keeper.process import fast_syscalls
from rota.keeper.process.users import User
from rota.keeper.protocol.result_endpoint import OUT, REPORT, KeeperResultEndpoint, token_name
from rota.keeper.resources.reservations import AttemptKey

PLACE = "tasks"
PASS_THROUGH, CLOSED = 0o710, 0o700
FIRST_GROUP = 0x7000_0000  # from here to 0x7fff_ffff no system has groups of its own; see systemd's UIDS-GIDS
GROUPS = 1 << 27  # more than an array has tasks; jobs have groups above these, see process/users


class DirectoryOwner(NamedTuple):
    """The user of the work, and whether tasks of the job are told apart by groups of their own."""

    user: User
    is_one_of_many: bool


@dataclass(slots=True)
class _Shelf:
    """The directories of a job."""

    owner: DirectoryOwner | None
    unused: dict[int, None] = field(default_factory=dict)  # of tasks that have ended and left nothing
    held: dict[int, set[int]] = field(default_factory=dict)  # by index: the attempts that have it


class TaskDirs:
    """One lock guards it all: a directory is not renamed while another attempt of its task takes it."""

    def __init__(self, root: str) -> None:
        self._place = f"{root}/{PLACE}"
        self._spares = DirectoryPool(f"{root}/spare/{PLACE}", self._place, _make_spare)
        self._shelves: dict[str, _Shelf] = {}
        self._lock = threading.Lock()

    def path(self, key: AttemptKey) -> str:
        return f"{self._place}/{key[0]}/{key[1]}"

    def place(self, job: str) -> str:
        return f"{self._place}/{job}"

    def open(
        self, key: AttemptKey, owner: DirectoryOwner | None, reports: KeeperResultEndpoint | None
    ) -> str:
        """The directory of the attempt's task; the same for each process of the attempt."""
        job, index, attempt = key
        path = self.path(key)
        with self._lock:
            shelf = self._shelf(job, owner)
            if attempt in shelf.held.get(index, ()):
                return path
            if index in shelf.unused:
                del shelf.unused[index]
            elif not self._rename_unused(shelf, key, owner):
                _make(path, owner, index)
            if reports and reports.by_agent:
                _make_own(f"{path}/{REPORT}", owner)
            shelf.held.setdefault(index, set()).add(attempt)
        return path

    def close(self, key: AttemptKey, reports: KeeperResultEndpoint | None) -> None:
        """The attempt has ended, and nothing of it runs."""
        job, index, attempt = key
        with self._lock:
            shelf = self._shelves.get(job)
            attempts = shelf.held.get(index, set()) if shelf else set()
            if shelf is None or attempt not in attempts:
                return
            attempts.remove(attempt)
            path = self.path(key)
            if reports:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{path}/{token_name(key)}")
            if not attempts:
                del shelf.held[index]
                own = (OUT, REPORT) if reports and reports.by_agent else (OUT,)
                if all(fast_syscalls.is_directory_empty(f"{path}/{name}") for name in own):
                    shelf.unused[index] = None

    def forget(self, job: str) -> None:
        with self._lock:
            self._shelves.pop(job, None)

    def stock_up(self) -> None:
        """OSError if the disk does not take them: then there are fewer."""
        self._spares.refill()

    def _shelf(self, job: str, owner: DirectoryOwner | None) -> _Shelf:
        shelf = self._shelves.get(job)
        if shelf is None:
            place = self.place(job)
            shelf = _Shelf(owner)
            if self._spares.allocate(job):
                shelf.unused[0] = None
                _own(f"{place}/0", owner, 0)
            os.makedirs(place, mode=CLOSED, exist_ok=True)
            if owner:
                os.chown(place, 0, owner.user.gid)
                os.chmod(place, PASS_THROUGH)
            self._shelves[job] = shelf
        elif shelf.owner != owner:  # a container of the job runs as another user since
            shelf.owner = owner
            shelf.unused.clear()
            if owner:
                os.chown(self.place(job), 0, owner.user.gid)
        return shelf

    def _rename_unused(self, shelf: _Shelf, key: AttemptKey, owner: DirectoryOwner | None) -> bool:
        """False: there is none, or the task has a directory already."""
        job, index, _ = key
        if not shelf.unused:
            return False
        other = next(reversed(shelf.unused))
        try:
            fast_syscalls.rename(f"{self._place}/{job}/{other}", self.path(key))
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        del shelf.unused[other]
        if owner and owner.is_one_of_many:
            fast_syscalls.give_to_group(self.path(key), group_of(index))
        return True


def group_of(index: int) -> int:
    """The group of a task: its own within its job."""
    return FIRST_GROUP + index % GROUPS


def has_groups() -> bool:
    """Whether this process may hand out the groups of tasks: in a user namespace they may not exist."""
    with open("/proc/self/gid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    last = FIRST_GROUP + GROUPS - 1
    return any(first <= FIRST_GROUP and last < first + count for first, _, count in ranges)


def _make_spare(path: str) -> None:
    """With the directory of its first task."""
    os.mkdir(path, mode=CLOSED)
    os.mkdir(f"{path}/0", mode=CLOSED)
    os.mkdir(f"{path}/0/{OUT}", mode=CLOSED)


def _make(path: str, owner: DirectoryOwner | None, index: int) -> None:
    for one in (path, f"{path}/{OUT}"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(one, mode=CLOSED)
    _own(path, owner, index)


def _own(path: str, owner: DirectoryOwner | None, index: int) -> None:
    if owner is None:
        return
    os.chown(f"{path}/{OUT}", owner.user.uid, owner.user.gid, follow_symlinks=False)
    os.chown(path, 0, group_of(index) if owner.is_one_of_many else owner.user.gid)
    os.chmod(path, PASS_THROUGH)


def _make_own(path: str, owner: DirectoryOwner | None) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=CLOSED)
    if owner:
        os.chown(path, owner.user.uid, owner.user.gid, follow_symlinks=False)
