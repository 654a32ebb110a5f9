"""Store: what the engine needs of a database. Keys, bytes and fenced transactions; it knows no records."""

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
    """The next epoch; the highest that a store can hold is repeated, so that the server can still start."""
    return min(epoch + 1, EPOCH_MAX)


class Batch(NamedTuple):
    """One transaction, applied whole or not at all: only if `epoch` leads and `after` is the last revision.

    So a deposed leader can write nothing, and nothing is written from a view that missed a commit.
    """

    epoch: int
    after: int  # the revision that the batch was decided on
    time_ms: int  # cluster time
    wall_ms: int
    puts: Sequence[tuple[str, bytes]]
    deletes: Sequence[str]
    events: bytes | None  # one packed row


class CommitChange(NamedTuple):
    """A commit of the leader, as a standby sees it."""

    revision: int
    time_ms: int
    puts: Sequence[tuple[str, bytes]]
    deletes: Sequence[str]
    events: bytes | None  # one packed row


class EventRow(NamedTuple):
    revision: int
    row: bytes


class Store(Protocol):
    """Eight operations. Errors: `Unavailable` (`StaleState`, `Damaged`), `StoreFull`, `LostLeadership`.

    `Unavailable` from `commit` leaves the outcome unknown: the batch may have been applied, or be applied
    later.
    """

    name: str

    async def acquire_epoch(self, above: int = 0) -> int:
        """Raise the epoch beyond the last one and beyond `above`; durable on return.

        From then on no commit of an earlier epoch can succeed.
        """

    async def read(self) -> Snapshot: ...

    async def commit(self, batch: Batch) -> int:
        """Make a batch durable and return its revision, which is one more than the last."""

    async def events(self, after: int, limit: int) -> list[EventRow]:
        """Rows of the revisions above `after`, oldest first."""

    async def forget_events(self, before_wall_ms: int) -> None: ...

    async def load_snapshot(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        """Fill a store without commits, all or nothing; rows are as `codec.encode_events` makes them."""

    async def has_space(self) -> bool:
        """Whether new work may be accepted; if not, only ends of running work should be written."""

    async def close(self) -> None: ...
