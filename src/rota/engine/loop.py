"""Requests and keys in, batches of plans out: decides to quiescence over its own uncommitted writes.

The loop is sans-I/O: it has no store, no clock and no thread. `rota.engine.run` drives it in production,
`rota.sim` in virtual time, `rota.testing.stage` in scenario tests.

Theory of operation
-------------------
All state of a server is a set of records in the store and a *mirror* of them in memory. Every component is a
*reconciler*: a pure function from the mirror, a key and the time to a *plan*, which lists records to write.
The loop owns the mirror and a work queue of keys. One call of `decide` makes one batch:

1. Serve the waiting requests (commands of users and reports of nodes), each as a plan.
2. Pop keys off the queue and decide each. The records of a plan are applied to the mirror immediately, before
   they are durable, so that later decisions of the batch build on them. Each record written wakes the keys
   that depend on it (`Reconciler.wakes`), and those are decided in the same batch.
3. Stop at quiescence (the queue is empty), or at a bound on keys, on decisions, or on repeats of one key. A
   cascade that is longer continues in the next batch.

The driver then commits the batch in one transaction, and only after that answers requests and runs the commit
hooks. So the mirror is ahead of the disk from `decide` to the end of the commit, and nothing leaves the
process during that time. If the commit fails, the mirror is wrong and everything is read again.

A reconciler is edge-triggered by records and level-triggered in what it does: it gets a key, never the change
itself, and derives its plan from the whole view. So a key may be woken twice, late or without a reason, and
after a start every key is simply woken once (`enqueue_all`). Recovery is the normal path.

Faults
------
An exception in our own code must cost one request or one key, not the batch and not the process. What can be
contained depends on what was touched when it was raised:

* `decide` or a command raised: nothing was touched. The request is refused as a Bug. The key is parked
  (`rota.engine.parking`): it is tried again when something it depends on changes, and after a backoff that
  doubles. If the traceback shows which waiting job a cluster-wide key was working on, as a scheduling round
  does, that job is parked instead and the others continue.
* `wakes` raised: the record is written, but a key that depends on it may not have been woken. All keys of
  that reconciler are decided again after the backoff.
* `mirror.apply` raised, or a record cannot be encoded: the mirror holds half a plan that must never be
  committed. `Tainted` ends the batch and names the source. All other requests of the batch go back to the
  queue, which is possible because commands are pure and no caller has been answered. The driver reads the
  mirror again from the store and makes a new loop with the same `Parking`.
  The source is the submit or update of that job, if it is in the same batch; else the job or node whose
  record it is, if the plan wrote about others too: nothing is written about it until its backoff is over, and
  the others are served; else the key or the request.
* For some time after such a rebuild each plan is first tried on a small mirror of the jobs and nodes that it
  writes about (`rota.engine.trial`). A second culprit is found there and costs no second rebuild, so hostile
  requests cannot keep the server busy with reading its store.
* A key that is woken without end over several batches, while few other keys are decided, is a livelock: it is
  parked as `NotQuiescent`. A cascade that is merely long, as a chain of jobs that are canceled one by one,
  also repeats some keys often, but decides a new key every few decisions.

Invariants
----------
* The mirror equals the disk plus the plans of the uncommitted batch.
* A plan is applied whole, or the mirror is discarded.
* A record that is set aside or parked is never written.
* Records of a batch are in the order in which they were decided, and the last write of a key counts.
* Every record has one writer: `_checked` refuses a plan that writes another component's record.
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
ALL_KEYS = "*"  # stands for all keys of a reconciler
REQUEST_KEY = "request"  # the key under which faults of requests are reported
UNATTRIBUTED = WorkItem("engine", "batch")  # the source of a fault that cannot be reproduced by one plan
# Refusals that follow from the state: answered only after a commit, which proves that the state is current.
_REFUSALS_FROM_STATE = (NotFound, Conflict)


class Request(msgspec.Struct, frozen=True):
    """A command with a waiting caller, and the component as which it writes."""

    owner: str
    command: Command[object]
    answered: Callable[[Any], None]  # takes the answer of the command's plan; `Engine.ask` pairs the types
    refused: Callable[[RotaError], None]
    may_split: bool = False  # a report about many jobs: records of parked jobs may be left out
    charge: Callable[[float], None] | None = None  # takes the seconds of CPU that serving it took


class RequestOutcome(msgspec.Struct, frozen=True):
    """The answer to a request, to be given once the batch is durable."""

    request: Request
    answer: object


class PlanSource(NamedTuple):
    """The origin of a plan: a reconciler's key, or a request."""

    due: WorkItem
    request: Request | None = None


