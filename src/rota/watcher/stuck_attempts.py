"""Attempts that make no progress on a responsive node -> reported, refused or lost.

A connected node may still fail to answer an offer, to start what it has queued, or to stop what it was
ordered to stop. The silence of unresponsive nodes is handled by `liveness`.
"""

from enum import Enum
from typing import NamedTuple

from rota.engine.reconciler import Reconciler, own_id
from rota.model.attempt import StatusBlock
from rota.model.columns import ints
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptEvent, AttemptState, NodeState
from rota.model.limits import AGE_LOOK_MS, BLOCK_TASKS, OFFERED_MS, QUEUED_MS, STOPPING_MS, UNKILLABLE_MS
from rota.model.messages import AttemptReport, ReportedState
from rota.model.node import Connection, NodeStatus
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, wake_at
from rota.model.shape import RunMode
from rota.model.view import JobView, NodeView, View
from rota.rules.phases import Phase
from rota.rules.reconciler_names import ReconcilerName
from rota.watcher.attempt_reports import StatusUpdater

NAME = ReconcilerName.STUCK_ATTEMPTS


class StuckPhase(Enum):
    """Phases that an attempt must leave within a time limit."""

    OFFERED = "offered"
    QUEUED = "queued"
    STOPPING = "stopping"


_STUCK_PHASES: dict[int, StuckPhase] = {
    Phase.OFFERED: StuckPhase.OFFERED,
    Phase.QUEUED: StuckPhase.QUEUED,
    Phase.ACCEPTED: StuckPhase.QUEUED,
    Phase.STOPPING: StuckPhase.STOPPING,
}
Name = tuple[JobId, int, int]  # of an attempt: job, index, number


class StuckSince(NamedTuple):
    """Since when, in cluster time, an attempt is in its phase."""

    phase: StuckPhase
    ms: int
    is_reported: bool = False  # as unkillable


class StuckAttempts:
    """Since when each attempt is in its phase. In memory only: after a takeover all start at zero."""

    def __init__(self) -> None:
        self._since: dict[NodeId, dict[Name, StuckSince]] = {}

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        node = view.nodes.get(NodeId(key))
        if node is None or node.status is None:
            self._since.pop(NodeId(key), None)
            return NO_CHANGE
        if node.connection is not Connection.UP or node.status.state is not NodeState.READY:
            # Liveness handles the node meanwhile. The times start over when it is ready again.
            self._since.pop(node.spec.id, None)
            return wake_at(now.ms + AGE_LOOK_MS)
        since = self._observe(view, node, now)
        updater = StatusUpdater(view, node.spec.id)
        events = []
        for name, stuck in since.items():
            job = view.jobs[name[0]]
            if _end(job, name, stuck, updater, now):
                continue
            is_overdue = stuck.phase is StuckPhase.STOPPING and now.ms - stuck.ms >= _stop_ms(job)
            if is_overdue and not stuck.is_reported:
                events.append(_unkillable(job, name, node, updater))
                since[name] = stuck._replace(is_reported=True)
        puts = updater.puts()
        all_events = (
            *events,
            *(event for event in updater.events(node.spec.name) if event.kind == "task.ended"),
        )
        why = "; ".join(event.why for event in all_events)
        return Plan(puts, events=all_events, why=why, wake_at_ms=_next_check_ms(since, now))

    def _observe(self, view: View, node: NodeView, now: Instant) -> dict[Name, StuckSince]:
        before = self._since.get(node.spec.id, {})
        found: dict[Name, StuckSince] = {}
        for (job, index), number in node.assigned.items():
            phase = _phase_of(view.jobs[job], index, number)
            if phase is not None:
                known = before.get((job, index, number))
                same = known is not None and known.phase is phase
                found[job, index, number] = known if known and same else StuckSince(phase, now.ms)
        # Rebuilt each time, so that attempts which moved on or ended are dropped.
        self._since[node.spec.id] = found
        return found


