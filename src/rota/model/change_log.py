"""Log: what changed, in order; each reader remembers its own position in it."""

from typing import Generic, TypeVar

T = TypeVar("T")


class ChangeLog(Generic[T]):
    """An append-only list that drops its older half when full; a reader that fell behind starts over."""

    def __init__(self, entries_max: int) -> None:
        self._entries: list[T] = []
        self._dropped = 0
        self._entries_max = entries_max

    @property
    def position(self) -> int:
        return self._dropped + len(self._entries)

    def add(self, entry: T) -> None:
        self._entries.append(entry)
        if len(self._entries) > self._entries_max:
            count = len(self._entries) // 2
            del self._entries[:count]
            self._dropped += count

    def since(self, position: int) -> list[T] | None:
        """Entries added after that position; None: some of them are no longer kept."""
        if position < self._dropped:
            return None
        return self._entries[position - self._dropped :]