class Culprit(NamedTuple):
    """The plan to blame for a record that cannot be written."""

    source: PlanSource
    wrote_spec: bool  # the plan created or updated the job or node that the record belongs to


class AppliedPlan(NamedTuple):
    """A plan that was applied to the mirror."""

    source: PlanSource
    plan: Plan[object]


class Decided(NamedTuple):
    """One batch: what one transaction writes, and what may be said once it is durable.

    The driver must, in this order:

    1. commit `puts`, `deletes` and `events` in one transaction under the current epoch, if `commits`;
    2. call `answer`, which gives `outcomes` and `refusals` to their callers;
    3. run the commit hooks, which send orders and publish `events`.

    If 1 fails it must call `fail` instead, and discard the mirror. If 1 has an unknown outcome, it is treated
    as failed: the callers are told so, and a later reload finds out what is true.
    """

    # The time of the batch. Cluster time is stored with the commit, so that it never goes back after a
    # restart.
    now: Instant
    # The last write of each key. Already applied to the mirror; must be durable before anything below is
    # used.
    puts: dict[Key, Record]
    # Keys to delete; never a key of `puts`. Part of the same transaction.
    deletes: dict[Key, None]
    # Stored with the transaction and numbered by its revision; published after it, never before.
    events: tuple[EventRecord, ...]
    # The reasons of the plans, for the log. Not stored.
    whys: tuple[str, ...]
    # Answers of requests that were served. Given only after the commit: they may depend on any plan of the
    # batch.
    outcomes: list[RequestOutcome]
    # Requests refused by their command. Also held back until the commit, since they were computed from
    # uncommitted state and, on a deposed leader, from old state.
    refusals: list[tuple[Request, RotaError]]
    # Even without a write, the answers hold only if a commit proves that this server still leads.
    fenced: bool
    # The plans in order, to find the source of a record that cannot be encoded.
    applied: Sequence[AppliedPlan] = ()

    @property
    def commits(self) -> bool:
        """Whether a commit must succeed before anything of this batch leaves the process."""
        return bool(self.puts or self.deletes or self.events or self.fenced)

    @property
    def requests(self) -> list[Request]:
        return [*(request for request, _ in self.refusals), *(outcome.request for outcome in self.outcomes)]

    def answer(self) -> list[Exception]:
        """Answer all callers, after the commit. Returns the errors of callbacks: one must not stop others."""
        refused = [_raised(request.refused, refusal) for request, refusal in self.refusals]
        answered = [_raised(outcome.request.answered, outcome.answer) for outcome in self.outcomes]
        return [error for error in (*refused, *answered) if error is not None]

    def fail(self, error: RotaError) -> None:
        """The commit failed. Fail every request, refusals too: they were computed from uncommitted state."""
        for request in self.requests:
            request.refused(error)

    def encode(self, pack: Callable[["Decided"], Packed]) -> Packed:
        """The batch as encoded by `pack` for the store. Raises Tainted if a plan cannot be encoded."""
        try:
            return pack(self)
        except Exception as error:
            raise self._find_unencodable(pack) from error

    def _find_unencodable(self, pack: Callable[["Decided"], object]) -> "Tainted":
        """Find the plan that cannot be encoded by packing each record and each plan's events alone."""
        # Each candidate is packed alone, so that one bad record names its own plan and not the whole batch.
        nothing = self._replace(puts={}, deletes={}, events=())
        for source, plan in self.applied:
            culprit = Culprit(source, wrote_spec=False)
            for record in plan.puts:
                # A record that a later plan of the batch replaced is
                # not part of the transaction and cannot be the cause.
                if self.puts.get(record.key) is record:
                    error = _raised(pack, nothing._replace(puts={record.key: record}))
                    if error is not None:
                        return Tainted(FaultStage.ENCODE, culprit, record.key, error)
            error = _raised(pack, nothing._replace(events=plan.events)) if plan.events else None
            if error is not None:
                return Tainted(FaultStage.ENCODE, culprit, Key(""), error)
        transient = Bug("the batch could not be encoded, although each of its plans can be")
        return Tainted(
            FaultStage.ENCODE, Culprit(PlanSource(UNATTRIBUTED), wrote_spec=False), Key(""), transient
        )


