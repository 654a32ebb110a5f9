"""A job that no node can take -> a record of the reason, and an event whenever that changes.

Theory of operation
-------------------
A pending job is *unplaceable* for one of three causes (`rota.model.job.UnplaceableCause`):

* INFEASIBLE: no node of its cluster could run a task of it, even if it were empty and open, and no node that
  could is going to be added automatically;
* REFUSED: every open node that could run it has refused one of its tasks lately;
* NO_FREE_NODE: it fits nowhere now, has waited for a second, and asks for nodes (`when_unschedulable =
  "scale"`).

The cause is a record, so that the event is sent once per change, also across a restart of the server, and so
that the API can show the reason without examining nodes. A pending job costs nothing in later rounds: its own
key is decided when it becomes active, when a node refuses one of its tasks and, once it has a record, when
its attempts change. Changes of nodes wake one key (`QUEUES_KEY`), which checks the first job of each queue,
in slices, and the others of a queue only where the result for the first one has changed. Every few seconds it
also checks jobs that ran before and have joined a queue again since.

A refusal expires after 30 s and the task is offered again, so a job that every node refuses alternates
between pending and offered. REFUSED therefore stays until a node has accepted a task of the job, not until
the refusals have expired.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.attempt import StatusBlock
from rota.model.cluster import ClusterIntent, ClusterRecord
from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import (
    JobCluster,
    JobKind,
    JobSpec,
    JobStatus,
    Unplaceable,
    UnplaceableCause,
    Unschedulable,
)
from rota.model.lifecycle import AttemptState, JobState
from rota.model.limits import (
    ASK_FOR_NODE_MS,
    NODE_TASKS_MAX,
    ROWS_KEPT,
    UNPLACEABLE_CHECK_MS,
    UNPLACEABLE_JOBS_PER_CHECK,
    UNPLACEABLE_PASS_MS,
    UNPLACEABLE_QUEUES_PER_CHECK,
)
from rota.model.node import NodeIntent, NodeSpec, NodeStatus
from rota.model.node_table import NodeTable
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, wake_at
from rota.model.shape import QueueKey, Shape
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.rules.reconciler_names import ReconcilerName
from rota.scheduler.explain.obstacles import check_feasibility
from rota.scheduler.explain.scaling import command_for_new_node, new_node_would_help
from rota.scheduler.order import count_accepted, must_start_now
from rota.scheduler.placement.filters import matching_nodes
from rota.scheduler.placement.place import Placer, refusing_slots
from rota.scheduler.placement.rows import Plugins

QUEUES_KEY = "lines"  # the key for all queues; every other key is a job
# Enum members are slow to look up, and these are needed at every report.
_REFUSED, _ACTIVE, _SCALE = int(AttemptState.REFUSED), JobState.ACTIVE, Unschedulable.SCALE


def reconciler(plugins: Plugins | None = None) -> Reconciler:
    found = UnplaceableJobs(plugins)
    return Reconciler(ReconcilerName.UNPLACEABLE, "scheduler", found.wakes, found.decide, found.start)


class _Candidate(NamedTuple):
    """A job to check because the result for another job of its queue has changed."""

    job: JobId
    accepted: bool  # a node has accepted a task of that other job


class UnplaceableJobs:
    """The reconciler. Everything kept here can be computed again from the view."""

    def __init__(self, plugins: Plugins | None = None) -> None:
        self._plugins = plugins
        self._reset()

    def _reset(self) -> None:
        self._capable = _CapableNodes()
        self._reasons = _ReasonCache(self._plugins)
        self._recorded: dict[JobId, None] = {}  # jobs with a record whose cause is not NONE
        self._scaling: dict[JobId, None] = {}  # jobs with when_unschedulable = "scale"
        self._asks_at_ms: dict[JobId, int] = {}  # when pending jobs of these ask for a node
        self._queues: deque[QueueKey] = deque()  # to be checked
        self._candidates: deque[_Candidate] = deque()
        self._candidate_queues: dict[QueueKey, None] = {}  # queues whose jobs are among the candidates
        self._refused_queues: dict[QueueKey, None] = {}  # queues with a refusal since the last check
        self._has_new_candidates = False  # added under a job's own key: QUEUES_KEY has to be woken
        self._eligibility_version = -1  # of the node table when all queues were last checked
        self._changes_read = -1  # position in the log of queue changes; -1: nothing read yet
        self._last_pass_ms = -UNPLACEABLE_PASS_MS

    @property
    def wakes(self) -> Wakes:
        return {
            JobStatus: self._on_job_status,
            JobSpec: self._on_job_spec,
            TaskBlock: lambda block: (block.job,) if block.job in self._scaling else (),
            JobCluster: lambda record: (record.id,) if record.moved else (),
            StatusBlock: self._on_status_block,
            Unplaceable: self._on_unplaceable,
            **dict.fromkeys((NodeSpec, NodeStatus, NodeIntent), lambda _: (QUEUES_KEY,)),
            **dict.fromkeys((ClusterRecord, ClusterIntent), self._on_cluster),
        }

    def start(self, view: View) -> Iterable[str]:
        # At each load of the state: nothing that was derived from the previous view may survive.
        self._reset()
        for name, job in view.jobs.items():
            if job.status is None or not job.status.ended:
                self._recorded |= {} if _recorded_cause(job) is UnplaceableCause.NONE else {name: None}
                self._scaling |= {name: None} if job.spec.when_unschedulable is _SCALE else {}
        return (QUEUES_KEY, *self._scaling)

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        if view.disk_low:  # the space that is left is for the results of running tasks
            return wake_at(now.ms + UNPLACEABLE_CHECK_MS)
        if key == QUEUES_KEY:
            return self._check_queues(view, now)
        job = view.jobs.get(JobId(key))
        if job is None:
            return NO_CHANGE
        found = self._find_record(view, job, now)
        if view.refused_by(job.spec.refusal_key):
            self._refused_queues |= dict.fromkeys(_queues_refused_like(view, job))
        if found is None:
            at_ms = self._asks_at_ms.get(job.spec.id)
            return NO_CHANGE if at_ms is None else wake_at(at_ms)
        self._add_jobs_like(view, job, found, now)
        return self._plan(view, [found])

    # ---- wakes

    def _on_job_status(self, status: JobStatus) -> Iterable[str]:
        if status.ended:
            self._recorded.pop(status.id, None)
            self._scaling.pop(status.id, None)
            self._asks_at_ms.pop(status.id, None)
        return (status.id,) if status.state is _ACTIVE else ()

    def _on_job_spec(self, spec: JobSpec) -> Iterable[str]:
        if spec.when_unschedulable is _SCALE:
            self._scaling[spec.id] = None
        return (spec.id,) if spec.version > 1 else ()

    def _on_status_block(self, block: StatusBlock) -> Iterable[str]:
        return (block.job,) if block.job in self._recorded or _REFUSED in block.state else ()

    def _on_unplaceable(self, record: Unplaceable) -> Iterable[str]:
        self._asks_at_ms.pop(record.id, None)
        if record.cause is UnplaceableCause.NONE:
            self._recorded.pop(record.id, None)
        else:
            self._recorded[record.id] = None
        # A job's own key has found candidates of its queue. Only the write of its record can wake QUEUES_KEY.
        is_new, self._has_new_candidates = self._has_new_candidates, False
        return (QUEUES_KEY,) if is_new else ()

    def _on_cluster(self, record: ClusterRecord | ClusterIntent) -> Iterable[str]:
        del record
        self._eligibility_version = -1  # it may provision other nodes than before
        return (QUEUES_KEY,)

    # ---- all queues, in slices

    def _check_queues(self, view: View, now: Instant) -> Plan:
        if self._eligibility_version != view.node_table.eligibility_version and not self._queues:
            # Nodes that join one after another would otherwise cost a pass over all queues each.
            if now.ms < self._last_pass_ms + UNPLACEABLE_PASS_MS:
                return wake_at(self._last_pass_ms + UNPLACEABLE_PASS_MS)
            self._eligibility_version, self._last_pass_ms = view.node_table.eligibility_version, now.ms
            self._queues.extend(queue for queue, _ in view.pending_queues())
        self._read_changes(view)
        self._read_refusals(view)
        # In slices: with 100,000 queues one pass would delay every other decision of the loop.
        for _ in range(min(len(self._queues), UNPLACEABLE_QUEUES_PER_CHECK)):
            self._check_queue(view, self._queues.popleft(), now)
        asking = [job for job, at_ms in self._asks_at_ms.items() if at_ms <= now.ms]
        self._candidates.extend(_Candidate(job, accepted=False) for job in asking)
        found: dict[JobId, Unplaceable] = {}  # a job may be a candidate more than once
        for _ in range(min(len(self._candidates), UNPLACEABLE_JOBS_PER_CHECK)):
            candidate = self._candidates.popleft()
            job = view.jobs.get(candidate.job)
            record = None if job is None else self._find_record(view, job, now, accepted=candidate.accepted)
            if record is not None:
                found[record.id] = record
        if not self._candidates:
            # Until all candidates are checked their queues are not added again; then a
            # later change may add them.
            self._candidate_queues.clear()
        is_more = bool(self._queues or self._candidates)
        next_ms = now.ms + (1 if is_more else UNPLACEABLE_CHECK_MS)
        later = (at_ms for at_ms in self._asks_at_ms.values() if at_ms > now.ms)
        return self._plan(view, list(found.values())).but(wake_at_ms=min(later, default=next_ms))

    def _read_changes(self, view: View) -> None:
        """Check jobs that have joined a queue again: no record wakes their key when a task is pending again.

        A job that was never placed was checked when it became active.
        """
        log, read = view.queue_changes, self._changes_read
        changes, self._changes_read = log.since(read) if read >= 0 else [], log.position
        if changes is None:  # the log no longer reaches back that far
            self._queues.extend(queue for queue, _ in view.pending_queues())
            return
        joined = dict.fromkeys(
            JobId(str(change.joined[2])) for change in changes if change.joined is not None
        )
        # Without attempts it is new, and its status has woken its own key.
        again = [job for job in joined if job in view.jobs and view.jobs[job].attempts]
        self._candidates.extend(_Candidate(job, accepted=False) for job in again if view.jobs[job].queue)

    def _read_refusals(self, view: View) -> None:
        """Check every job of a refused queue that is not recorded as refused.

        A node refuses all jobs of one queue for the same reason, but only one of them is offered to it.
        Another may have joined the queue while earlier refusals had expired.
        """
        for queue in self._refused_queues:
            jobs = (JobId(str(rank[2])) for rank in view.pending_queue(queue))
            unlike = [job for job in jobs if _recorded_cause(view.jobs[job]) is not UnplaceableCause.REFUSED]
            self._candidates.extend(_Candidate(job, accepted=False) for job in unlike)
        self._refused_queues.clear()

    def _check_queue(self, view: View, queue: QueueKey, now: Instant) -> None:
        ranks = view.pending_queue(queue)
        if ranks and self._find_record(view, view.jobs[JobId(str(ranks[0][2]))], now) is not None:
            self._candidates.extend(_Candidate(JobId(str(rank[2])), accepted=False) for rank in ranks)

    def _add_jobs_like(self, view: View, job: JobView, found: Unplaceable, now: Instant) -> None:
        """Check the other jobs of the queue too, unless the record of the first of them is up to date.

        Without that condition each job that joins a queue would cost a check of all jobs in it.
        """
        accepted = found.cause is UnplaceableCause.NONE
        for queue in _queues_of(job):
            ranks = () if queue in self._candidate_queues else view.pending_queue(queue)
            names = (JobId(str(rank[2])) for rank in ranks[:2])
            other = next((name for name in names if name != job.spec.id), None)
            if other is None or self._find_record(view, view.jobs[other], now, accepted=accepted) is None:
                continue
            self._candidate_queues[queue] = None
            self._candidates.extend(_Candidate(JobId(str(rank[2])), accepted) for rank in ranks)
            self._has_new_candidates = True

    # ---- one job

    def _find_record(
        self, view: View, job: JobView, now: Instant, *, accepted: bool = False
    ) -> Unplaceable | None:
        """The record to write; None: the existing record, or its absence, is right."""
        spec, recorded = job.spec, _recorded_cause(job)
        if job.status is None or job.status.state is not _ACTIVE or spec.kind is JobKind.SYSTEM:
            self._asks_at_ms.pop(spec.id, None)
            return None
        record = job.unplaceable
        if (
            record is not None
            and recorded is not UnplaceableCause.NONE
            and count_accepted(job) > record.begun
        ):
            return Unplaceable(spec.id)
        # It is offered, paused or at its limit; or the round rejects it.
        if job.queue is None or must_start_now(job):
            self._asks_at_ms.pop(spec.id, None)
            return None
        cause = self._cause(view, job, now)
        if cause is UnplaceableCause.NONE and spec.when_unschedulable is _SCALE:
            cause = self._cause_of_waiting(spec.id, recorded, now)
        else:
            self._asks_at_ms.pop(spec.id, None)
        # Refusals expire after 30 s and the task is offered again. Without this the record, and its
        # event, would alternate at every offer.
        is_kept = recorded is UnplaceableCause.REFUSED and cause is UnplaceableCause.NONE and not accepted
        if cause is recorded or is_kept:
            return None
        reason = "" if cause is UnplaceableCause.NONE else self._reasons.get(view, job, cause, now)
        return Unplaceable(spec.id, cause, reason, count_accepted(job))

    def _cause_of_waiting(self, job: JobId, recorded: UnplaceableCause, now: Instant) -> UnplaceableCause:
        """Ask for a node only after a short wait: the next round may place the job."""
        if recorded is UnplaceableCause.NO_FREE_NODE:
            return recorded
        from_ms = self._asks_at_ms.setdefault(job, now.ms + ASK_FOR_NODE_MS)
        return UnplaceableCause.NONE if now.ms < from_ms else UnplaceableCause.NO_FREE_NODE

    def _cause(self, view: View, job: JobView, now: Instant) -> UnplaceableCause:
        table, spec = view.node_table, job.spec
        capable = self._capable.mask(table, spec.shape)
        if not capable.any() or (spec.gang and _tasks_when_empty(table, spec.shape, capable) < spec.size):
            is_known = _recorded_cause(job) is UnplaceableCause.INFEASIBLE
            return UnplaceableCause.INFEASIBLE if is_known or _is_final(view, spec) else UnplaceableCause.NONE
        refused = refusing_slots(view, job, now)
        if not capable[refused].any():
            return UnplaceableCause.NONE
        others = capable & table.open[: table.size]
        others[refused] = False
        return UnplaceableCause.NONE if others.any() else UnplaceableCause.REFUSED

    def _plan(self, view: View, records: list[Unplaceable]) -> Plan:
        events = [event for record in records for event in _events(view, record)]
        return Plan(tuple(records), events=tuple(events), why="; ".join(event.why for event in events))


class _CapableNodes:
    """Cache of the nodes that could run a task of a shape if they were empty and open."""

    def __init__(self) -> None:
        self._version = -1  # of the node table's eligibility
        self._known: dict[Shape, Array] = {}

    def mask(self, node_table: NodeTable, shape: Shape) -> Array:
        if node_table.eligibility_version != self._version or len(self._known) >= ROWS_KEPT:
            self._version, self._known = node_table.eligibility_version, {}
        capable = self._known.get(shape)
        if capable is None or capable.size != node_table.size:
            capable = matching_nodes(node_table, shape) & _has_reported(node_table)
            for resource, amount in shape.needs:
                row = node_table.rows.get(resource)
                if amount:
                    capable &= row is not None and node_table.capacity[row, : node_table.size] >= amount
            self._known[shape] = capable
        return capable


class _ReasonCache:
    """Cache of the texts that explain why no node can run a job; equal jobs share one."""

    def __init__(self, plugins: Plugins | None) -> None:
        self._plugins = plugins
        self._known: dict[tuple[object, ...], str] = {}

    def get(self, view: View, job: JobView, cause: UnplaceableCause, now: Instant) -> str:
        refused = tuple(view.refused_by(job.spec.refusal_key).items())
        key = (job.spec.refusal_key, job.spec.size, cause, view.node_table.eligibility_version, refused)
        if key not in self._known or cause is UnplaceableCause.NO_FREE_NODE:  # depends on what is free
            if len(self._known) >= ROWS_KEPT:
                self._known.clear()
            self._known[key] = self._find(view, job, cause, now)
        return self._known[key]

    def _find(self, view: View, job: JobView, cause: UnplaceableCause, now: Instant) -> str:
        obstacles = check_feasibility(view, Placer(view, self._plugins), job, None, now).obstacles
        if cause is not UnplaceableCause.NO_FREE_NODE:
            obstacles = [
                obstacle for obstacle in obstacles if obstacle.lasting or obstacle.reason.kind == "refused"
            ]
        reasons = sorted((obstacle.reason for obstacle in obstacles), key=lambda reason: -reason.count)
        if not reasons and job.spec.gang:
            return f"all nodes together hold fewer than its {job.spec.size} tasks, which start at once"
        return "; ".join(reason.text for reason in reasons) or "no node has room for it"


def _queues_of(job: JobView) -> Iterable[QueueKey]:
    """Queues of jobs that are equal to this one for placement."""
    queues = (job.queue, job.spec.refusal_key, job.spec.queue_key)
    return dict.fromkeys(queue for queue in queues if queue is not None)


def _queues_refused_like(view: View, job: JobView) -> Iterable[QueueKey]:
    """Queues whose jobs a node refuses like this one; gangs also differ by the number of tasks to start."""
    equal = (job.spec.refusal_key, job.spec.queue_key)
    if not job.spec.gang:
        return equal
    gangs = (queue for queue, _ in view.pending_queues() if queue.gang and queue.shape == job.spec.shape)
    return (queue for queue in gangs if msgspec.structs.replace(queue, gang=0) in equal)


def _recorded_cause(job: JobView) -> UnplaceableCause:
    return UnplaceableCause.NONE if job.unplaceable is None else job.unplaceable.cause


def _has_reported(node_table: NodeTable) -> Array:
    """Mask of the nodes that have reported their capacity."""
    reported: Array = np.logical_or.reduce(node_table.capacity[:, : node_table.size] > 0, axis=0)
    return reported


def _tasks_when_empty(node_table: NodeTable, shape: Shape, capable: Array) -> int:
    """Number of tasks of a shape that all these nodes together could run when empty."""
    most = np.where(capable, NODE_TASKS_MAX, 0)
    for resource, amount in shape.needs:
        if amount:
            most = np.minimum(
                most, node_table.capacity[node_table.rows[resource], : node_table.size] // amount
            )
    return int(most.sum())


def _is_final(view: View, spec: JobSpec) -> bool:
    """Whether some node of its cluster has reported, and no new one will be added automatically."""
    outside = view.node_table.other_clusters(spec.home)
    reported = _has_reported(view.node_table)
    # After a restart nodes reconnect one by one. Before the first has reported, nothing is known of any job.
    if not (reported if outside is None else reported & ~outside).any():
        return False
    return command_for_new_node(view, spec) is not None or not new_node_would_help(view, spec)


def _events(view: View, record: Unplaceable) -> Iterable[EventRecord]:
    job = view.jobs[record.id]
    match record.cause:
        case UnplaceableCause.NONE:
            yield EventRecord("placement.possible", f"job {record.id} can be placed again", job=record.id)
            return
        case UnplaceableCause.INFEASIBLE | UnplaceableCause.REFUSED:
            why = f"job {record.id} cannot be placed: {record.reason}"
            yield EventRecord("placement.impossible", why, job=record.id, state=record.cause.value)
        case UnplaceableCause.NO_FREE_NODE:
            pass
    if job.spec.when_unschedulable is _SCALE and new_node_would_help(view, job.spec):
        command = command_for_new_node(view, job.spec)
        how = "" if command is None else f" ({command})"
        why = f"job {record.id} asks for a node in cluster {job.spec.home}{how}: {record.reason}"
        yield EventRecord("placement.needs_node", why, job=record.id, cluster=job.spec.home)
