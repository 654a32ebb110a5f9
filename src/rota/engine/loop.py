"""Changes in, batches of plans out: decides to rest over its own uncommitted writes. No store, no clock.

Theory of operation
-------------------
All state of a server is a set of records in the store and a *mirror* of them in memory. Every component is a
*reconciler*: a pure function from the mirror, a key and the time to a *plan*, which lists records to write.
The loop owns the mirror and a queue of keys. One call of `decide` makes one batch:

1. Serve the waiting requests (commands of users and reports of nodes), each as a plan.
2. Take keys off the queue and decide each. The plan's records are applied to the mirror at once, before they
   are on disk, so that later decisions of the batch build on them. Each record written wakes the keys that
   depend on it (`Reconciler.wakes`), and those are decided in the same batch.
3. Stop when the queue is empty (the mirror is at rest), or at a bound on keys, on decisions, or on repeats of
   one key. The rest of a long cascade goes into the next batch.

The driver (`rota.engine.run`) then commits the batch in one transaction, and only after that answers requests
and tells listeners. So the mirror is ahead of the disk from `decide` to the end of the commit, and nothing is
said during that time. If the commit fails, the mirror is wrong and everything is read again.

Faults
------
An exception in our own code must cost one request or one key, not the batch and not the process. What can be
contained depends on what was touched when it was raised:

* `decide` or a command raised: nothing was touched. The request is refused as a Bug. The key is parked
  (`rota.engine.parking`): it is tried again when something it depends on changes, and after a pause that
  doubles. If the traceback shows which waiting job a key of the whole cluster was working on, as the round
  of the scheduler, that job is parked instead and the others go on.
* `wakes` raised: the record is written, but a key that depends on it may not have been woken. All keys of
  that reconciler are looked at again after the pause.
* `mirror.apply` raised, or a record cannot be encoded: the mirror holds half a plan that must never be
  committed. `Tainted` ends the batch and says who is to blame. All other requests of the batch go back to the
  queue, which is possible because commands are pure and no caller has been answered. The driver reads the
  mirror again from the store and makes a new loop with the same `Parking`.
  The blame is on the submit or update of that job, if it is in the same batch; else on the job or node whose
  record it is, if the plan was about others too: nothing is written about it until its pause is over, and the
  others are served; else on the key or the request.
* For some time after such a rebuild each plan is first tried on a small mirror of the jobs and nodes that it
  writes about (`rota.engine.trial`). A second culprit is found there and costs no second rebuild, so hostile
  requests cannot keep the server busy with reading its store.
* A key that comes back without end over several batches, while few other keys turn, is a livelock: it is
  parked as `NotQuiescent`. A cascade that is merely long, as a chain of jobs that are canceled one by one,
  also repeats some keys often, but decides a new key every few decisions.

Invariants: the mirror equals the disk plus the plans of the uncommitted batch. A plan is applied whole or the
mirror is thrown away. A record that is set aside or parked is never written. The order of records in a batch
is the order in which they were decided, and the last write of a key counts.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from rota.engine.blame import blamed_job
from rota.engine.parking import FaultStage, Parking
from rota.engine.reconciler import Command, Keys, Reconciler
from rota.engine.state.mirror import Mirror
from rota.engine.trial import try_plan
from rota.engine.workqueue import WorkItem, WorkQueue
from rota.model.errors import (
    Bug,
    Conflict,
    NotFound,
    NotQuiescent,
    Rejected,
    RotaError,
    StoreFull,
    WrongWriter,
)
from rota.model.ids import JobId, Key, NodeId, subject_of
from rota.model.limits import (
    BATCH_DECISIONS_MAX,
    BATCH_KEYS_MAX,
    KEY_DECISIONS_MAX,
    LIVELOCK_DECISIONS_MAX,
    LIVELOCK_RATIO,
    STALL_MS,
)
from rota.model.plan import NO_CHANGE, WRITERS, Answer, EventRecord, Instant, Plan, Record, may_write

Packed = TypeVar("Packed")
ALL_KEYS = "*"  # of a reconciler: all its keys are to be looked at
REQUEST_KEY = "request"  # the key under which faults of requests are reported
UNATTRIBUTED = WorkItem(
    "engine", "batch"
)  # to blame for a fault that does not come back when it is looked for
_REFUSALS_FROM_STATE = (
    NotFound,
    Conflict,
)  # refusals of what is known here: a commit shows that it is still so


class Request(msgspec.Struct, frozen=True):
    """A command somebody waits for, and the component in whose name it writes."""

    owner: str
    command: Command[object]
    answered: Callable[[Any], None]
    refused: Callable[[RotaError], None]
    may_split: bool = False  # a report about many jobs: what concerns a parked one may be left out
    charge: Callable[[float], None] | None = None  # is told the seconds that serving it took


class RequestOutcome(msgspec.Struct, frozen=True):
    """What to tell whoever asked, once the batch is on disk."""

    request: Request
    answer: object


class PlanSource(NamedTuple):
    """Where a plan comes from: a reconciler's key, or a request."""

    due: WorkItem
    request: Request | None = None