class Tainted(Exception):
    """The mirror holds part of a plan that cannot be committed, and has to be read again."""

    def __init__(
        self, stage: FaultStage, culprit: Culprit, key: Key, error: Exception, *, is_trial: bool = False
    ) -> None:
        super().__init__(f"{culprit.source.due.reconciler} failed on {key}: {error!r}")
        self.stage = stage
        self.source = culprit.source
        self.wrote_spec = culprit.wrote_spec
        self.key = key  # of the record
        self.error = error
        self.is_trial = is_trial  # found on a trial mirror: the real one is intact


class Loop:
    def __init__(
        self, mirror: Mirror, reconcilers: Sequence[Reconciler], parking: Parking | None = None
    ) -> None:
        self.mirror = mirror
        # Passed in, not created here, after a reload: otherwise
        # the fault that caused it would recur at once.
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
        self._decision_counts: dict[WorkItem, int] = {}  # decisions per key since the last quiescence
        self._resume_parked()

    def enqueue_all(self) -> None:
        """Wake every key of every reconciler, as after a start: there is no separate recovery path."""
        for name in self._reconcilers:
            self._wake_all(name, self._now)

    def ask(self, request: Request) -> None:
        self._requests.append(request)

    def wake(self, reconciler: str, key: str) -> None:
        """Wake a key because of an observation, which is no record and wakes nothing by itself."""
        self._queue.wake(WorkItem(reconciler, key))

    @property
    def idle(self) -> bool:
        """Whether nothing is due until a request, an observation or a timer arrives."""
        return not self._requests and not self._queue

    def drain_requests(self) -> list[Request]:
        """Remove and return the requests that were not served, for the loop that replaces this one."""
        # Swap, not copy and clear: requests may be appended
        # again while the caller iterates over the result.
        requests, self._requests = self._requests, []
        return requests

    def requeue(self, requests: Sequence[Request]) -> None:
        """Put back requests of a batch that is not committed; they are served before all others."""
        # In front, so that requests keep the order in which they arrived.
        self._requests[:0] = requests

    def next_at(self) -> int | None:
        times = (self._queue.next_at(), self.parking.next_at())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def decide(self, now: Instant) -> Decided | None:
        """Decide one batch; None if there is nothing to do. Raises Tainted if the mirror must be reloaded."""
        # Before anything is decided in this batch: the watcher would declare nodes lost for our own pause.
        self._detect_stall(now)
        self.mirror.now_ms = now.ms
        self._now = now
        # Before the requests: one that was refused because
        # its subject is parked may be served in this batch.
        self._release_parked(now)
        batch = _Batch(now)
        requests = self.drain_requests()
        try:
            for request in requests:
                self._serve(request, batch)
            self._run_to_quiescence(batch)
        # Tainted, or a bug of this module. Without the requeue the callers
        # would wait forever. Requests served before the fault are repeated
        # too: they were not answered, and their writes go with the mirror.
        except Exception:
            self.requeue(requests)
            raise
        batch.events.extend(self.parking.drain_events())
        decided = batch.done()
        # A batch with requests is returned even without writes: its callers wait for their answers.
        return decided if requests or decided.commits else None

    def condemn(self, tainted: Tainted, now: Instant) -> None:
        """After a reload of the mirror: park or refuse the source of the fault, so that it does not recur."""
        request = tainted.source.request
        # Called with the new loop, to which the requests of the batch were requeued: the culprit must leave
        # that queue, or the next batch fails in the same way.
        if self._condemn(tainted, now) and request is not None:
            self._requests = [waiting for waiting in self._requests if waiting is not request]
            request.refused(_bug(tainted.source.due))

    # ---- deciding

    def _run_to_quiescence(self, batch: "_Batch") -> None:
        """Drain the work queue, bounded by BATCH_KEYS_MAX and BATCH_DECISIONS_MAX."""
        counts: dict[WorkItem, int] = {}
        decisions = 0
        # Both bounds keep one commit short: it is one
        # transaction, and all callers of the batch wait for it.
        while len(counts) < BATCH_KEYS_MAX and decisions < BATCH_DECISIONS_MAX:
            due = self._queue.pop(batch.now.ms)
            # Quiescence proves that there is no livelock, however often keys were repeated on the way.
            if due is None:
                self._decision_counts.clear()
                return
            decisions += 1
            counts[due] = repeats = counts.get(due, 0) + 1
            self._decide_item(due, batch)
            # Ends the batch, not the work: a key that was woken again stays
            # queued, and the commit in between lets callers make progress.
            if repeats >= KEY_DECISIONS_MAX:
                break
        self._detect_livelock(counts, batch.now)

    def _detect_livelock(self, counts: dict[WorkItem, int], now: Instant) -> None:
        """Park the most repeated key if batches without quiescence keep deciding the same few keys."""
        # Totals span several batches, because a livelock survives the end of a batch by KEY_DECISIONS_MAX.
        totals = self._decision_counts
        for due, count in counts.items():
            totals[due] = totals.get(due, 0) + count
        most = max(totals, key=lambda due: totals[due])
        # A long cascade repeats keys as well, but brings new keys
        # all the time: hence the ratio, and not a count alone.
        if totals[most] >= LIVELOCK_DECISIONS_MAX and sum(totals.values()) > len(totals) * LIVELOCK_RATIO:
            livelock = NotQuiescent(f"decided {totals[most]} times without reaching quiescence")
            # Firm: a livelocked key is woken by its own writes, so a wake must not end its backoff.
            self._park(FaultStage.DECIDE, most, livelock, now, firm=True)
            totals.clear()

    def _detect_stall(self, now: Instant) -> None:
        """Restart liveness clocks after a gap in our own iterations: this process slept, not the nodes."""
        # Race: a suspended process reads the clock before the messages
        # that arrived meanwhile, and would declare every node lost.
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
        # Expected refusals, not faults: the command looked at the state and declined. Nothing was applied.
        except (Rejected, StoreFull) as refusal:
            batch.refusals.append((request, refusal))
            # Invariant: a refusal derived from state is answered only
            # after a commit proved that this server still leads.
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
            # The real mirror is intact. Either the request itself is to blame
            # and is refused, or a subject was parked and the request may
            # succeed without it: then it is served again, with the next batch.
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
        # Unparked only after a success: the backoff doubles as long as the key keeps failing.
        elif not self._still_parked(due, batch.now) and self._decide(due, batch):
            self.parking.unpark(due)

    def _still_parked(self, due: WorkItem, now: Instant) -> bool:
        """Whether a parked key that was woken must keep waiting for its backoff."""
        parked = self.parking.keys[due]
        if not parked.firm or parked.retry_at_ms is None or parked.retry_at_ms <= now.ms:
            return False
        # A wake must not be lost while the key is parked: it becomes a timer at the end of the backoff.
        self._queue.wake_at(due, parked.retry_at_ms)
        return True

    def _decide(self, due: WorkItem, batch: "_Batch") -> bool:
        """Decide one key and apply its plan; returns True unless that failed."""
        reconciler = self._reconcilers[due.reconciler]
        try:
            plan = reconciler.decide(self.mirror, due.key, batch.now)
            if plan is NO_CHANGE:
                return True
            plan = _checked(reconciler.owner, plan)
            if self.parking.subjects:
                plan = self._without_parked(plan, may_split=True)
        # A reconciler has no caller to refuse. It is woken
        # again by the change of state that lifts the obstacle.
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
            # The key did not cause the fault or is parked itself:
            # decide it again, now without the parked subject.
            self._queue.wake(due)
            return False
        return True

    def _without_parked(self, plan: Plan[Answer], *, may_split: bool) -> Plan[Answer]:
        """The plan without records of parked subjects. Raises Conflict if the plan must not be split."""
        parked = self.parking.subjects
        affected = {subject for key in _keys_of(plan) if (subject := subject_of(key)) in parked}
        if not affected:
            return plan
        # A command is all or nothing for its caller; leaving out
        # records silently would acknowledge what was not done.
        if not may_split:
            subject = min(affected)
            hint = "`rota server status` lists what is parked after an internal fault"
            raise Conflict(f"{subject} cannot be changed now: the server failed on it", hint=hint)
        return plan.but(
            puts=tuple(record for record in plan.puts if subject_of(record.key) not in affected),
            deletes=tuple(key for key in plan.deletes if subject_of(key) not in affected),
            events=tuple(event for event in plan.events if not affected & _subjects_of(event)),
        )

    def _apply(self, source: PlanSource, plan: Plan[object], batch: "_Batch") -> None:
        """Apply a plan to the mirror. Raises Tainted, with part of it applied unless `is_trial` is set."""
        # A trial costs a copy of the subjects, so it is made
        # only while another rebuild would be too expensive.
        if self.parking.is_wary(batch.now.ms) and (failed := try_plan(self.mirror, plan)) is not None:
            culprit = _culprit(failed.key, [AppliedPlan(source, plan)])
            raise Tainted(failed.stage, culprit, failed.key, failed.error, is_trial=True)
        key = Key("")
        try:
            for record in plan.puts:
                key = record.key
                self.mirror.apply(record)
                batch.put(key, record)
                # Within the loop over records, not after it: a fault in
                # `wakes` is contained there and cannot taint the mirror.
                self._wake_dependents(record, batch.now)
            for key in plan.deletes:
                self.mirror.forget(key)
                batch.delete(key)
        except Exception as error:
            culprit = _culprit(key, [*batch.applied, AppliedPlan(source, plan)])
            raise Tainted(FaultStage.APPLY, culprit, key, error) from error
        # Only a plan that was applied whole counts as applied; a partial one ends the batch with Tainted.
        batch.applied.append(AppliedPlan(source, plan))
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
                # Which keys were missed is unknown, so all keys
                # of that reconciler are woken after the backoff.
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
        """Park the subject that could not be written, or the key. True: only the request is to blame."""
        due, request = tainted.source
        subject = subject_of(tainted.key)
        if due is UNATTRIBUTED:  # nothing to park: the whole batch is decided again
            self.parking.record_fault(tainted.stage, due, tainted.error)
            return False
        is_part = subject.partition("/")[0] in ("job", "node") and not tainted.wrote_spec
        if request is not None:
            if not (request.may_split and is_part and subject.startswith("job/")):
                self.parking.record_fault(tainted.stage, due, tainted.error)
                return True
        # A plan that writes only about its own key gains
        # nothing from parking the subject: the key is parked.
        elif not is_part or subject.partition("/")[2] == due.key.partition("/")[0]:
            self._park(tainted.stage, due, tainted.error, now, firm=True)
            return False
        self.parking.park_subject(tainted.stage, due, subject, tainted.error, now)
        # The scheduler must not see a parked job, or each round
        # would plan for it and lose that part of the plan.
        if subject.startswith("job/"):
            self.mirror.park_job(JobId(subject[4:]))
        return False

    def _blame(self, due: WorkItem, error: Exception, now: Instant) -> None:
        """Park the waiting job that a decision failed on, if the traceback names one; else the key."""
        job = blamed_job(error, self.mirror)
        # A key of that job alone: parking the key is enough, and the job stays visible to other components.
        if job is None or due.key.partition("/")[0] == job:
            self._park(FaultStage.DECIDE, due, error, now, firm=False)
            return
        self.parking.park_subject(FaultStage.DECIDE, due, f"job/{job}", error, now)
        self.mirror.park_job(job)
        # The round is decided again without that job, so one
        # bad job delays the others by one decision only.
        self._queue.wake(due)

    def _park(self, stage: FaultStage, due: WorkItem, error: Exception, now: Instant, *, firm: bool) -> None:
        parked = self.parking.park_key(stage, due, error, now, firm=firm)
        if parked.retry_at_ms is not None:
            self._queue.wake_at(due, parked.retry_at_ms)

    def _resume_parked(self) -> None:
        """Continue the backoffs of the loop that this one replaces after the mirror was read again."""
        for due, parked in self.parking.keys.items():
            if due.reconciler in self._reconcilers and parked.retry_at_ms is not None:
                self._queue.wake_at(due, parked.retry_at_ms)
        # The new mirror was loaded from the store and does not know which jobs are parked.
        for subject in self.parking.subjects:
            if subject.startswith("job/"):
                self.mirror.park_job(JobId(subject[4:]))

    def _release_parked(self, now: Instant) -> None:
        """Wake everything that depends on the subjects whose backoff is over."""
        for subject in self.parking.release(now):
            head, _, name = subject.partition("/")
            if head == "job" and (job := self.mirror.jobs.get(JobId(name))) is not None:
                self.mirror.unpark_job(job.spec.id)
                for record in job.records():
                    self._wake_dependents(record, now)
            elif head == "node" and (node := self.mirror.nodes.get(NodeId(name))) is not None:
                for node_record in node.records():
                    self._wake_dependents(node_record, now)
            else:
                # The subject is neither a job nor a node, or no longer
                # exists: its dependents are unknown, so wake all keys.
                self.enqueue_all()


