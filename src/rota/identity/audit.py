"""One line of JSON per change or refusal, appended to a file that only ever grows."""

import errno
import os
import stat
import threading
from pathlib import Path

import msgspec

from rota.identity import files
from rota.identity.tokens import masked

AUDIT_FILE = "audit.log"  # in a server's data directory
MAX_FIELD_CHARACTERS = 1000  # a refused request may have been made of anything
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what to what, how it ended, and from which address. Nothing else is ever written."""

    at_ms: int
    who: str
    token: str = ""  # id: names may be used again once a token is gone
    action: str
    target: str
    outcome: str
    origin: str = msgspec.field(name="from")


class AuditLog:
    """Never stops its caller: a line that cannot be written is counted in `dropped`."""

    def __init__(self, path: Path) -> None:
        self.dropped = 0
        self._path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._torn = False
        files.make_directory(path.parent)
        try:
            self._open()
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise

    def write(self, entry: AuditEntry) -> None:
        line = msgspec.json.encode(_clean(entry)) + b"\n"
        with self._lock:
            try:
                self._append(line)
            except OSError:
                self.dropped += 1

    def close(self) -> None:
        with self._lock:
            self._close()

    def _append(self, line: bytes) -> None:
        descriptor = self._follow()
        # After a torn line a new one begins, so that a full disk spoils one line and not two.
        whole = b"\n" + line if self._torn else line
        written = os.write(descriptor, whole)
        if written == len(whole):
            self._torn = False
            return
        self._torn = True
        self.dropped += 1

    def _follow(self) -> int:
        """The file that is at the path now, which after a rotation is a new one."""
        if self._descriptor is not None and _is_at(self._path, self._descriptor):
            return self._descriptor
        self._close()
        return self._open()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, files.PRIVATE_FILE)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            os.fchmod(descriptor, files.PRIVATE_FILE)
            self._torn = status.st_size > 0 and os.pread(descriptor, 1, status.st_size - 1) != b"\n"
        self._descriptor = descriptor
        return descriptor

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _clean(entry: AuditEntry) -> AuditEntry:
    return AuditEntry(
        at_ms=entry.at_ms,
        who=_text(entry.who),
        token=_text(entry.token),
        action=_text(entry.action),
        target=_text(entry.target),
        outcome=_text(entry.outcome),
        origin=_text(entry.origin),
    )


def _text(value: str) -> str:
    # Masked before it is cut, or a cut secret would no longer be recognised.
    readable = value.encode("utf-8", "replace").decode()
    return masked(readable)[:MAX_FIELD_CHARACTERS]
