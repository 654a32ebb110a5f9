"""When each token was used last, to the minute: in memory, and in a file now and then. [I/O]

A server that is killed forgets the last minute. Each server writes down what it has seen itself.
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
    """By the ids of tokens; `known` are those whose use is worth keeping."""

    def __init__(self, path: Path, known: Callable[[], Collection[str]]) -> None:
        self._path = path
        self._known = known
        self._at_ms = _read(path)
        self._lock = threading.Lock()
        self._writing: threading.Timer | None = None

    def note(self, token: str, now_ms: int) -> None:
        """Cheap: every request of a token passes here."""
        minute_ms = now_ms - now_ms % MINUTE_MS
        if self._at_ms.get(token) == minute_ms:
            return
        with self._lock:
            self._at_ms[token] = minute_ms
            if self._writing is None:
                self._writing = threading.Timer(WRITE_SECONDS, self.write)
                self._writing.daemon = True
                self._writing.start()

    def of(self, token: str) -> int | None:
        return self._at_ms.get(token)

    def write(self) -> None:
        with self._lock:
            self._writing = None
            known = self._known()
            self._at_ms = {token: at_ms for token, at_ms in self._at_ms.items() if token in known}
            content = msgspec.json.encode(self._at_ms)
        with contextlib.suppress(OSError):  # a full disk: it is kept in memory, and written later
            files.write_private(self._path, content)


def _read(path: Path) -> dict[str, int]:
    """Nothing where the file is damaged: it is of use, not of need."""
    try:
        return msgspec.json.decode(files.read_private(path, MAX_FILE_BYTES), type=dict[str, int])
    except (OSError, Unsafe, msgspec.MsgspecError):
        return {}
