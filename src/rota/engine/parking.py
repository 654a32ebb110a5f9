"""Internal faults -> which keys and records are parked, for how long, and what operators see of it.

A *key* is parked when deciding it failed: only that reconciler skips it. A *subject*, which is a job, a node
or another single record, is parked when one of its records could not be applied: nothing is written about
it, and the scheduler does not see a parked job. Both are tried again after a backoff that doubles. A subject
that could not be loaded is *set aside*: it is not in the mirror, and stays so until everything is read again.

Invariant: what is parked or set aside is never written, so its stored records stay as they were.
"""

from collections import Counter, deque
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from rota.engine.workqueue import WorkItem
from rota.model.ids import JobId, NodeId
from rota.model.limits import PARKED_FIRST_MS, PARKED_LAST_MS, REBUILD_SHARE
from rota.model.plan import EventRecord, Instant

_ERROR_CHARS = 200  # of an error's text, which may quote a request
_LOAD = "load"  # in place of a reconciler's name
# Events that wait for the next commit. Bounded, because no commit may succeed while faults go on.
_PENDING_EVENTS_MAX = 1_000


class FaultStage(StrEnum):
    """Where an exception was raised."""

    DECIDE = "decide"
    APPLY = "apply"
    WAKE = "wake"
    ENCODE = "encode"
    TELL = "tell"
    LOAD = "load"


class Parked(msgspec.Struct, frozen=True):
    """One key or subject that is skipped."""

    reconciler: str  # that failed on it; or "listener" for a commit hook; "load" for a subject set aside
    key: str  # or the subject, as in job/12
    error: str
    since: Instant
    times: int  # failures in a row
    retry_at_ms: int | None  # cluster time; None: when everything is read again
    firm: bool  # a change of records does not end the backoff earlier


class InternalFault(NamedTuple):
    """One exception, for the log and the counters."""

    stage: FaultStage
    reconciler: str
    key: str
    error: Exception
    is_loud: bool  # False: the same fault was logged before


def describe_error(error: Exception) -> str:
    text = str(error)
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:_ERROR_CHARS]


