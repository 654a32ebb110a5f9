"""Changes in, batches of plans out: decides to rest over its own uncommitted writes. No store, no clock."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from rota.engine.mirror import Mirror
from rota.engine.reconciler import Command, Keys, Reconciler
from rota.engine.workqueue import Due, WorkQueue
from rota.model.errors import Bug, Conflict, NotFound, Rejected, RotaError, StoreFull, Unsettled, WrongOwner
from rota.model.ids import Key
from rota.model.limits import BATCH_KEYS_MAX, DECIDE_AGAIN_MAX, STALL_MS
from rota.model.plan import NOTHING, OWNERS, Event, Instant, Plan, Record

_OF_RECORDS = (NotFound, Conflict)  # refusals of what is known here: a commit shows that it is still so


class Request(msgspec.Struct, frozen=True):
    """A command somebody waits for, and the component in whose name it writes."""

    owner: str
    command: Command
    answered: Callable[[Any], None]
    refused: Callable[[RotaError], None]


class Outcome(msgspec.Struct, frozen=True):
    """What to tell whoever asked, once the batch is on disk."""

    request: Request
    answer: Any


class Decided(NamedTuple):
    """One transaction's worth of decisions."""

    now: Instant
    puts: dict[Key, Record]
    deletes: dict[Key, None]
    events: tuple[Event, ...]
    whys: tuple[str, ...]
    outcomes: list[Outcome]
    refusals: list[tuple[Request, RotaError]]
    fenced: bool

    @property
    def commits(self) -> bool:
        """Whether it must go to disk before anybody hears of it."""
        return bool(self.puts or self.deletes or self.events or self.fenced)

    def answer(self) -> None:
        """It is on disk: tell whoever asked."""
        for request, refusal in self.refusals:
            request.refused(refusal)
        for outcome in self.outcomes:
            outcome.request.answered(outcome.answer)

    def fail(self, error: RotaError) -> None:
        """It is not on disk, and must not be true; a refusal may rest on it, or on what is no longer so."""
        for request in (*(request for request, _ in self.refusals), *(one.request for one in self.outcomes)):
            request.refused(error)


class Parked(NamedTuple):
    """A key whose decision raised a bug: left alone until something wakes it again."""

    due: Due
    error: Exception


class Loop:
    def __init__(self, mirror: Mirror, reconcilers: Sequence[Reconciler]) -> None:
        self.mirror = mirror
        self.parked: list[Parked] = []
        self._reconcilers = {reconciler.name: reconciler for reconciler in reconcilers}
        self._wakes: dict[type[Record], list[tuple[str, Keys]]] = {}
        for reconciler in reconcilers:
            for kind, keys in reconciler.wakes.items():
                self._wakes.setdefault(kind, []).append((reconciler.name, keys))
        self._queue = WorkQueue()
        self._requests: list[Request] = []
        self._last_ms: int | None = None

    def look_at_everything(self) -> None:
        """After a start nothing special happens: every key is looked at."""
        for reconciler in self._reconcilers.values():
            for key in reconciler.start(self.mirror):
                self._queue.wake(Due(reconciler.name, key))

    def ask(self, request: Request) -> None:
        self._requests.append(request)

    def wake(self, reconciler: str, key: str) -> None:
        """An observation that is no record has changed something this reconciler looks at."""
        self._queue.wake(Due(reconciler, key))

    @property
    def idle(self) -> bool:
        """Nothing is due before something comes in or its time comes."""
        return not self._requests and not self._queue

    def take_requests(self) -> list[Request]:
        """What nobody has served yet, to be served by another loop."""
        requests, self._requests = self._requests, []
        return requests

    def next_at(self) -> int | None:
        return self._queue.next_at()

    def decide(self, now: Instant) -> Decided | None:
        """One batch, or nothing to do."""
        self._notice_stall(now)
        self.mirror.now_ms = now.ms
        batch = _Batch(now)
        requests = self.take_requests()
        for request in requests:
            self._serve(request, batch)
        self._rest(batch)
        decided = batch.done()
        return decided if requests or decided.commits else None

    def _rest(self, batch: "_Batch") -> None:
        """Decide until nothing is due, or enough for one commit."""
        times: dict[Due, int] = {}
        while len(times) < BATCH_KEYS_MAX and (due := self._queue.take(batch.now.ms)) is not None:
            times[due] = times.get(due, 0) + 1
            if times[due] > DECIDE_AGAIN_MAX:
                raise Unsettled(f"{due} was decided {DECIDE_AGAIN_MAX} times and does not come to rest")
            self._look(due, batch)

    def _notice_stall(self, now: Instant) -> None:
        """A gap in our own ticks is our sleep, not the nodes' silence."""
        if self._last_ms is not None and now.ms - self._last_ms > STALL_MS:
            self.mirror.now_ms = now.ms
            self.mirror.hear_all()
        self._last_ms = now.ms

    def _serve(self, request: Request, batch: "_Batch") -> None:
        plan = self._guarded(Due(request.owner, "request"), request.command, self.mirror, batch.now)
        if isinstance(plan, RotaError):
            batch.refusals.append((request, plan))
            batch.fenced |= isinstance(plan, _OF_RECORDS)
            return
        self._take(request.owner, plan, batch)
        batch.outcomes.append(Outcome(request, plan.answer))

    def _look(self, due: Due, batch: "_Batch") -> None:
        reconciler = self._reconcilers[due.reconciler]
        plan = self._guarded(due, reconciler.decide, self.mirror, due.key, batch.now)
        if plan is NOTHING or isinstance(plan, RotaError):
            return
        if plan.wake_at_ms is not None:
            self._queue.wake_at(due, plan.wake_at_ms)
        self._take(reconciler.owner, plan, batch)

    def _guarded(self, due: Due, decide: Callable[..., Plan], *given: object) -> Plan | RotaError:
        """A bug in one decision parks its key and is told; the others go on."""
        try:
            return decide(*given)
        except (Rejected, StoreFull) as refusal:
            return refusal
        except Exception as error:
            self.parked.append(Parked(due, error))
            return Bug(f"deciding {due.key} for {due.reconciler} failed")

    def _take(self, owner: str, plan: Plan, batch: "_Batch") -> None:
        for record in plan.puts:
            kind = type(record)
            if OWNERS[kind] != owner:
                raise WrongOwner(f"{owner} wrote {record.key}, which is {OWNERS[kind]}'s")
            self.mirror.apply(record)
            batch.put(record)
            for name, keys in self._wakes.get(kind, ()):
                for key in keys(record):
                    self._queue.wake(Due(name, key))
        for key in plan.deletes:
            self.mirror.forget(key)
            batch.delete(key)
        batch.events.extend(plan.events)
        batch.fenced |= plan.fenced
        if plan.why:
            batch.whys.append(plan.why)


class _Batch:
    """A batch in the making; the last write of a key counts."""

    def __init__(self, now: Instant) -> None:
        self.now = now
        self.puts: dict[Key, Record] = {}
        self.deletes: dict[Key, None] = {}
        self.events: list[Event] = []
        self.whys: list[str] = []
        self.outcomes: list[Outcome] = []
        self.refusals: list[tuple[Request, RotaError]] = []
        self.fenced = False

    def put(self, record: Record) -> None:
        key = record.key
        self.deletes.pop(key, None)
        self.puts[key] = record

    def delete(self, key: Key) -> None:
        self.puts.pop(key, None)
        self.deletes[key] = None

    def done(self) -> Decided:
        return Decided(
            self.now,
            self.puts,
            self.deletes,
            tuple(self.events),
            tuple(self.whys),
            self.outcomes,
            self.refusals,
            self.fenced,
        )
