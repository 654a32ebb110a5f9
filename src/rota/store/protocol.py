"""Store: the medium below the engine. Keys, bytes and fenced transactions; no rules of the domain."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rota.model.limits import EPOCH_MAX


class Snapshot(NamedTuple):
    """Everything, at one revision."""

    revision: int
    epoch: int
    time_ms: int  # the cluster time of the last commit
    records: Mapping[str, bytes]


def next_epoch(epoch: int) -> int:
    """The one after it; after the last that a store can hold, that one again, so that it can still be led."""
    return min(epoch + 1, EPOCH_MAX)


class Batch(NamedTuple):
    """One transaction: all of it or nothing, and only while `epoch` leads and `after` is the last revision.

    So nothing is ever written by who was deposed, nor from a view that missed a commit.
    """

    epoch: int
    after: int
    time_ms: int
    wall_ms: int
    puts: Sequence[tuple[str, bytes]]
    deletes: Sequence[str]
    events: bytes | None  # one packed row


class CommitChange(NamedTuple):
    """A commit that somebody else made, as it was heard of."""

    revision: int
    time_ms: int
    puts: Sequence[tuple[str, bytes]]
    deletes: Sequence[str]
    events: bytes | None  # one packed row


class EventRow(NamedTuple):
    revision: int
    row: bytes


class Store(Protocol):
    """Eight verbs. Failures are `Unavailable` (`Outdated`, `Damaged`), `StoreFull` or `Deposed`, no other."""

    name: str

    async def acquire_epoch(self, above: int = 0) -> int:
        """Raise the epoch, above that number too, and return it; who led before can write nothing more."""

    async def read(self) -> Snapshot: ...

    async def commit(self, batch: Batch) -> int:
        """Make it durable and return its revision: one more than the last."""

    async def events(self, after: int, limit: int) -> list[EventRow]:
        """Rows of the revisions above `after`, oldest first."""

    async def forget_events(self, before_wall_ms: int) -> None: ...

    async def load_snapshot(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        """Of a store without commits: become this or stay empty. Rows are as `encode_events` makes them."""

    async def has_space(self) -> bool:
        """Whether more may be written than how that ended which runs already."""

    async def close(self) -> None: ...