class Parking:
    """Parked keys and subjects. It outlives the loop and the mirror, which are replaced by a reload."""

    def __init__(self) -> None:
        self.keys: dict[WorkItem, Parked] = {}
        self.subjects: dict[str, Parked] = {}
        self.counts: Counter[str] = Counter()  # faults since this process started, by stage
        self.faults: deque[InternalFault] = deque(maxlen=_PENDING_EVENTS_MAX)  # not yet logged by the driver
        self.last: InternalFault | None = None
        self._pending_events: deque[EventRecord] = deque(maxlen=_PENDING_EVENTS_MAX)
        self._released: dict[str, Parked] = {}  # subjects that are being tried again
        self._rebuilding_ms = 0  # duration of the last rebuild of the mirror
        self._rebuilt_at_ms: int | None = None

    def all(self) -> list[Parked]:
        return [*self.keys.values(), *self.subjects.values()]

    # ---- faults

    def record_fault(
        self, stage: FaultStage, due: WorkItem, error: Exception, *, is_loud: bool = True
    ) -> None:
        """Count a fault and queue it for the driver, which logs it."""
        self.counts[stage] += 1
        self.last = InternalFault(stage, due.reconciler, due.key, error, is_loud)
        self.faults.append(self.last)

    def park_key(
        self, stage: FaultStage, due: WorkItem, error: Exception, now: Instant, *, firm: bool
    ) -> Parked:
        before = self.keys.get(due)
        # Failing again before the backoff is over must not double
        # it: a burst of wakes would park a key for very long.
        if before is not None and before.firm and now.ms < (before.retry_at_ms or 0):
            self.record_fault(stage, due, error, is_loud=False)
            return before
        parked = self._failed_again(before, due.reconciler, due.key, error, now, firm=firm)
        self.keys[due] = parked
        self._report(stage, due, error, parked)
        return parked

    def park_subject(
        self, stage: FaultStage, due: WorkItem, subject: str, error: Exception, now: Instant
    ) -> None:
        # A subject that fails again right after its release continues its backoff instead of starting over.
        before = self.subjects.get(subject) or self._released.pop(subject, None)
        parked = self._failed_again(before, due.reconciler, subject, error, now, firm=True)
        self.subjects[subject] = parked
        self._report(stage, WorkItem(due.reconciler, subject), error, parked)

    def stand_by(self) -> None:
        """Forget backoffs on a standby, which decides nothing; what could not be loaded stays aside."""
        self.keys.clear()
        self._released.clear()
        # Unreadable records stay unreadable whether or not
        # this server decides, so these subjects stay aside.
        self.subjects = {name: parked for name, parked in self.subjects.items() if parked.retry_at_ms is None}

    def loaded(self, aside: Mapping[str, Exception], now: Instant) -> None:
        """Record a full load: exactly these subjects could not be loaded."""
        before = [subject for subject, parked in self.subjects.items() if parked.retry_at_ms is None]
        for subject in before:
            if subject not in aside:
                self._recover(self.subjects.pop(subject))
        self.set_aside(aside, now)

    def set_aside(self, aside: Mapping[str, Exception], now: Instant) -> None:
        for subject, error in aside.items():
            known = self.subjects.get(subject)
            if known is None or known.retry_at_ms is not None:
                parked = Parked(_LOAD, subject, describe_error(error), now, 1, None, True)
                self.subjects[subject] = parked
                self._report(FaultStage.LOAD, WorkItem(_LOAD, subject), error, parked)

    # ---- trying again

    def unpark(self, due: WorkItem) -> None:
        parked = self.keys.pop(due, None)
        if parked is not None:
            self._recover(parked)

    def release(self, now: Instant) -> list[str]:
        """Pop the subjects whose backoff is over; those that have not failed again since are recovered."""
        for subject, parked in list(self._released.items()):
            # Recovered only after it worked for as long as it was
            # parked, so that the event is not sent too early.
            if parked.retry_at_ms is not None and now.ms >= parked.retry_at_ms + _backoff_ms(parked.times):
                self._recover(self._released.pop(subject))
        due = [
            subject
            for subject, parked in self.subjects.items()
            if parked.retry_at_ms is not None and parked.retry_at_ms <= now.ms
        ]
        for subject in due:
            # Kept in `_released` to remember how often it failed.
            self._released[subject] = self.subjects.pop(subject)
        return due

    def next_at(self) -> int | None:
        """The cluster time at which `release` has something to do."""
        times = [parked.retry_at_ms for parked in self.subjects.values() if parked.retry_at_ms is not None]
        times += [
            parked.retry_at_ms + _backoff_ms(parked.times)
            for parked in self._released.values()
            if parked.retry_at_ms is not None
        ]
        return min(times, default=None)

    # ---- rebuilding the mirror

    def rebuilt(self, now_ms: int, took_ms: int) -> None:
        """Record a rebuild of a tainted mirror; what caused it backs off for a multiple of its duration."""
        self._rebuilt_at_ms, self._rebuilding_ms = now_ms, took_ms
        # A rebuild reads the whole store: backing off by a multiple
        # of its duration bounds the share of time spent on it.
        until_ms = now_ms + took_ms * REBUILD_SHARE
        for due, parked in self.keys.items():
            if parked.firm and parked.retry_at_ms is not None:
                self.keys[due] = _not_before(parked, until_ms)
        for subject, parked in self.subjects.items():
            if parked.retry_at_ms is not None:
                self.subjects[subject] = _not_before(parked, until_ms)

    def is_wary(self, now_ms: int) -> bool:
        """Whether the last rebuild is so recent that another one would take too large a share of the time."""
        at_ms = self._rebuilt_at_ms
        return at_ms is not None and now_ms < at_ms + max(
            PARKED_FIRST_MS, self._rebuilding_ms * REBUILD_SHARE
        )

    # ---- for the next commit

    def drain_events(self) -> tuple[EventRecord, ...]:
        events = tuple(self._pending_events)
        self._pending_events.clear()
        return events

    # ---- inside

    def _failed_again(
        self, before: Parked | None, reconciler: str, key: str, error: Exception, now: Instant, *, firm: bool
    ) -> Parked:
        times = 1 if before is None else before.times + 1
        since = now if before is None else before.since
        # Once firm, always firm: a later, milder fault must not shorten the backoff of a livelocked key.
        firm = firm or (before is not None and before.firm)
        return Parked(reconciler, key, describe_error(error), since, times, now.ms + _backoff_ms(times), firm)

    def _report(self, stage: FaultStage, due: WorkItem, error: Exception, parked: Parked) -> None:
        """Record a fault: an event for the first failure, a log line each time the count doubles."""
        # Logged when the count is a power of two: a permanent fault must not fill the log.
        self.record_fault(stage, due, error, is_loud=parked.times & (parked.times - 1) == 0)
        if parked.times == 1:
            then = "it is left alone" if parked.retry_at_ms is None else "it is tried again after a pause"
            # Not the error's text: all users may see this event, and the text may quote one user's job.
            why = f"{parked.reconciler} failed on {parked.key} ({type(error).__name__}): {then}"
            self._pending_events.append(_event("engine.parked", why, parked.key))

    def _recover(self, parked: Parked) -> None:
        why = f"{parked.reconciler} works on {parked.key} again"
        self._pending_events.append(_event("engine.recovered", why, parked.key))


def _backoff_ms(times: int) -> int:
    # The shift is bounded: an unbounded one would make a huge integer before min() is applied.
    return min(PARKED_LAST_MS, PARKED_FIRST_MS << min(times - 1, 20))


def _not_before(parked: Parked, at_ms: int) -> Parked:
    return msgspec.structs.replace(parked, retry_at_ms=max(parked.retry_at_ms or 0, at_ms))


def _event(kind: str, why: str, key: str) -> EventRecord:
    head, _, name = key.partition("/")
    match head:
        case "job":
            return EventRecord(kind, why, job=JobId(name))
        case "node":
            return EventRecord(kind, why, node=NodeId(name))
        case _:
            return EventRecord(kind, why)
