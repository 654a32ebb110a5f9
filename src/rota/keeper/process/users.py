"""Which user the work of a root keeper runs as, and what that user could reach."""

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
# A million users that no system gives out (systemd's UIDS-GIDS), because a job keeps its user until it is
# forgotten: with few of them, one tenant's many small jobs would take the node from all others.
UID_FIRST, UID_LAST = 0x7800_0000, 0x780F_FFFF
NARROW = (
    61184,
    65519,
)  # where a user namespace maps no higher ones: systemd's users without an entry in passwd
DYNAMIC_UIDS = "/run/systemd/dynamic-uid"  # where it writes down those it gave out
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# The C library's functions change all threads at once; the system calls change the one that calls.
SYSTEM_CALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147), "riscv64": (159, 149, 147)}
_KEEP = ctypes.c_uint32(-1)
_LOOKED_AT = 8192  # users that one look at all processes serves for
_quick = ctypes.PyDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class User:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str | None = None  # None: it has no entry in passwd


class JobUsers:
    """Of the jobs that have a work directory here; the owner of that is what is remembered."""

    def __init__(self, work: str, between: tuple[int, int] | None = None) -> None:
        """`between`: the first and the last user to give out; None: as this machine allows."""
        self._work = work
        self._first, self._last = between or user_range()
        self._run_as = SELF
        self._by_job: dict[str, User] = {}
        self._free: list[int] = []  # seen unused by any job and any process, and not given out since
        self._lock = threading.Lock()

    def set_run_as(self, said: str) -> bool:
        """Whether this is something new."""
        is_new, self._run_as = said != self._run_as, said
        return is_new

    @property
    def is_self(self) -> bool:
        return self._run_as == SELF

    def user_for(self, job: str) -> User | None:
        """None: as the keeper itself. LookupError if there is no such user."""
        if self.is_self:
            return None
        if self._run_as != OWN:
            return find_user(self._run_as)
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
        """A user that no process of the machine has: of an earlier job some may live on.

        One look at all processes serves for every user that was free then: only keepers of root give these
        users out, and this one gives each of them out once. Another keeper of the machine may have given one
        out since: one call of the kernel tells.
        """
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
        drawn = secrets.SystemRandom().sample(users, min(_LOOKED_AT, len(users)))
        return [uid for uid in drawn if uid not in taken]


def is_own(uid: int) -> bool:
    """Whether a root keeper may have given out this user."""
    return UID_FIRST <= uid <= UID_LAST or NARROW[0] <= uid <= NARROW[1]


@functools.cache
def user_range() -> tuple[int, int]:
    """The first and the last user that this machine's keepers give out."""
    with open("/proc/self/uid_map", encoding="ascii") as rows:
        mapped = [tuple(map(int, row.split())) for row in rows]
    is_wide = any(inside <= UID_FIRST and inside + length > UID_LAST for inside, _, length in mapped)
    return (UID_FIRST, UID_LAST) if is_wide else NARROW


def has_processes(uid: int) -> bool:
    """Whether a process of the machine has this as its real user."""
    with contextlib.suppress(ProcessLookupError):
        os.getpriority(os.PRIO_USER, uid)
        return True
    return False


def find_user(text: str) -> User:
    """By name or number; LookupError if there is none of that name."""
    with contextlib.suppress(KeyError):
        found = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
        groups = os.getgrouplist(found.pw_name, found.pw_gid)
        return User(found.pw_uid, found.pw_gid, tuple(groups), found.pw_name)
    if text.isdecimal():
        return User(int(text), int(text))
    raise LookupError(f"there is no user {text}")


def give_directory(directory: str, user: User) -> None:
    """Hand a directory to its user, once: afterwards only that user knows what lies in there."""
    if _owner(directory) != user.uid:
        os.chmod(directory, 0o700)
        os.chown(directory, user.uid, user.gid, follow_symlinks=False)


@contextlib.contextmanager
def as_user(user: User | None) -> Iterator[None]:
    """This thread has the effective user and groups of `user`, and reaches the files that it reaches.

    Its real and saved user stay the keeper's. The kernel compares these two when a process signals or traces
    another, and a signal to one thread of the keeper would end all of it. Nothing may be started in here: it
    would have root as its real user. `os.access` goes by the real user unless told `effective_ids`.
    """
    if user is None:
        yield
        return
    set_groups, set_gids, set_uids = SYSTEM_CALLS[platform.machine()]
    before = os.getgroups()
    try:
        _call(set_groups, len(user.groups), (ctypes.c_uint32 * len(user.groups))(*user.groups))
        _call(set_gids, _KEEP, user.gid, _KEEP)
        _call(set_uids, _KEEP, user.uid, _KEEP)
        yield
    finally:
        _call(set_uids, _KEEP, 0, _KEEP)
        _call(set_gids, _KEEP, 0, _KEEP)
        _call(set_groups, len(before), (ctypes.c_uint32 * len(before))(*before))


def drop_privileges() -> None:
    """Nothing that this thread starts gains privileges, by setuid or otherwise."""
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
