"""Read-your-writes: the highest revision seen, sent with each request."""

from http.client import HTTPMessage

_REVISION, _AGE = "Rota-Revision", "Rota-Age-Ms"


class SeenRevision:
    """The highest revision that any answer showed, and the age of the last answer. Threads may share it."""

    def __init__(self) -> None:
        self._revision = 0
        self.age_ms = 0  # 0: answered by the leader

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the next request: a standby waits until it has this revision, or asks the leader."""
        return {_REVISION: str(self._revision)} if self._revision else {}

    def update(self, headers: HTTPMessage) -> None:
        # Never backwards: answers of two threads may arrive in the other order, or
        # come from an older standby.
        self._revision = max(self._revision, _number(headers.get(_REVISION)))
        self.age_ms = _number(headers.get(_AGE))


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0
