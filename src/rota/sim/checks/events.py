"""Event streams: each event arrives once and in order, or the subscriber learns that its cursor expired."""

import bisect

from rota.apiserver.streams.event_cursor import AFTER_LAST_EVENT, CommitEvents, EventCursor, SequencedEvent
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World
from rota.store import codec
from rota.store.protocol import Batch

LATE_MS = 15_000  # for which a healthy subscriber may wait for a committed event


class EventChecks:
    """All committed events, and the position of each subscriber."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._happened: list[SequencedEvent] = []
        self._at: list[EventCursor] = []
        self._committed_ms: list[int] = []
        self._next: dict[str, int] = {}  # by subscriber: index of the next event it must receive
        # Up to which index it may skip, because the store has deleted events.
        self._skips: dict[str, int] = {}
        self._acknowledged: dict[str, EventCursor] = {}  # acknowledgements that a server has answered

    def committed(self, batch: Batch, revision: int) -> None:
        if batch.events is not None:
            for happened in CommitEvents(revision, *codec.decode_events(batch.events)).sequenced():
                self._happened.append(happened)
                self._at.append(happened.at)
                self._committed_ms.append(self._world.now_ms)

    def acknowledged(self, subscriber: str, at: EventCursor) -> None:
        self._acknowledged[subscriber] = max(at, self._acknowledged.get(subscriber, at))

    def started(self, subscriber: str, at: EventCursor, oldest: int) -> None:
        """A stream started after `at`; the store has deleted revisions before `oldest`."""
        self._next[subscriber] = bisect.bisect_right(self._at, at)
        self._skips.pop(subscriber, None)
        if at.index == AFTER_LAST_EVENT:  # no event was received yet: deleted ones are skipped, not missed
            self._skips[subscriber] = bisect.bisect_left(self._at, EventCursor(oldest, 0))

    def resumed(self, subscriber: str, at: EventCursor, last: EventCursor | None) -> None:
        """A stream resumed at `at`; asked for was `last`, or what it has acknowledged if None."""
        least = self._acknowledged.get(subscriber, at) if last is None else last
        if at < least or last not in (None, at):
            raise InvariantBroken(f"{subscriber} had received {least} and resumes from {at}")

    def received(self, subscriber: str, happened: SequencedEvent) -> None:
        place = self._next[subscriber]
        skipped = bisect.bisect_left(self._at, happened.at)
        # A server's memory may reach further back than the store.
        if place < skipped <= self._skips.pop(subscriber, 0):
            place = self._next[subscriber] = skipped
        expected = self._happened[place] if place < len(self._happened) else None
        if happened != expected:
            expected_at = "nothing" if expected is None else expected.at
            raise InvariantBroken(f"{subscriber} was sent {happened.at}, and {expected_at} was expected")
        self._next[subscriber] += 1

    def check(self, subscriber: str, well_ms: int) -> None:
        """Check a subscriber whose stream was healthy for `well_ms`."""
        place = max(self._next.get(subscriber, len(self._happened)), self._skips.get(subscriber, 0))
        if well_ms > LATE_MS and place < len(self._happened):
            waits_ms = self._world.now_ms - self._committed_ms[place]
            if waits_ms > LATE_MS:
                raise InvariantBroken(
                    f"{subscriber} was not sent {self._at[place]} for {min(well_ms, waits_ms)} ms"
                )
