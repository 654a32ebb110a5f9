"""A job that no node can take -> a record of the reason, and an event whenever that changes.

Theory of operation
-------------------
A job that waits in a line is *unplaceable* in one of three ways (`rota.model.job.Cause`):

* NEVER: no node of its cluster could run a task of it, even if it were empty and open, and no node that
  could comes by itself;
* REFUSED: every open node that could run it has refused one of its tasks lately;
* WAITS: it finds no room, has waited for a second, and asks for nodes (`when_unschedulable = "scale"`).

What was found is a record, so that the event is sent once per change, also across a restart of the server,
and so that the API can show the reason without looking at nodes. A job that waits costs nothing in later
rounds: its own key is looked at when it becomes active, when a node refuses one of its tasks and, once it has
a record, when its attempts change. Nodes that change are one key (`LINES`), which looks at the first job of
each line, in slices, and at the others of a line only where the first one has changed. Every few seconds it
also looks at jobs that ran before and have joined a line again since.

A refusal lapses after 30 s and the task is offered again, so a job that every node refuses alternates between
waiting and being offered. REFUSED therefore stays until a node has accepted a task of the job, not until the
refusals have lapsed.
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

QUEUES_KEY = "lines"  # the key under which all lines are looked at; every other key is a job
# Enum members are slow to look up, and these are needed at every report.
_REFUSED, _ACTIVE, _SCALE = int(AttemptState.REFUSED), JobState.ACTIVE, Unschedulable.SCALE


def reconciler(plugins: Plugins | None = None) -> Reconciler:
    found = UnplaceableJobs(plugins)
    return Reconciler(ReconcilerName.UNPLACEABLE, "scheduler", found.wakes, found.decide, found.start)


class _Candidate(NamedTuple):
    """A job to look at because another one of its line has changed."""

    job: JobId
    eased: bool  # a node has accepted a task of that other job


class UnplaceableJobs:
    """Everything kept here can be computed again from the view."""

    def __init__(self, plugins: Plugins | None = None) -> None:
        self._plugins = plugins
        self._reset()

    def _reset(self) -> None:
        self._capable = _CapableNodes()
        self._reasons = _ReasonCache(self._plugins)
        self._recorded: dict[JobId, None] = {}  # jobs with a record that holds
        self._scaling: dict[JobId, None] = {}  # jobs that ask for nodes when they wait
        self._asks_at_ms: dict[JobId, int] = {}  # those that wait and have not asked: when they do
        self._queues: deque[QueueKey] = deque()  # to be looked at
        self._candidates: deque[_Candidate] = deque()
        self._candidate_queues: dict[QueueKey, None] = {}  # lines whose jobs are among them
        self._refused_queues: dict[
            QueueKey, None
        ] = {}  # lines of jobs that a node has refused since the last look
        self._has_new_candidates = False  # of a job's own key: LINES does not know of them
        self._eligibility_version = -1  # of the room when all lines were last looked at
        self._changes_read = -1  # position in the log of lines that jobs joined; -1: nothing is read yet
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
        self._reset()
        for name, job in view.jobs.items():
            if job.status is None or not job.status.ended:
                self._recorded |= {} if _recorded_cause(job) is UnplaceableCause.NONE else {name: None}
                self._scaling |= {name: None} if job.spec.when_unschedulable is _SCALE else {}
        return (QUEUES_KEY, *self._scaling)

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        if view.disk_low:  # of disk space: what is left is for the ends of what runs
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

    # ---- what wakes

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
        is_new, self._has_new_candidates = self._has_new_candidates, False
        return (QUEUES_KEY,) if is_new else ()

    def _on_cluster(self, record: ClusterRecord | ClusterIntent) -> Iterable[str]:
        del record
        self._eligibility_version = -1  # it may make other nodes than before
        return (QUEUES_KEY,)

    # ---- all lines, in slices

    def _check_queues(self, view: View, now: Instant) -> Plan:
        if self._eligibility_version != view.node_table.eligibility_version and not self._queues:
            if now.ms < self._last_pass_ms + UNPLACEABLE_PASS_MS:
                return wake_at(self._last_pass_ms + UNPLACEABLE_PASS_MS)
            self._eligibility_version, self._last_pass_ms = view.node_table.eligibility_version, now.ms
            self._queues.extend(line for line, _ in view.pending_queues())
        self._read_changes(view)
        self._read_refusals(view)
        for _ in range(min(len(self._queues), UNPLACEABLE_QUEUES_PER_CHECK)):
            self._check_queue(view, self._queues.popleft(), now)
        asking = [job for job, at_ms in self._asks_at_ms.items() if at_ms <= now.ms]
        self._candidates.extend(_Candidate(job, eased=False) for job in asking)
        found: dict[JobId, Unplaceable] = {}  # a job may be suspected for several reasons
        for _ in range(min(len(self._candidates), UNPLACEABLE_JOBS_PER_CHECK)):
            suspect = self._candidates.popleft()
            job = view.jobs.get(suspect.job)
            record = None if job is None else self._find_record(view, job, now, eased=suspect.eased)
            if record is not None:
                found[record.id] = record
        if not self._candidates:
            self._candidate_queues.clear()
        is_more = bool(self._queues or self._candidates)
        next_ms = now.ms + (1 if is_more else UNPLACEABLE_CHECK_MS)
        later = (at_ms for at_ms in self._asks_at_ms.values() if at_ms > now.ms)
        return self._plan(view, list(found.values())).but(wake_at_ms=min(later, default=next_ms))

    def _read_changes(self, view: View) -> None:
        """Suspect jobs that have joined a line again: no key of theirs is woken when a task pends again.

        A job that was never placed was looked at when it became active.
        """
        log, read = view.queue_changes, self._changes_read
        changes, self._changes_read = log.since(read) if read >= 0 else [], log.position
        if changes is None:  # too many were missed
            self._queues.extend(line for line, _ in view.pending_queues())
            return
        joined = dict.fromkeys(JobId(str(one.joined[2])) for one in changes if one.joined is not None)
        again = [job for job in joined if job in view.jobs and view.jobs[job].attempts]
        self._candidates.extend(_Candidate(job, eased=False) for job in again if view.jobs[job].queue)

    def _read_refusals(self, view: View) -> None:
        """Suspect every job of a refused line that is not known to be refused.

        A node refuses all that wait in one line alike, but only one of them is offered to it. Another may
        have joined the line while earlier refusals had lapsed.
        """
        for line in self._refused_queues:
            jobs = (JobId(str(turn[2])) for turn in view.pending_queue(line))
            unlike = [job for job in jobs if _recorded_cause(view.jobs[job]) is not UnplaceableCause.REFUSED]
            self._candidates.extend(_Candidate(job, eased=False) for job in unlike)
        self._refused_queues.clear()

    def _check_queue(self, view: View, queue: QueueKey, now: Instant) -> None:
        turns = view.pending_queue(queue)
        if turns and self._find_record(view, view.jobs[JobId(str(turns[0][2]))], now) is not None:
            self._candidates.extend(_Candidate(JobId(str(turn[2])), eased=False) for turn in turns)

    def _add_jobs_like(self, view: View, job: JobView, found: Unplaceable, now: Instant) -> None:
        """Jobs that wait for the same are to be looked at too, unless the first of them is up to date.

        Without that condition each job that joins a line would cost a look at all that are in it.
        """
        eased = found.cause is UnplaceableCause.NONE
        for line in _queues_of(job):
            turns = () if line in self._candidate_queues else view.pending_queue(line)
            names = (JobId(str(turn[2])) for turn in turns[:2])
            other = next((name for name in names if name != job.spec.id), None)
            if other is None or self._find_record(view, view.jobs[other], now, eased=eased) is None:
                continue
            self._candidate_queues[line] = None
            self._candidates.extend(_Candidate(JobId(str(turn[2])), eased) for turn in turns)
            self._has_new_candidates = True

    # ---- one job

    def _find_record(
        self, view: View, job: JobView, now: Instant, *, eased: bool = False
    ) -> Unplaceable | None:
        """The record to write; None: the one there is, or none, is right."""
        spec, told = job.spec, _recorded_cause(job)
        if job.status is None or job.status.state is not _ACTIVE or spec.kind is JobKind.SYSTEM:
            self._asks_at_ms.pop(spec.id, None)
            return None
        record = job.unplaceable
        if record is not None and told is not UnplaceableCause.NONE and count_accepted(job) > record.begun:
            return Unplaceable(spec.id)
        if job.queue is None or must_start_now(
            job
        ):  # offered, paused, at its limit; or rejected by the round
            self._asks_at_ms.pop(spec.id, None)
            return None
        cause = self._cause(view, job, now)
        if cause is UnplaceableCause.NONE and spec.when_unschedulable is _SCALE:
            cause = self._cause_of_waiting(spec.id, told, now)
        else:
            self._asks_at_ms.pop(spec.id, None)
        is_kept = told is UnplaceableCause.REFUSED and cause is UnplaceableCause.NONE and not eased
        if cause is told or is_kept:
            return None
        reason = "" if cause is UnplaceableCause.NONE else self._reasons.get(view, job, cause, now)
        return Unplaceable(spec.id, cause, reason, count_accepted(job))

    def _cause_of_waiting(self, job: JobId, told: UnplaceableCause, now: Instant) -> UnplaceableCause:
        """A job that asks for nodes does so when it has waited a little: the next round may place it."""
        if told is UnplaceableCause.NO_FREE_NODE:
            return told
        from_ms = self._asks_at_ms.setdefault(job, now.ms + ASK_FOR_NODE_MS)
        return UnplaceableCause.NONE if now.ms < from_ms else UnplaceableCause.NO_FREE_NODE

    def _cause(self, view: View, job: JobView, now: Instant) -> UnplaceableCause:
        room, spec = view.node_table, job.spec
        able = self._capable.mask(room, spec.shape)
        if not able.any() or (spec.gang and _tasks_when_empty(room, spec.shape, able) < spec.size):
            is_known = _recorded_cause(job) is UnplaceableCause.INFEASIBLE
            return UnplaceableCause.INFEASIBLE if is_known or _is_final(view, spec) else UnplaceableCause.NONE
        refused = refusing_slots(view, job, now)
        if not able[refused].any():
            return UnplaceableCause.NONE
        others = able & room.open[: room.size]
        others[refused] = False
        return UnplaceableCause.NONE if others.any() else UnplaceableCause.REFUSED

    def _plan(self, view: View, records: list[Unplaceable]) -> Plan:
        events = [event for record in records for event in _events(view, record)]
        return Plan(tuple(records), events=tuple(events), why="; ".join(event.why for event in events))


class _CapableNodes:
    """Which nodes could run a task of a shape, were they empty and open; kept while no node changes."""

    def __init__(self) -> None:
        self._version = -1  # Room.doors
        self._known: dict[Shape, Array] = {}

    def mask(self, node_table: NodeTable, shape: Shape) -> Array:
        if node_table.eligibility_version != self._version or len(self._known) >= ROWS_KEPT:
            self._version, self._known = node_table.eligibility_version, {}
        able = self._known.get(shape)
        if able is None or able.size != node_table.size:
            able = matching_nodes(node_table, shape) & _has_reported(node_table)
            for resource, amount in shape.needs:
                row = node_table.rows.get(resource)
                if amount:
                    able &= row is not None and node_table.capacity[row, : node_table.size] >= amount
            self._known[shape] = able
        return able


class _ReasonCache:
    """Why no node can take a job, in words. Jobs that wait for the same have the same reason."""

    def __init__(self, plugins: Plugins | None) -> None:
        self._plugins = plugins
        self._known: dict[tuple[object, ...], str] = {}

    def get(self, view: View, job: JobView, cause: UnplaceableCause, now: Instant) -> str:
        refused = tuple(view.refused_by(job.spec.refusal_key).items())
        key = (job.spec.refusal_key, job.spec.size, cause, view.node_table.eligibility_version, refused)
        if key not in self._known or cause is UnplaceableCause.NO_FREE_NODE:  # that changes with what is free
            if len(self._known) >= ROWS_KEPT:
                self._known.clear()
            self._known[key] = self._find(view, job, cause, now)
        return self._known[key]

    def _find(self, view: View, job: JobView, cause: UnplaceableCause, now: Instant) -> str:
        obstacles = check_feasibility(view, Placer(view, self._plugins), job, None, now).obstacles
        if cause is not UnplaceableCause.NO_FREE_NODE:
            obstacles = [one for one in obstacles if one.lasting or one.reason.kind == "refused"]
        reasons = sorted((one.reason for one in obstacles), key=lambda reason: -reason.count)
        if not reasons and job.spec.gang:
            return f"all nodes together hold fewer than its {job.spec.size} tasks, which start at once"
        return "; ".join(reason.text for reason in reasons) or "no node has room for it"


def _queues_of(job: JobView) -> Iterable[QueueKey]:
    """Lines of jobs that wait for the same, wherever this one is."""
    lines = (job.queue, job.spec.refusal_key, job.spec.queue_key)
    return dict.fromkeys(line for line in lines if line is not None)


def _queues_refused_like(view: View, job: JobView) -> Iterable[QueueKey]:
    """The lines whose jobs a node refuses like this one. Those of gangs differ by the tasks left to start."""
    alike = (job.spec.refusal_key, job.spec.queue_key)
    if not job.spec.gang:
        return alike
    gangs = (line for line, _ in view.pending_queues() if line.gang and line.shape == job.spec.shape)
    return (line for line in gangs if msgspec.structs.replace(line, gang=0) in alike)


def _recorded_cause(job: JobView) -> UnplaceableCause:
    return UnplaceableCause.NONE if job.unplaceable is None else job.unplaceable.cause


def _has_reported(node_table: NodeTable) -> Array:
    """Nodes that have said what they have."""
    called: Array = np.logical_or.reduce(node_table.capacity[:, : node_table.size] > 0, axis=0)
    return called


def _tasks_when_empty(node_table: NodeTable, shape: Shape, able: Array) -> int:
    """How many tasks of a shape all these nodes together hold when they are empty."""
    most = np.where(able, NODE_TASKS_MAX, 0)
    for resource, amount in shape.needs:
        if amount:
            most = np.minimum(
                most, node_table.capacity[node_table.rows[resource], : node_table.size] // amount
            )
    return int(most.sum())


def _is_final(view: View, spec: JobSpec) -> bool:
    """Some node of its cluster has called, and no other one comes by itself."""
    outside = view.node_table.other_clusters(spec.home)
    called = _has_reported(view.node_table)
    if not (called if outside is None else called & ~outside).any():
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