class _Batch:
    """A batch under construction; the last write of a key counts."""

    def __init__(self, now: Instant) -> None:
        self.now = now
        self.puts: dict[Key, Record] = {}
        self.deletes: dict[Key, None] = {}
        self.events: list[EventRecord] = []
        self.whys: list[str] = []
        self.outcomes: list[RequestOutcome] = []
        self.refusals: list[tuple[Request, RotaError]] = []
        self.fenced = False
        self.applied: list[AppliedPlan] = []

    def put(self, key: Key, record: Record) -> None:
        # Invariant: a key is in `puts` or in `deletes`, never
        # in both, so that a store needs no order between them.
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
            self.applied,
        )


def _checked(owner: str, plan: Plan[Answer]) -> Plan[Answer]:
    """The plan, if it writes only records of its own component; else raises WrongWriter."""
    for record in plan.puts:
        kind = type(record)
        if not may_write(owner, kind):
            raise WrongWriter(f"{owner} wrote {record.key}, which is {WRITERS[kind]}'s")
    return plan


def _culprit(key: Key, applied: list[AppliedPlan]) -> Culprit:
    """The last plan of the batch that wrote the spec of that job or node, or else the last plan.

    A record of a new or updated job that cannot be applied is most likely the fault of that submit or update.
    """
    # A submit whose records fail later in the batch is
    # refused as a whole, rather than leaving a broken job.
    spec = f"{subject_of(key)}/spec"
    for source, plan in reversed(applied):
        if any(record.key == spec for record in plan.puts):
            return Culprit(source, wrote_spec=True)
    return Culprit(applied[-1].source, wrote_spec=False)


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
