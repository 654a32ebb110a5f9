"""Users that tasks of a root keeper run as, and switching a thread to such a user."""

import contextlib
import ctypes
import functools
import os
import platform
import pwd
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from rota.keeper.process import trees

SELF, OWN = "self", "own"
# A million uids that no system allocates (systemd's UIDS-GIDS), because a job keeps its user until it is
# forgotten: with few of them, one tenant's many small jobs would block the node for all others.
UID_FIRST, UID_LAST = 0x7800_0000, 0x780F_FFFF
NARROW = (61184, 65519)  # systemd's dynamic users, if a user namespace maps no higher ones
DYNAMIC_UIDS = "/run/systemd/dynamic-uid"  # where systemd records those that it has allocated
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# setgroups, setresgid, setresuid. The C library's functions change all threads at once, the system calls only
# the calling thread.
SYSTEM_CALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147), "riscv64": (159, 149, 147)}
_KEEP = ctypes.c_uint32(-1)
_CANDIDATES = 8192  # uids that one scan of all processes serves for
_quick = ctypes.PyDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class User:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str | None = None  # None: it has no entry in passwd


class JobUsers:
    """Allocates users to jobs. The owner of a job's work directory is the record of its user."""

    def __init__(self, work: str, between: tuple[int, int] | None = None) -> None:
        """`between`: the first and the last uid to allocate; None: as this machine allows."""
        self._work = work
        self._first, self._last = between or user_range()
        self._run_as = SELF
        self._by_job: dict[str, User] = {}
        self._free: list[int] = []  # unused by any job and process at the last scan, not allocated since
        self._lock = threading.Lock()

    def set_run_as(self, run_as: str) -> bool:
        """Set the user policy; return whether it changed."""
        is_new, self._run_as = run_as != self._run_as, run_as
        return is_new

    @property
    def is_self(self) -> bool:
        return self._run_as == SELF

    def user_for(self, job: str) -> User | None:
        """The user of a job, allocated if necessary; None: the keeper's. LookupError: there is none."""
        if self.is_self:
            return None
        if self._run_as != OWN:
            return find_user(self._run_as)
        # Two starts of one job must get the same user.
        with self._lock:
            user = self._by_job.get(job) or self._known(job) or self._new()
            self._by_job[job] = user
            return user

    def forget(self, job: str) -> None:
        with self._lock:
            self._by_job.pop(job, None)

    def _known(self, job: str) -> User | None:
        uid = _owner(f"{self._work}/{job}")
        return User(uid, uid) if is_own(uid) else None

    def _new(self) -> User:
        """Allocate a uid that no process of the machine has: processes of a forgotten job may still run.

        One scan of all processes serves for many uids: only root keepers allocate them, and this one
        allocates each once per scan. Another keeper of the machine may have allocated one since;
        `has_processes` tells.
        """
        # Twice: the list may be old; a fresh scan gets one more try before the node counts as exhausted.
        for _ in range(2):
            while self._free:
                uid = self._free.pop()
                if not (os.path.exists(f"{DYNAMIC_UIDS}/{uid}") or has_processes(uid)):
                    return User(uid, uid)
            self._free = self._find_free()
        raise LookupError(f"every user from {self._first} to {self._last} has a job or a process here")

    def _find_free(self) -> list[int]:
        taken = {user.uid for user in self._by_job.values()} | trees.find_users()
        with contextlib.suppress(OSError), os.scandir(self._work) as jobs:
            taken |= {entry.stat(follow_symlinks=False).st_uid for entry in jobs}
        users = range(self._first, self._last + 1)
        drawn = secrets.SystemRandom().sample(users, min(_CANDIDATES, len(users)))
        return [uid for uid in drawn if uid not in taken]


def is_own(uid: int) -> bool:
    """Whether a root keeper may have allocated this uid."""
    return UID_FIRST <= uid <= UID_LAST or NARROW[0] <= uid <= NARROW[1]


@functools.cache
def user_range() -> tuple[int, int]:
    """The first and the last uid that keepers of this machine allocate."""
    with open("/proc/self/uid_map", encoding="ascii") as rows:
        mapped = [tuple(map(int, row.split())) for row in rows]
    is_wide = any(inside <= UID_FIRST and inside + length > UID_LAST for inside, _, length in mapped)
    return (UID_FIRST, UID_LAST) if is_wide else NARROW


def has_processes(uid: int) -> bool:
    """Whether a process of the machine has this real uid."""
    with contextlib.suppress(ProcessLookupError):
        os.getpriority(os.PRIO_USER, uid)
        return True
    return False


def find_user(text: str) -> User:
    """A user by name or number; LookupError if there is none of that name."""
    with contextlib.suppress(KeyError):
        found = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
        groups = os.getgrouplist(found.pw_name, found.pw_gid)
        return User(found.pw_uid, found.pw_gid, tuple(groups), found.pw_name)
    if text.isdecimal():
        return User(int(text), int(text))
    raise LookupError(f"there is no user {text}")


def give_directory(directory: str, user: User) -> None:
    """Give a directory to its user, once: afterwards only that user knows what is in it."""
    if _owner(directory) != user.uid:
        os.chmod(directory, 0o700)
        os.chown(directory, user.uid, user.gid, follow_symlinks=False)


@contextlib.contextmanager
def as_user(user: User | None) -> Iterator[None]:
    """Set this thread's effective uid and groups to those of `user`; restored on exit.

    Its real and saved uid stay the keeper's: the kernel compares these when a process signals or traces
    another, and a signal to one thread would end the whole keeper. Nothing may be spawned in here: it would
    have root as its real user. `os.access` checks the real user, unless called with `effective_ids`.
    """
    if user is None:
        yield
        return
    set_groups, set_gids, set_uids = SYSTEM_CALLS[platform.machine()]
    before = os.getgroups()
    try:
        # Ordering: groups before uid, since an unprivileged thread may not set them.
        _call(set_groups, len(user.groups), (ctypes.c_uint32 * len(user.groups))(*user.groups))
        _call(set_gids, _KEEP, user.gid, _KEEP)
        _call(set_uids, _KEEP, user.uid, _KEEP)
        yield
    finally:
        # The reverse order, for the same reason: the uid first, to be allowed the rest.
        _call(set_uids, _KEEP, 0, _KEEP)
        _call(set_gids, _KEEP, 0, _KEEP)
        _call(set_groups, len(before), (ctypes.c_uint32 * len(before))(*before))


def drop_privileges() -> None:
    """Set no_new_privs: nothing that this thread spawns gains privileges, by setuid or otherwise."""
    if _quick.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(no_new_privs)")
    _quick.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)  # older kernels have none


def _call(number: int, *arguments: object) -> None:
    if _quick.syscall(number, *arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _owner(path: str) -> int:
    try:
        return os.lstat(path).st_uid
    except FileNotFoundError:
        return -1
