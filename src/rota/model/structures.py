"""Data structures without numpy: a change log with readers, and a property that is computed once."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class ChangeLog(Generic[T]):
    """An append-only list that drops its older half when full. Each reader remembers its own position."""

    def __init__(self, entries_max: int) -> None:
        self._entries: list[T] = []
        self._dropped = 0
        self._entries_max = entries_max

    @property
    def position(self) -> int:
        return self._dropped + len(self._entries)

    def add(self, entry: T) -> None:
        self._entries.append(entry)
        # Half at a time, so that the cost per entry is constant. A reader that was left behind starts over.
        if len(self._entries) > self._entries_max:
            count = len(self._entries) // 2
            del self._entries[:count]
            self._dropped += count

    def since(self, position: int) -> list[T] | None:
        """Entries added after that position; None: some of them were dropped, and the reader starts over."""
        if position < self._dropped:
            return None
        return self._entries[position - self._dropped :]


class lazy(Generic[T]):  # noqa: N801 - it is used as `property` is
    """Like `functools.cached_property`, which before Python 3.12 takes a lock at each first access."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> T | Self:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._make(instance)
        return value
