"""EventHub: wakes the streams of this server after each commit, and reads events for them by cursor. [I/O]

Readers pull: nothing is queued for them, so that a slow reader needs no memory and delays no other.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager

from rota.apiserver.streams import event_cursor
from rota.apiserver.streams.event_cursor import CommitEvents, EventCursor, RecentEvents, SequencedEvent
from rota.engine.run import Committed, Engine
from rota.model.ids import JobId
from rota.store import codec
from rota.store.protocol import EventRow

UPDATES_PER_SECOND = 20  # of one job, for one follower
UPDATES_AT_ONCE = 8  # burst: the states of a short job are sent without delay
STORED_AT_ONCE = 5000  # rows read from the store to find the newest ones
KEEP_ALIVE_SECONDS = 10.0
_JOB_RECORDS = ("job", "task", "attempt", "status")


class JobChangeSignal:
    """Wakes one follower of a job when the job has changed since the follower read it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self._credit = float(UPDATES_AT_ONCE)
        self._counted_at = asyncio.get_running_loop().time()

    async def wait(self) -> bool:
        """Wait for a change; False: none for KEEP_ALIVE_SECONDS. Throttled, except for the end of the job."""
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await self.changed.wait()
        except TimeoutError:
            return False
        await self._throttle()
        # Cleared before the follower reads: a change during its read wakes it again.
        self.changed.clear()
        return True

    async def _throttle(self) -> None:
        now = asyncio.get_running_loop().time()
        self._credit = min(UPDATES_AT_ONCE, self._credit + (now - self._counted_at) * UPDATES_PER_SECOND)
        self._counted_at = now
        # A token bucket that may go negative: a follower waits for exactly what it is in
        # debt, and bursts stay bounded.
        self._credit -= 1
        if self._credit < 0:
            try:
                # The end of the job cuts the wait short: a client that waits for a job must
                # not be delayed by the throttle.
                async with asyncio.timeout(-self._credit / UPDATES_PER_SECOND):
                    await self.ended.wait()
            except TimeoutError:
                pass


class EventHub:
    """Receives every commit by a hook; keeps recent events in memory and reads older ones from the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._recent = RecentEvents()
        self._new_events = asyncio.Event()
        self._followers: dict[JobId, list[JobChangeSignal]] = {}
        engine.on_commit(self._on_commit)

    async def events_after(self, position: EventCursor) -> AsyncGenerator[list[SequencedEvent], None]:
        """All events after the cursor, each once and in order, then new ones; [] after a quiet while."""
        while True:
            # Taken before the read: an event committed between read and wait has set it already. A race here
            # would delay that event until the next one.
            news = self._new_events
            found = await self.page_after(position)
            if found:
                yield found
                position = found[-1].at
                continue
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await news.wait()
            except TimeoutError:
                yield []

    async def page_after(self, position: EventCursor) -> list[SequencedEvent]:
        """The next events after the cursor; [] if there are none yet."""
        # Pages bound what is held for one reader; it asks for the next when it has sent this one.
        found = self._recent.page_after(position, event_cursor.ROWS_AT_ONCE)
        if found is None:
            stored = await self._engine.store.events(
                event_cursor.revision_before(position), event_cursor.ROWS_AT_ONCE
            )
            found = event_cursor.resume_from_store(position, [_decode_row(row) for row in stored])
        return found

    async def newest(self, most: int, fits: Callable[[SequencedEvent], bool]) -> list[SequencedEvent]:
        """The last events that fit, oldest first; events far in the past are not searched."""
        rows = self._recent.rows
        floor = self._engine.revision if self._recent.floor is None else self._recent.floor
        stored: list[CommitEvents] = []
        if len(rows) < STORED_AT_ONCE:
            # Bounded: a filter that matches little must not read the whole store.
            older = await self._engine.store.events(max(0, floor - STORED_AT_ONCE), STORED_AT_ONCE)
            stored = [_decode_row(row) for row in older if row.revision <= floor]
        found: list[SequencedEvent] = []
        for row in (*reversed(rows), *reversed(stored)):
            found += filter(fits, reversed(list(row.sequenced())))
            if len(found) >= most:
                break
        return found[most - 1 :: -1] if len(found) > most else found[::-1]

    def latest_cursor(self) -> EventCursor:
        """A cursor after all events that are committed."""
        return self._recent.latest_cursor(self._engine.revision)

    def check_cursor(self, position: EventCursor) -> None:
        event_cursor.check_cursor(position, self._engine.revision)

    @contextmanager
    def follow_job(self, job: JobId) -> Iterator[JobChangeSignal]:
        """A signal that is set when a record of the job changes. It has to exist before the job is read."""
        signal = JobChangeSignal()
        self._followers.setdefault(job, []).append(signal)
        try:
            yield signal
        finally:
            self._followers[job].remove(signal)
            if not self._followers[job]:
                del self._followers[job]

    def _on_commit(self, committed: Committed) -> None:
        if committed.decided.commits:
            self._recent.on_commit(CommitEvents(committed.revision, committed.wall_ms, committed.events))
            self._wake_followers(committed)
        else:  # a full reload, with no commit of its own
            self._recent.on_reload(committed.revision)
            # After a reload it is not known which jobs changed, so every follower reads again.
            self._wake_all_followers()
        if committed.events or not committed.decided.commits:
            # Replaced instead of cleared: a reader that took the event before and waits for it only later is
            # still woken.
            self._new_events.set()
            self._new_events = asyncio.Event()

    def _wake_followers(self, committed: Committed) -> None:
        if not self._followers:
            return
        touched: dict[str, None] = {}
        for key in (*committed.decided.puts, *committed.decided.deletes):
            kind, job, *_ = key.split("/", 2)
            # Derived from keys, not from events: some changes of a job, such as counts, have no event.
            if kind in _JOB_RECORDS:
                touched[job] = None
        for job in touched:
            self._wake_followers_of(JobId(job))

    def _wake_all_followers(self) -> None:
        for job in self._followers:
            self._wake_followers_of(job)

    def _wake_followers_of(self, job: JobId) -> None:
        for signal in self._followers.get(job, ()):
            entry = self._engine.mirror.jobs.get(job)
            signal.changed.set()
            if entry is None or (entry.status is not None and entry.status.ended):
                signal.ended.set()


def _decode_row(row: EventRow) -> CommitEvents:
    wall_ms, events = codec.decode_events(row.row)
    return CommitEvents(row.revision, wall_ms, events)
