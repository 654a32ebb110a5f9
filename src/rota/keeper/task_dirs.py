"""A directory for each task, with its token, result file and outputs, closed to other tasks. [I/O]

    tasks/JOB                 traversable by the job's group
    tasks/JOB/INDEX           traversable by the task's group; the keeper writes tokens here
    tasks/JOB/INDEX/out       owned by the task's user: ROTA_OUTPUT_DIR
    tasks/JOB/INDEX/report    owned by the task's user, if the agent reports its result

Tasks of a job have one user, because they share a working directory. A supplementary group tells them apart:
each task has one, numbered by its index. The two upper directories belong to root, so that no task can
replace them by a directory of its own.

Creating and removing directories takes longer than starting a process on some disks. So the directory of a
task that has left nothing in it is renamed for the next task of the job.
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
FIRST_GROUP = 0x7000_0000  # up to 0x7fff_ffff no system allocates groups; see systemd's UIDS-GIDS
GROUPS = 1 << 27  # more than an array has tasks; groups of jobs are above these, see process/users


class DirectoryOwner(NamedTuple):
    """The user of a job's task directories, and whether each task has a group of its own."""

    user: User
    is_one_of_many: bool


@dataclass(slots=True)
class _JobDirs:
    """The task directories of a job."""

    owner: DirectoryOwner | None
    unused: dict[int, None] = field(default_factory=dict)  # by index: empty, and their tasks have ended
    held: dict[int, set[int]] = field(default_factory=dict)  # by index: the attempts that use it


class TaskDirs:
    """Task directories of all jobs.

    Its lock is held over the file operations. Race: without it a directory could be renamed for another task
    while a second attempt of its own task opens it.
    """

    def __init__(self, root: str) -> None:
        self._place = f"{root}/{PLACE}"
        self._pool = DirectoryPool(f"{root}/spare/{PLACE}", self._place, _make_spare)
        self._jobs: dict[str, _JobDirs] = {}
        self._lock = threading.Lock()

    def path(self, key: AttemptKey) -> str:
        return f"{self._place}/{key[0]}/{key[1]}"

    def place(self, job: str) -> str:
        return f"{self._place}/{job}"

    def open(
        self, key: AttemptKey, owner: DirectoryOwner | None, reports: KeeperResultEndpoint | None
    ) -> str:
        """Create or reuse the directory of an attempt's task; the same for each process of the attempt."""
        job, index, attempt = key
        path = self.path(key)
        with self._lock:
            dirs = self._open_job(job, owner)
            # A later process of the same attempt, which holds the directory already.
            if attempt in dirs.held.get(index, ()):
                return path
            if index in dirs.unused:
                del dirs.unused[index]
            elif not self._rename_unused(dirs, key, owner):
                _make(path, owner, index)
            if reports and reports.by_agent:
                _make_own(f"{path}/{REPORT}", owner)
            dirs.held.setdefault(index, set()).add(attempt)
        return path

    def close(self, key: AttemptKey, reports: KeeperResultEndpoint | None) -> None:
        """Remove the token of an attempt that has ended; free the directory if it is empty and unused."""
        job, index, attempt = key
        with self._lock:
            dirs = self._jobs.get(job)
            attempts = dirs.held.get(index, set()) if dirs else set()
            if dirs is None or attempt not in attempts:
                return
            attempts.remove(attempt)
            path = self.path(key)
            if reports:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{path}/{token_name(key)}")
            # Invariant: a directory is either held or unused, and only unused ones are renamed.
            if not attempts:
                del dirs.held[index]
                own = (OUT, REPORT) if reports and reports.by_agent else (OUT,)
                if all(fast_syscalls.is_directory_empty(f"{path}/{name}") for name in own):
                    dirs.unused[index] = None

    def forget(self, job: str) -> None:
        with self._lock:
            self._jobs.pop(job, None)

    def preallocate(self) -> None:
        """Create directories ahead; OSError if the disk does not take them."""
        self._pool.refill()

    def _open_job(self, job: str, owner: DirectoryOwner | None) -> _JobDirs:
        dirs = self._jobs.get(job)
        if dirs is None:
            place = self.place(job)
            dirs = _JobDirs(owner)
            if self._pool.allocate(job):
                dirs.unused[0] = None
                _own(f"{place}/0", owner, 0)
            os.makedirs(place, mode=CLOSED, exist_ok=True)
            if owner:
                os.chown(place, 0, owner.user.gid)
                os.chmod(place, PASS_THROUGH)
            self._jobs[job] = dirs
        elif dirs.owner != owner:  # containers of the job run as another user by now
            dirs.owner = owner
            # They belong to the previous user, whose files the next one could not replace.
            dirs.unused.clear()
            if owner:
                os.chown(self.place(job), 0, owner.user.gid)
        return dirs

    def _rename_unused(self, dirs: _JobDirs, key: AttemptKey, owner: DirectoryOwner | None) -> bool:
        """Rename an unused directory for this task; False: there is none, or the task has one already."""
        job, index, _ = key
        if not dirs.unused:
            return False
        other = next(reversed(dirs.unused))
        try:
            fast_syscalls.rename(f"{self._place}/{job}/{other}", self.path(key))
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        del dirs.unused[other]
        if owner and owner.is_one_of_many:
            fast_syscalls.give_to_group(self.path(key), group_of(index))
        return True


def group_of(index: int) -> int:
    """The group of a task, unique within its job."""
    return FIRST_GROUP + index % GROUPS


def has_groups() -> bool:
    """Whether the groups of tasks exist here: a user namespace may not map them."""
    with open("/proc/self/gid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    last = FIRST_GROUP + GROUPS - 1
    return any(first <= FIRST_GROUP and last < first + count for first, _, count in ranges)


def _make_spare(path: str) -> None:
    """Create a job's directory with that of its first task."""
    os.mkdir(path, mode=CLOSED)
    os.mkdir(f"{path}/0", mode=CLOSED)
    os.mkdir(f"{path}/0/{OUT}", mode=CLOSED)


def _make(path: str, owner: DirectoryOwner | None, index: int) -> None:
    for directory in (path, f"{path}/{OUT}"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, mode=CLOSED)
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
