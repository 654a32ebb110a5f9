"""What the servers have shown so far: none is to show less, and how old the last answer was."""

from http.client import HTTPMessage

_REVISION, _AGE = "Rota-Revision", "Rota-Age-Ms"


class SeenRevision:
    """Threads may share it: what is seen only grows."""

    def __init__(self) -> None:
        self._revision = 0
        self.age_ms = 0  # 0: it was the leader's answer

    @property
    def headers(self) -> dict[str, str]:
        """A server that stands by waits until it knows as much, or asks the one that leads."""
        return {_REVISION: str(self._revision)} if self._revision else {}

    def update(self, headers: HTTPMessage) -> None:
        self._revision = max(self._revision, _number(headers.get(_REVISION)))
        self.age_ms = _number(headers.get(_AGE))


def _number(said: str | None) -> int:
    return int(said) if said and said.isascii() and said.isdigit() else 0
