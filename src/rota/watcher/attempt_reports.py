"""Reports of a node on attempts -> status blocks and events.

Reports are claims until they are checked: one counts only for the live attempt with this number on this very
node, and only if the attempt's state may change that way. All others are ignored without an error, because
delayed and repeated reports are normal.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from rota.model.attempt import NO_EXIT_CODE, AttemptBlock, OldStatus, StatusBlock
from rota.model.columns import Draft, Ranges, column, ints
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import ATTEMPT, ATTEMPT_FIRST_END, AttemptEvent, AttemptState
from rota.model.limits import BLOCK_TASKS, SUPERSEDED_KEPT
from rota.model.messages import AttemptReport, JobReports, ReportedState
from rota.model.node import Eligibility
from rota.model.plan import EventRecord
from rota.model.service import ServiceStatus
from rota.model.view import JobView, View
from rota.watcher.report_events import Marks, ServiceEvents, StepEvents

_COPIED = ("exit_code", "signal", "started_at_ms", "ended_at_ms", "ran_us", "cpu_us", "peak_kib")
_STATES = list(AttemptState)  # by number
_OFFERED = AttemptState.OFFERED
_LIVE = (AttemptState.RUNNING, AttemptState.STOPPING)


class StatusUpdater:
    """The status blocks that one report changes. Stale, foreign and out-of-order reports are ignored."""

    def __init__(self, view: View, node: NodeId) -> None:
        self._view = view
        self._node = node
        self._blocks: dict[tuple[JobId, int], _StatusDraft] = {}
        self._indices: dict[_EventGroup, list[int]] = {}
        self._reasons: dict[_EventGroup, str] = {}
        self._ended: dict[tuple[JobId, int], None] = {}
        self._steps = StepEvents()
        self._services = ServiceEvents()

    def apply_reports(self, reports: Iterable[JobReports]) -> None:
        for job_reports in reports:
            job = self._view.jobs.get(job_reports.job)
            if job is not None:
                for report in job_reports.reports:
                    self._apply_report(job, report)

    def _apply_report(self, job: JobView, report: AttemptReport) -> None:
        """Apply one report; a failure that the task has reported itself overrides exit code 0."""
        event = event_of(report, job.spec.is_service)
        # The result is stored before the exit is reported, so it can override the exit code here.
        if event is AttemptEvent.EXITED_ZERO and job.results:
            result = job.results.get((report.index, report.attempt))
            if result is not None and result.failure is not None:
                reason = f"it reported a failure: {result.failure}"
                report, event = report.with_reason(reason), AttemptEvent.EXITED_NONZERO
        self.transition(job, report, event)

    def transition(self, job: JobView, report: AttemptReport, event: AttemptEvent | None) -> None:
        """Apply a report as this event of the attempt; None is an event of a newer version, and ignored."""
        block, position = divmod(report.index, BLOCK_TASKS)
        draft = self._block(job, block)
        if draft is None or event is None:
            return
        before = draft.marks(position, report.attempt) if report.steps else ()
        service_before = draft.service_status(position, report.attempt)
        state = draft.transition(position, report, event, self._node)
        if report.steps:
            after = draft.marks(position, report.attempt)
            self._steps.record(job.spec.id, report.index, job.spec.steps, (before, after))
        self._record_service_status(
            job, report, service_before, draft.service_status(position, report.attempt)
        )
        if state is not None:
            group = _EventGroup(job.spec.id, state, report.exit_code, report.attempt)
            self._indices.setdefault(group, []).append(report.index)
            if report.reason:
                self._reasons[group] = report.reason
            if state >= ATTEMPT_FIRST_END:
                self._ended[job.spec.id, report.index] = None

    def _record_service_status(
        self, job: JobView, report: AttemptReport, before: ServiceStatus | None, now: ServiceStatus | None
    ) -> None:
        if now is not None and now != before:
            self._services.record(job.spec.id, report.index, before, now)

    def puts(self) -> tuple[StatusBlock, ...]:
        return tuple(draft.done() for draft in self._blocks.values() if draft.changed)

    def events(self, node_name: str) -> tuple[EventRecord, ...]:
        transitions = [
            self._event(group, indices, node_name)
            for group, indices in self._indices.items()
            if group.state not in (AttemptState.QUEUED, AttemptState.ACCEPTED)
        ]
        updates = (*self._steps.events(self._node, node_name), *self._services.events(self._node, node_name))
        return (*updates, *transitions, *self._drained_event(node_name))

    def _drained_event(self, node_name: str) -> Iterable[EventRecord]:
        """An event when the last attempt on a draining node has ended."""
        node = self._view.nodes[self._node]
        if not self._ended or not node.is_draining:
            return
        if all(name in self._ended for name in node.assigned):
            why = f"node {node_name} is drained"
            yield EventRecord("node.changed", why, node=self._node, state=Eligibility.DRAINED.value)

    def _block(self, job: JobView, block: int) -> "_StatusDraft | None":
        key = (job.spec.id, block)
        draft = self._blocks.get(key)
        if draft is None:
            attempts = job.attempts.get(block)
            if attempts is None:
                return None
            status = job.statuses.get(block) or StatusBlock.new(
                job.spec.id, block, job.spec.block_size(block)
            )
            draft = self._blocks[key] = _StatusDraft(attempts, status)
        return draft

    def _event(self, group: "_EventGroup", indices: list[int], node_name: str) -> EventRecord:
        job, state, exit_code, attempt = group
        ranges = Ranges(indices)
        state_name = state.name.lower()
        ended = state >= ATTEMPT_FIRST_END
        reason = self._reasons.get(group)
        code = f" with {exit_code}" if state is AttemptState.FAILED and exit_code != NO_EXIT_CODE else ""
        tasks = f"task{'s' if len(indices) > 1 else ''} {ranges} of job {job}"
        why = f"{tasks} {state_name}{code} on {node_name}" + (f": {reason}" if reason else "")
        kind = "task.ended" if ended else "task.started"
        return EventRecord(
            kind,
            why,
            job=job,
            node=self._node,
            indices=tuple(ranges.pairs),
            attempt=attempt,
            exit_code=exit_code if ended and exit_code != NO_EXIT_CODE else None,
            state=state_name,
        )


class _EventGroup(NamedTuple):
    """Tasks for which all of this is equal share one event."""

    job: JobId
    state: AttemptState
    exit_code: int
    attempt: int


_EVENTS = {
    ReportedState.QUEUED: AttemptEvent.QUEUED,
    ReportedState.ACCEPTED: AttemptEvent.ACCEPTED,
    ReportedState.RUNNING: AttemptEvent.STARTED,
    ReportedState.STOPPING: AttemptEvent.STOP_ORDERED,
    ReportedState.EXITED: AttemptEvent.EXITED_NONZERO,
    ReportedState.STOPPED: AttemptEvent.STOPPED,
    ReportedState.TIMED_OUT: AttemptEvent.TIMED_OUT,
    ReportedState.LOST: AttemptEvent.RESULT_LOST,
    ReportedState.UNKNOWN: AttemptEvent.UNKNOWN_TO_NODE,
    ReportedState.REFUSED: AttemptEvent.REFUSED,
    ReportedState.WITHDRAWN: AttemptEvent.WITHDRAWN,
}


def event_of(report: AttemptReport, is_service: bool = False) -> AttemptEvent | None:
    """The event of a report; None for a state of a newer version. A service never ends by success."""
    if (
        report.state == ReportedState.EXITED
        and report.exit_code == 0
        and not report.signal
        and not is_service
    ):
        return AttemptEvent.EXITED_ZERO
    return _EVENTS.get(report.state)  # type: ignore[call-overload, no-any-return]  # an int finds its IntEnum


class _StatusDraft:
    """One status block: reports are checked one by one, and written column by column at the end."""

    def __init__(self, attempts: AttemptBlock, status: StatusBlock) -> None:
        self._status = status
        self._number = ints(attempts, "number")
        self._node = ints(attempts, "node")
        self._nodes = attempts.nodes
        self._known = ints(status, "number")
        self._states: dict[int, int] = {}  # as changed by this report
        self._reports: dict[int, AttemptReport] = {}
        self._reasons = dict(status.reasons)
        self._older: list[OldStatus] = []
        self._steps = dict(status.steps)
        self._versions = dict(status.versions)
        self._lives = dict(status.lives)
        self._causes = dict(status.causes)
        self._handles = dict(status.handles)

    @property
    def changed(self) -> bool:
        status = self._status
        return bool(self._reports) or self._steps != status.steps or self._lives != status.lives

    def marks(self, position: int, attempt: int) -> Marks:
        """Marks of the steps that this attempt has started."""
        is_known = position < len(self._known) and self._known_number(position) == attempt
        return self._steps.get(position, ()) if is_known else ()

    def service_status(self, position: int, attempt: int) -> ServiceStatus | None:
        """The last reported service status of this attempt."""
        is_known = position < len(self._known) and self._known_number(position) == attempt
        return self._lives.get(position) if is_known else None

    def transition(
        self, position: int, report: AttemptReport, event: AttemptEvent, node: NodeId
    ) -> AttemptState | None:
        number = self._number[position] if position < len(self._number) else 0
        # Fencing: a report counts for the current attempt number, on the node that it is placed on.
        if number != report.attempt or number == 0 or self._nodes[self._node[position]] != node:
            return None
        known = self._known_number(position)
        before = _STATES[self._state(position)] if known == number else _OFFERED
        state = ATTEMPT.get((before, event))
        # Steps and service status of a live attempt change without a transition.
        if known == number and before in _LIVE:
            self._update_in_place(position, report)
        if state is None:
            return None
        if known and known != number:
            # The status block describes an earlier attempt of the task: archive it, and start afresh.
            self._older.append(self._old(position, known))
            self._reasons.pop(position, None)
            self._steps.pop(position, None)
            self._lives.pop(position, None)
            self._causes.pop(position, None)
            self._versions.pop(position, None)
            self._handles.pop(position, None)
        self._update_in_place(position, report)
        self._states[position] = int(state)
        self._reports[position] = report
        self._keep_sparse_fields(position, report)
        return state

    def _keep_sparse_fields(self, position: int, report: AttemptReport) -> None:
        """Store the sparse fields, which few attempts have."""
        if report.version > 1:
            self._versions[position] = report.version
        if report.reason:
            self._reasons[position] = report.reason
        if report.cause:
            self._causes[position] = report.cause
        if report.handle:
            self._handles[position] = report.handle

    def _update_in_place(self, position: int, report: AttemptReport) -> None:
        """Store what changes without a transition: steps and service status."""
        if report.steps:
            self._steps[position] = report.steps
        if report.life is not None:
            self._lives[position] = report.life

    def done(self) -> StatusBlock:
        draft = Draft(self._status)
        positions = sorted(self._reports)
        reports = [self._reports[position] for position in positions]
        if positions:  # else only steps or service status have changed
            draft.fill("number", positions, [report.attempt for report in reports])
            draft.fill("state", positions, [self._states[position] for position in positions])
            for name in _COPIED:
                draft.fill(name, positions, [getattr(report, name) for report in reports])
        older = self._status.older + tuple(self._older)
        dropped = max(0, len(older) - SUPERSEDED_KEPT)
        return draft.done(
            reasons=self._reasons,
            older=older[dropped:],
            older_dropped=self._status.older_dropped + dropped,
            steps=self._steps,
            versions=self._versions,
            lives=self._lives,
            causes=self._causes,
            handles=self._handles,
        )

    def _known_number(self, position: int) -> int:
        """The attempt number that the status block describes."""
        return self._reports[position].attempt if position in self._reports else self._known[position]

    def _state(self, position: int) -> int:
        return self._states.get(position, self._status.state[position])

    def _old(self, position: int, number: int) -> OldStatus:
        """The previous attempt of the task: as stored, or as reported if it ended in this very report."""
        report = self._reports.get(position)
        values: dict[str, Any] = {
            name: getattr(report, name) if report is not None else int(column(self._status, name)[position])
            for name in _COPIED
        }
        state, reason = self._state(position), self._reasons.get(position)
        return OldStatus(
            position,
            number,
            state,
            **values,
            reason=reason,
            steps=self._steps.get(position, ()),
            life=self._lives.get(position),
            cause=self._causes.get(position),
        )