class Culprit(NamedTuple):
    """Whose fault it is that a record cannot be written."""

    source: PlanSource
    wrote_spec: bool  # it has made or updated the job or node that the record is part of


class AppliedPlan(NamedTuple):
    """A plan that was applied to the mirror."""

    source: PlanSource
    plan: Plan[object]


class Decided(NamedTuple):
    """One transaction's worth of decisions."""

    now: Instant
    puts: dict[Key, Record]
    deletes: dict[Key, None]
    events: tuple[EventRecord, ...]
    whys: tuple[str, ...]
    outcomes: list[RequestOutcome]
    refusals: list[tuple[Request, RotaError]]
    fenced: bool
    applied: Sequence[AppliedPlan] = ()

    @property
    def commits(self) -> bool:
        """Whether it must go to disk before anybody hears of it."""
        return bool(self.puts or self.deletes or self.events or self.fenced)

    @property
    def requests(self) -> list[Request]:
        return [*(request for request, _ in self.refusals), *(one.request for one in self.outcomes)]

    def answer(self) -> list[Exception]:
        """It is on disk: tell all callers. Returns what was raised by callers that could not be told."""
        refused = [_raised(request.refused, refusal) for request, refusal in self.refusals]
        answered = [_raised(one.request.answered, one.answer) for one in self.outcomes]
        return [error for error in (*refused, *answered) if error is not None]

    def fail(self, error: RotaError) -> None:
        """The commit failed. Fail every request, refusals too: they were computed from uncommitted state."""
        for request in self.requests:
            request.refused(error)

    def encode(self, pack: Callable[["Decided"], Packed]) -> Packed:
        """What `pack` makes of it for the store. Raises Tainted: some plan of it cannot be encoded."""
        try:
            return pack(self)
        except Exception as error:
            raise self._find_unencodable(pack) from error

    def _find_unencodable(self, pack: Callable[["Decided"], object]) -> "Tainted":
        """Find the plan that cannot be encoded by packing each record and each plan's events alone."""
        nothing = self._replace(puts={}, deletes={}, events=())
        for source, plan in self.applied:
            culprit = Culprit(source, wrote_spec=False)
            for record in plan.puts:
                if self.puts.get(record.key) is record:
                    error = _raised(pack, nothing._replace(puts={record.key: record}))
                    if error is not None:
                        return Tainted(FaultStage.ENCODE, culprit, record.key, error)
            error = _raised(pack, nothing._replace(events=plan.events)) if plan.events else None
            if error is not None:
                return Tainted(FaultStage.ENCODE, culprit, Key(""), error)
        passing = Bug("the batch could not be encoded, and each of its plans can be")
        return Tainted(
            FaultStage.ENCODE, Culprit(PlanSource(UNATTRIBUTED), wrote_spec=False), Key(""), passing
        )


class Tainted(Exception):
    """The mirror holds part of a plan that cannot be committed: it has to be read again."""

    def __init__(
        self, stage: FaultStage, culprit: Culprit, key: Key, error: Exception, *, is_trial: bool = False
    ) -> None:
        super().__init__(f"{culprit.source.due.reconciler} failed on {key}: {error!r}")
        self.stage = stage
        self.source = culprit.source
        self.wrote_spec = culprit.wrote_spec
        self.key = key  # of the record
        self.error = error
        self.is_trial = is_trial  # it was found out before the mirror was touched


