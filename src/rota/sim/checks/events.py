"""What subscribers were to be told, and what they were: everything once and in order, or that it is gone."""

import bisect

from rota.apiserver.streams.event_cursor import AFTER_LAST_EVENT, CommitEvents, EventCursor, SequencedEvent
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World
from rota.store import codec
from rota.store.protocol import Batch

LATE_MS = 15_000  # a subscriber that could be told for so long, and was not, is forgotten


class EventChecks:
    """Every event that was ever committed, and how far each subscriber has come."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._happened: list[SequencedEvent] = []
        self._at: list[EventCursor] = []
        self._committed_ms: list[int] = []
        self._next: dict[str, int] = {}  # by subscriber: which it has to hear next
        self._skips: dict[str, int] = {}  # up to which it may hear first, where the store has forgotten some
        self._acknowledged: dict[str, EventCursor] = {}  # and a server has answered

    def committed(self, batch: Batch, revision: int) -> None:
        if batch.events is not None:
            for happened in CommitEvents(revision, *codec.decode_events(batch.events)).sequenced():
                self._happened.append(happened)
                self._at.append(happened.at)
                self._committed_ms.append(self._world.now_ms)

    def acknowledged(self, subscriber: str, at: EventCursor) -> None:
        self._acknowledged[subscriber] = max(at, self._acknowledged.get(subscriber, at))

    def begun(self, subscriber: str, at: EventCursor, oldest: int) -> None:
        """It is told what comes behind that position; older revisions than `oldest` are no longer kept."""
        self._next[subscriber] = bisect.bisect_right(self._at, at)
        self._skips.pop(subscriber, None)
        if at.index == AFTER_LAST_EVENT:  # who was told nothing yet has no place to be behind of
            self._skips[subscriber] = bisect.bisect_left(self._at, EventCursor(oldest, 0))

    def resumed(self, subscriber: str, at: EventCursor, last: EventCursor | None) -> None:
        """It has asked for what comes behind `last`; None: behind what it has acknowledged."""
        least = self._acknowledged.get(subscriber, at) if last is None else last
        if at < least or last not in (None, at):
            raise InvariantBroken(f"{subscriber} had come to {least} and goes on from {at}")

    def told(self, subscriber: str, happened: SequencedEvent) -> None:
        place = self._next[subscriber]
        skipped = bisect.bisect_left(self._at, happened.at)
        if place < skipped <= self._skips.pop(subscriber, 0):  # a server may remember more than the store
            place = self._next[subscriber] = skipped
        expected = self._happened[place] if place < len(self._happened) else None
        if happened != expected:
            wanted = "nothing" if expected is None else expected.at
            raise InvariantBroken(f"{subscriber} was told {happened.at}, and to come was {wanted}")
        self._next[subscriber] += 1

    def check(self, subscriber: str, well_ms: int) -> None:
        """It could be told everything for so long now."""
        place = max(self._next.get(subscriber, len(self._happened)), self._skips.get(subscriber, 0))
        if well_ms > LATE_MS and place < len(self._happened):
            waits_ms = self._world.now_ms - self._committed_ms[place]
            if waits_ms > LATE_MS:
                raise InvariantBroken(
                    f"{subscriber} was not told {self._at[place]} for {min(well_ms, waits_ms)} ms"
                )
