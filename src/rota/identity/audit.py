"""The audit log: one line of JSON per change or refusal, in files that are rotated by size.

A caller without a token decides how many refusals there are. So refusals that are equal in address, caller,
action and outcome make one line immediately and one more, with a `count`, after AUDIT_COUNT_SECONDS: the
bytes written in an interval do not depend on how many there were.
"""

import contextlib
import errno
import os
import stat
import threading
from pathlib import Path

import msgspec
from msgspec.structs import replace

from rota.identity import files
from rota.identity.tokens import mask_secrets
from rota.model.limits import AUDIT_COUNT_SECONDS, AUDIT_FILE_BYTES, AUDIT_FILES, AUDIT_KINDS_MAX

AUDIT_FILE = "audit.log"  # in a server's data directory
MAX_FIELD_CHARACTERS = 1000  # a refused request may contain anything
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who did what to what, how it ended, and from which address. Nothing else is ever written.

    With a `count` the line stands for that many equal ones since the last such line.
    """

    at_ms: int
    who: str
    token: str = ""  # its id, as names may be reused once a token is deleted
    action: str
    target: str
    outcome: str
    origin: str = msgspec.field(name="from")
    count: int = 1


class AuditLog:
    """Appends entries from any thread. A line that cannot be written is counted in `dropped`, not raised."""

    def __init__(self, path: Path) -> None:
        self.dropped = 0
        self._path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._torn = False
        self._counted: dict[tuple[str, ...], AuditEntry | None] = {}  # None: no repetition so far
        self._interval: threading.Timer | None = None
        files.make_directory(path.parent)
        try:
            self._open()
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise

    def write(self, entry: AuditEntry) -> None:
        with self._lock:
            self._write(entry)

    def write_counted(self, entry: AuditEntry, *, by_target: bool = False) -> None:
        """Write the first entry of its kind, and at the end of the interval how many more there were."""
        target = entry.target if by_target else ""
        kind: tuple[str, ...] = (_address(entry.origin), entry.who, entry.action, entry.outcome, target)
        with self._lock:
            # Bounded: refused requests come from anywhere and may name any caller.
            if kind not in self._counted and len(self._counted) >= AUDIT_KINDS_MAX:
                kind = ("others",)
            if kind not in self._counted:
                self._counted[kind] = None
                self._write(entry)
                self._start_interval()
                return
            last = self._counted[kind]
            self._counted[kind] = replace(entry, count=1 if last is None else last.count + 1)

    def close(self) -> None:
        with self._lock:
            self._write_counts()
            self._close()

    def _start_interval(self) -> None:
        if self._interval is None:
            # One timer for all kinds; it starts with the first of
            # them, so that counts are never older than the interval.
            self._interval = threading.Timer(AUDIT_COUNT_SECONDS, self._end_interval)
            self._interval.daemon = True
            self._interval.start()

    def _end_interval(self) -> None:
        with self._lock:
            self._write_counts()

    def _write_counts(self) -> None:
        if self._interval is not None:
            self._interval.cancel()
            self._interval = None
        for entry in self._counted.values():
            if entry is not None:
                # Under the lock of the caller, so that no entry is counted between its write and the clear.
                self._write(entry)
        self._counted.clear()

    def _write(self, entry: AuditEntry) -> None:
        line = msgspec.json.encode(_clean(entry)) + b"\n"
        try:
            self._append(line)
        except OSError:
            self.dropped += entry.count

    def _append(self, line: bytes) -> None:
        descriptor = self._rotated(self._current_file(), len(line))
        # After a torn line start a new one, so that a full disk damages one line and not two.
        data = b"\n" + line if self._torn else line
        written = os.write(descriptor, data)
        if written == len(data):
            self._torn = False
            return
        self._torn = True
        self.dropped += 1

    def _rotated(self, descriptor: int, needed: int) -> int:
        """The file to append to, a new one if `needed` bytes would make it too large."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size + needed < AUDIT_FILE_BYTES:
            return descriptor
        for number in range(AUDIT_FILES - 1, 0, -1):
            before = self._path if number == 1 else self._rotated_path(number - 1)
            with contextlib.suppress(FileNotFoundError):
                os.replace(before, self._rotated_path(number))
        return self._current_file()

    def _rotated_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _current_file(self) -> int:
        """The file at the path; opened again after a rotation by this or another process."""
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
        count=entry.count,
    )


def _address(origin: str) -> str:
    """`ipv4:10.0.0.1:5000`, as gRPC names a peer -> the same without its port."""
    return origin.rpartition(":")[0] if origin.startswith(("ipv4:", "ipv6:")) else origin


def _text(value: str) -> str:
    # Ordering: mask first, because a truncated secret would no longer be recognised.
    readable = value.encode("utf-8", "replace").decode()
    return mask_secrets(readable)[:MAX_FIELD_CHARACTERS]
