"""Subscriber: an external controller and the last event it acknowledged; which of them are connected."""

from collections.abc import Iterable

import msgspec

from rota.model.ids import Key


class Subscriber(msgspec.Struct, frozen=True):
    """The position of a subscriber in the event log. Written by apiserver."""

    name: str
    revision: int
    index: int
    owner: str = ""  # of the token that created it; empty: created before owners were recorded

    def belongs_to(self, owner: str) -> bool:
        """Whether it belongs to this owner, and not to an earlier token of the same name."""
        return not self.owner or self.owner == owner

    @property
    def key(self) -> Key:
        return Key(f"subscriber/{self.name}")


class SubscriberPresence:
    """Which subscribers are connected, as seen by this process: an observation, never stored."""

    def __init__(self, since_ms: int = 0) -> None:
        self._since_ms = since_ms  # when this process started to observe
        self._streams: dict[str, int] = {}
        self._left_ms: dict[str, int] = {}

    def connected_one(self, name: str) -> None:
        self._streams[name] = self._streams.get(name, 0) + 1

    def disconnected_one(self, name: str, now_ms: int) -> None:
        # Counted, not a flag: a subscriber that reconnects opens the new stream before the server
        # notices the end of the old one.
        streams = self._streams.pop(name, 0) - 1
        if streams > 0:
            self._streams[name] = streams
        else:
            self._left_ms[name] = now_ms

    def connected(self, user: str) -> list[str]:
        """The names under which subscribers of this user are connected."""
        return names_of(user, self._streams)

    def is_young(self, now_ms: int, wait_ms: int) -> bool:
        """Whether this process started so recently that subscribers may not have reconnected yet."""
        return now_ms - self._since_ms < wait_ms

    def absent_since(self, name: str) -> int | None:
        """Cluster time since when it is absent, at most since this process started; None: it is connected."""
        return None if name in self._streams else self._left_ms.get(name, self._since_ms)


def names_of(user: str, subscribers: Iterable[str]) -> list[str]:
    """The names of a user's subscribers among these, which are given as user:name."""
    prefix = f"{user}:"
    return sorted(name.removeprefix(prefix) for name in subscribers if name.startswith(prefix))
