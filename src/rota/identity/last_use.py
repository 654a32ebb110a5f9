"""When each token was last used, to the minute: in memory, and once a minute in a file. [I/O]

A crash loses the last minute. Each server records only the requests that it has served itself.
"""

import contextlib
import threading
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from rota.identity import files
from rota.identity.errors import Unsafe

FILE = "last-used.json"  # beside the vault
MINUTE_MS = 60_000
WRITE_SECONDS = 60.0
MAX_FILE_BYTES = 4 << 20


class LastUses:
    """Times of use by token id; those of tokens that are not `known` any more are dropped."""

    def __init__(self, path: Path, known: Callable[[], Collection[str]]) -> None:
        self._path = path
        self._known = known
        self._at_ms = _read(path)
        self._lock = threading.Lock()
        self._writing: threading.Timer | None = None

    def record(self, token: str, now_ms: int) -> None:
        """Record a use. Without the lock in the usual case, because every request calls this."""
        minute_ms = now_ms - now_ms % MINUTE_MS
        # Race: two threads may both get past this. They store the same minute, so no use is lost.
        if self._at_ms.get(token) == minute_ms:
            return
        with self._lock:
            self._at_ms[token] = minute_ms
            if self._writing is None:
                self._writing = threading.Timer(WRITE_SECONDS, self.write)
                self._writing.daemon = True
                self._writing.start()

    def get(self, token: str) -> int | None:
        return self._at_ms.get(token)

    def write(self) -> None:
        with self._lock:
            # Before the write: a use that is recorded during it starts the next timer.
            self._writing = None
            known = self._known()
            self._at_ms = {token: at_ms for token, at_ms in self._at_ms.items() if token in known}
            content = msgspec.json.encode(self._at_ms)
        # Without the lock: requests must not wait for the disk.
        with contextlib.suppress(OSError):  # a full disk: it is written later
            files.write_private(self._path, content)


def _read(path: Path) -> dict[str, int]:
    """The stored times; none if the file is missing or damaged, as nothing depends on it."""
    try:
        return msgspec.json.decode(files.read_private(path, MAX_FILE_BYTES), type=dict[str, int])
    except (OSError, Unsafe, msgspec.MsgspecError):
        return {}