class Loop:
    def __init__(
        self, mirror: Mirror, reconcilers: Sequence[Reconciler], parking: Parking | None = None
    ) -> None:
        self.mirror = mirror
        self.parking = Parking() if parking is None else parking
        self._reconcilers = {reconciler.name: reconciler for reconciler in reconcilers}
        self._wakes: dict[type[Record], list[tuple[str, Keys]]] = {}
        for reconciler in reconcilers:
            for kind, keys in reconciler.wakes.items():
                self._wakes.setdefault(kind, []).append((reconciler.name, keys))
        self._queue = WorkQueue()
        self._requests: list[Request] = []
        self._now = Instant(mirror.now_ms, 0)  # of the last batch
        self._last_ms: int | None = None
        self._decision_counts: dict[
            WorkItem, int
        ] = {}  # decisions of each key since the queue was last empty
        self._resume_parked()

    def enqueue_all(self) -> None:
        """After a start nothing special happens: every key is looked at."""
        for name in self._reconcilers:
            self._wake_all(name, self._now)

    def ask(self, request: Request) -> None:
        self._requests.append(request)

    def wake(self, reconciler: str, key: str) -> None:
        """An observation that is no record has changed something this reconciler looks at."""
        self._queue.wake(WorkItem(reconciler, key))

    @property
    def idle(self) -> bool:
        """Nothing is due before something comes in or its time comes."""
        return not self._requests and not self._queue

    def drain_requests(self) -> list[Request]:
        """What nobody has served yet, to be served by another loop."""
        requests, self._requests = self._requests, []
        return requests

    def requeue(self, requests: Sequence[Request]) -> None:
        """Serve these before all others: the batch that they were part of is not committed."""
        self._requests[:0] = requests

    def next_at(self) -> int | None:
        times = (self._queue.next_at(), self.parking.next_at())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def decide(self, now: Instant) -> Decided | None:
        """One batch, or nothing to do. Raises Tainted when the mirror has to be read again."""
        self._detect_stall(now)
        self.mirror.now_ms = now.ms
        self._now = now
        self._release_parked(now)
        batch = _Batch(now)
        requests = self.drain_requests()
        try:
            for request in requests:
                self._serve(request, batch)
            self._run_to_quiescence(batch)
        except Exception:  # Tainted, or a bug of this very module: the callers must not wait for ever
            self.requeue(requests)
            raise
        batch.events.extend(self.parking.drain_events())
        decided = batch.done()
        return decided if requests or decided.commits else None

    def condemn(self, tainted: Tainted, now: Instant) -> None:
        """The mirror was read again: park or refuse what had tainted it, and do without."""
        request = tainted.source.request
        if self._condemn(tainted, now) and request is not None:
            self._requests = [one for one in self._requests if one is not request]
            request.refused(_bug(tainted.source.due))

    # ---- deciding

    def _run_to_quiescence(self, batch: "_Batch") -> None:
        """Decide until nothing is due, or enough for one commit."""
        times: dict[WorkItem, int] = {}
        looks = 0
        while len(times) < BATCH_KEYS_MAX and looks < BATCH_DECISIONS_MAX:
            due = self._queue.pop(batch.now.ms)
            if due is None:
                self._decision_counts.clear()
                return
            looks += 1
            times[due] = again = times.get(due, 0) + 1
            self._decide_item(due, batch)
            if again >= KEY_DECISIONS_MAX:
                break
        self._detect_livelock(times, batch.now)

    def _detect_livelock(self, times: dict[WorkItem, int], now: Instant) -> None:
        """The batch ended before all was at rest: park a key if the same ones turn without end."""
        turns = self._decision_counts
        for due, count in times.items():
            turns[due] = turns.get(due, 0) + count
        most = max(turns, key=lambda due: turns[due])
        if turns[most] >= LIVELOCK_DECISIONS_MAX and sum(turns.values()) > len(turns) * LIVELOCK_RATIO:
            unsettled = NotQuiescent(f"decided {turns[most]} times and does not come to rest")
            self._park(FaultStage.DECIDE, most, unsettled, now, firm=True)
            turns.clear()

    def _detect_stall(self, now: Instant) -> None:
        """A gap in our own ticks is our sleep, not the nodes' silence."""
        if self._last_ms is not None and now.ms - self._last_ms > STALL_MS:
            self.mirror.now_ms = now.ms
            self.mirror.mark_all_seen()
        self._last_ms = now.ms

    def _serve(self, request: Request, batch: "_Batch") -> None:
        due = WorkItem(request.owner, REQUEST_KEY)
        try:
            plan = _checked(request.owner, request.command(self.mirror, batch.now))
            if self.parking.subjects:
                plan = self._without_parked(plan, may_split=request.may_split)
        except (Rejected, StoreFull) as refusal:
            batch.refusals.append((request, refusal))
            batch.fenced |= isinstance(refusal, _REFUSALS_FROM_STATE)
            return
        except Exception as error:
            self.parking.record_fault(FaultStage.DECIDE, due, error)
            batch.refusals.append((request, _bug(due)))
            return
        try:
            self._apply(PlanSource(due, request), plan, batch)
        except Tainted as tainted:
            if not tainted.is_trial:
                raise
            if self._condemn(tainted, batch.now):
                batch.refusals.append((request, _bug(due)))
            else:
                self._requests.append(request)
            return
        batch.outcomes.append(RequestOutcome(request, plan.answer))

    def _decide_item(self, due: WorkItem, batch: "_Batch") -> None:
        if due.key == ALL_KEYS:
            self._wake_all(due.reconciler, batch.now)
        elif due not in self.parking.keys:
            self._decide(due, batch)
        elif not self._still_parked(due, batch.now) and self._decide(due, batch):
            self.parking.unpark(due)

    def _still_parked(self, due: WorkItem, now: Instant) -> bool:
        """Whether a parked key is left alone still, although something may have woken it."""
        parked = self.parking.keys[due]
        if not parked.firm or parked.retry_at_ms is None or parked.retry_at_ms <= now.ms:
            return False
        self._queue.wake_at(due, parked.retry_at_ms)
        return True

    def _decide(self, due: WorkItem, batch: "_Batch") -> bool:
        """Decide one key and apply its plan; says whether that went well."""
        reconciler = self._reconcilers[due.reconciler]
        try:
            plan = reconciler.decide(self.mirror, due.key, batch.now)
            if plan is NO_CHANGE:
                return True
            plan = _checked(reconciler.owner, plan)
            if self.parking.subjects:
                plan = self._without_parked(plan, may_split=True)
        except (Rejected, StoreFull):
            return True
        except Exception as error:
            self._blame(due, error, batch.now)
            return False
        if plan.wake_at_ms is not None:
            self._queue.wake_at(due, plan.wake_at_ms)
        try:
            self._apply(PlanSource(due), plan, batch)
        except Tainted as tainted:
            if not tainted.is_trial:
                raise
            self._condemn(tainted, batch.now)
            self._queue.wake(due)
            return False
        return True

    def _without_parked(self, plan: Plan[Answer], *, may_split: bool) -> Plan[Answer]:
        """The plan without what concerns parked subjects. Raises Conflict where it is all or nothing."""
        parked = self.parking.subjects
        closed = {subject for key in _keys_of(plan) if (subject := subject_of(key)) in parked}
        if not closed:
            return plan
        if not may_split:
            subject = min(closed)
            hint = "`rota server status` shows what is left alone after a fault of the server"
            raise Conflict(f"{subject} cannot be changed now: the server failed on it", hint=hint)
        return plan.but(
            puts=tuple(record for record in plan.puts if subject_of(record.key) not in closed),
            deletes=tuple(key for key in plan.deletes if subject_of(key) not in closed),
            events=tuple(event for event in plan.events if not closed & _subjects_of(event)),
        )

    def _apply(self, source: PlanSource, plan: Plan[object], batch: "_Batch") -> None:
        """Apply a plan to the mirror. Raises Tainted: a part of it is applied then, unless it was a trial."""
        if self.parking.is_wary(batch.now.ms) and (failed := try_plan(self.mirror, plan)) is not None:
            culprit = _culprit(failed.key, [AppliedPlan(source, plan)])
            raise Tainted(failed.stage, culprit, failed.key, failed.error, is_trial=True)
        key = Key("")
        try:
            for record in plan.puts:
                key = record.key
                self.mirror.apply(record)
                batch.put(key, record)
                self._wake_dependents(record, batch.now)
            for key in plan.deletes:
                self.mirror.forget(key)
                batch.delete(key)
        except Exception as error:
            culprit = _culprit(key, [*batch.taken, AppliedPlan(source, plan)])
            raise Tainted(FaultStage.APPLY, culprit, key, error) from error
        batch.taken.append(AppliedPlan(source, plan))
        batch.events.extend(plan.events)
        batch.fenced |= plan.fenced
        if plan.why:
            batch.whys.append(plan.why)

    # ---- waking

    def _wake_dependents(self, record: Record, now: Instant) -> None:
        for name, keys in self._wakes.get(type(record), ()):
            try:
                for key in keys(record):
                    self._queue.wake(WorkItem(name, key))
            except Exception as error:
                self._park(FaultStage.WAKE, WorkItem(name, ALL_KEYS), error, now, firm=True)

    def _wake_all(self, name: str, now: Instant) -> None:
        due = WorkItem(name, ALL_KEYS)
        try:
            for key in self._reconcilers[name].start(self.mirror):
                self._queue.wake(WorkItem(name, key))
        except Exception as error:
            self._park(FaultStage.WAKE, due, error, now, firm=True)
            return
        self.parking.unpark(due)

    # ---- parking

    def _condemn(self, tainted: Tainted, now: Instant) -> bool:
        """Park the subject that could not be written, or the key. True: it is the request's fault alone."""
        due, request = tainted.source
        subject = subject_of(tainted.key)
        if due is UNATTRIBUTED:  # all of it is decided again
            self.parking.record_fault(tainted.stage, due, tainted.error)
            return False
        is_part = subject.partition("/")[0] in ("job", "node") and not tainted.wrote_spec
        if request is not None:
            if not (request.may_split and is_part and subject.startswith("job/")):
                self.parking.record_fault(tainted.stage, due, tainted.error)
                return True
        elif not is_part or subject.partition("/")[2] == due.key.partition("/")[0]:
            self._park(tainted.stage, due, tainted.error, now, firm=True)
            return False
        self.parking.park_subject(tainted.stage, due, subject, tainted.error, now)
        if subject.startswith("job/"):
            self.mirror.park_job(JobId(subject[4:]))
        return False

    def _blame(self, due: WorkItem, error: Exception, now: Instant) -> None:
        """Park the waiting job that a decision failed on, if that can be told; else the key."""
        job = blamed_job(error, self.mirror)
        if job is None or due.key.partition("/")[0] == job:
            self._park(FaultStage.DECIDE, due, error, now, firm=False)
            return
        self.parking.park_subject(FaultStage.DECIDE, due, f"job/{job}", error, now)
        self.mirror.park_job(job)
        self._queue.wake(due)

    def _park(self, stage: FaultStage, due: WorkItem, error: Exception, now: Instant, *, firm: bool) -> None:
        parked = self.parking.park_key(stage, due, error, now, firm=firm)
        if parked.retry_at_ms is not None:
            self._queue.wake_at(due, parked.retry_at_ms)

    def _resume_parked(self) -> None:
        """This loop replaces one whose mirror was read again: the same is left alone."""
        for due, parked in self.parking.keys.items():
            if due.reconciler in self._reconcilers and parked.retry_at_ms is not None:
                self._queue.wake_at(due, parked.retry_at_ms)
        for subject in self.parking.subjects:
            if subject.startswith("job/"):
                self.mirror.park_job(JobId(subject[4:]))

    def _release_parked(self, now: Instant) -> None:
        """Look again at everything about the subjects whose pause is over."""
        for subject in self.parking.release(now):
            head, _, name = subject.partition("/")
            if head == "job" and (job := self.mirror.jobs.get(JobId(name))) is not None:
                self.mirror.unpark_job(job.spec.id)
                for record in job.records():
                    self._wake_dependents(record, now)
            elif head == "node" and (node := self.mirror.nodes.get(NodeId(name))) is not None:
                for one in node.records():
                    self._wake_dependents(one, now)
            else:
                self.enqueue_all()