def reconciler() -> Reconciler:
    return Reconciler(
        NAME, "watcher", {NodeStatus: own_id}, StuckAttempts().decide, lambda view: list(view.nodes)
    )


def _phase_of(job: JobView, index: int, number: int) -> StuckPhase | None:
    block, position = divmod(index, BLOCK_TASKS)
    phase = _STUCK_PHASES.get(job.phases[block][position])
    if phase is StuckPhase.STOPPING and not _is_accepted(job.statuses.get(block), position, number):
        return StuckPhase.OFFERED  # nothing runs yet: the node has to answer the offer
    return phase


def _is_accepted(status: StatusBlock | None, position: int, number: int) -> bool:
    if status is None or ints(status, "number")[position] != number:
        return False
    return status.state[position] >= AttemptState.ACCEPTED


def _end(job: JobView, name: Name, since: StuckSince, updater: StatusUpdater, now: Instant) -> bool:
    """End an attempt that exceeded its limit: refused if the task may be started again, else lost."""
    limit_ms, did = _LIMITS[since.phase]
    if now.ms - since.ms < limit_ms + (_stop_ms(job) if since.phase is StuckPhase.STOPPING else 0):
        return False
    reason = f"its node {did} in {_format_duration(limit_ms)}"
    if since.phase is not StuckPhase.STOPPING and job.spec.run is RunMode.AT_LEAST_ONCE:
        report = AttemptReport(
            name[1], name[2], ReportedState.REFUSED, ended_at_ms=now.wall_ms, reason=reason
        )
        updater.transition(job, report, AttemptEvent.REFUSED)
    else:
        report = AttemptReport(name[1], name[2], ReportedState.LOST, ended_at_ms=now.wall_ms, reason=reason)
        updater.transition(job, report, AttemptEvent.RESULT_LOST)
    return True


_LIMITS = {
    StuckPhase.OFFERED: (OFFERED_MS, "did not answer the offer"),
    StuckPhase.QUEUED: (QUEUED_MS, "did not start it"),
    StuckPhase.STOPPING: (STOPPING_MS, "could not stop it"),
}


def _next_check_ms(since: dict[Name, StuckSince], now: Instant) -> int:
    """When the next attempt exceeds its limit; AGE_LOOK_MS at most, since new offers wake no key here."""
    ends_ms = (stuck.ms + _LIMITS[stuck.phase][0] for stuck in since.values())
    return min([now.ms + AGE_LOOK_MS, *(at_ms for at_ms in ends_ms if at_ms > now.ms)])


def _unkillable(job: JobView, name: Name, node: NodeView, updater: StatusUpdater) -> EventRecord:
    """Report the attempt as unkillable, and set its state to stopping if the node has not reported that."""
    _, index, number = name
    reason = f"unkillable: not stopped {_format_duration(_stop_ms(job))} after it was asked to"
    report = AttemptReport(
        index, number, ReportedState.STOPPING, started_at_ms=_started_at_ms(job, index), reason=reason
    )
    updater.transition(job, report, AttemptEvent.STOP_ORDERED)
    why = f"task {index} of job {job.spec.id} on {node.spec.name} is {reason}"
    state = AttemptState.STOPPING.name.lower()
    return EventRecord(
        "task.unkillable", why, job=job.spec.id, node=node.spec.id, indices=((index, index),), state=state
    )


def _stop_ms(job: JobView) -> int:
    return round(job.spec.grace_seconds * 1000) + UNKILLABLE_MS


def _started_at_ms(job: JobView, index: int) -> int:
    block, position = divmod(index, BLOCK_TASKS)
    status = job.statuses.get(block)
    return 0 if status is None else ints(status, "started_at_ms")[position]


def _format_duration(ms: int) -> str:
    hours, remainder = divmod(ms, 3_600_000)
    return f"{hours} h" if hours and not remainder else f"{ms / 1000:g} s"