class _Batch:
    """A batch in the making; the last write of a key counts."""

    def __init__(self, now: Instant) -> None:
        self.now = now
        self.puts: dict[Key, Record] = {}
        self.deletes: dict[Key, None] = {}
        self.events: list[EventRecord] = []
        self.whys: list[str] = []
        self.outcomes: list[RequestOutcome] = []
        self.refusals: list[tuple[Request, RotaError]] = []
        self.fenced = False
        self.taken: list[AppliedPlan] = []

    def put(self, key: Key, record: Record) -> None:
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
            self.taken,
        )


def _checked(owner: str, plan: Plan[Answer]) -> Plan[Answer]:
    """The plan, if it writes nothing that is another component's."""
    for record in plan.puts:
        kind = type(record)
        if not may_write(owner, kind):
            raise WrongWriter(f"{owner} wrote {record.key}, which is {WRITERS[kind]}'s")
    return plan


def _culprit(key: Key, taken: list[AppliedPlan]) -> Culprit:
    """Who wrote the spec of that job or node last, if anyone did; else whose plan came last.

    A record of a new or updated job that cannot be applied is most likely the fault of that submit or update.
    """
    spec = f"{subject_of(key)}/spec"
    for source, plan in reversed(taken):
        if any(record.key == spec for record in plan.puts):
            return Culprit(source, wrote_spec=True)
    return Culprit(taken[-1].source, wrote_spec=False)


def _bug(due: WorkItem) -> Bug:
    return Bug(f"deciding {due.key} for {due.reconciler} failed")


def _keys_of(plan: Plan[object]) -> list[Key]:
    return [*(record.key for record in plan.puts), *plan.deletes]


def _subjects_of(event: EventRecord) -> set[str]:
    return {f"job/{event.job}", f"node/{event.node}"}


def _raised(call: Callable[..., object], *given: object) -> Exception | None:
    try:
        call(*given)
    except Exception as error:
        return error
    return None
