"""A node's word on attempts -> what is true of them, for live attempts of that node only."""

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
from rota.watcher.service_events import ServiceEvents
from rota.watcher.step_events import Marks, StepEvents

_COPIED = ("exit_code", "signal", "started_at_ms", "ended_at_ms", "ran_us", "cpu_us", "peak_kib")
_STATES = list(AttemptState)  # by number
_OFFERED = AttemptState.OFFERED
_LIVE = (AttemptState.RUNNING, AttemptState.STOPPING)


class StatusUpdater:
    """Status blocks being changed by one report. What is stale, foreign or out of turn is passed over."""

    def __init__(self, view: View, node: NodeId) -> None:
        self._view = view
        self._node = node
        self._blocks: dict[tuple[JobId, int], _StatusDraft] = {}
        self._happened: dict[_EventGroup, list[int]] = {}
        self._reasons: dict[_EventGroup, str] = {}
        self._ended: dict[tuple[JobId, int], None] = {}
        self._steps = StepEvents()
        self._lives = ServiceEvents()

    def apply_reports(self, said: Iterable[JobReports]) -> None:
        for one in said:
            job = self._view.jobs.get(one.job)
            if job is not None:
                for claim in one.reports:
                    self._apply_report(job, claim)

    def _apply_report(self, job: JobView, claim: AttemptReport) -> None:
        """Work that has said it failed has not succeeded by going quietly."""
        event = event_of(claim, job.spec.is_service)
        if event is AttemptEvent.EXITED_ZERO and job.results:
            result = job.results.get((claim.index, claim.attempt))
            if result is not None and result.failure is not None:
                reason = f"it reported a failure: {result.failure}"
                claim, event = claim.with_reason(reason), AttemptEvent.EXITED_NONZERO
        self.transition(job, claim, event)

    def transition(self, job: JobView, claim: AttemptReport, event: AttemptEvent | None) -> None:
        block, position = divmod(claim.index, BLOCK_TASKS)
        draft = self._block(job, block)
        if draft is None or event is None:
            return
        before = draft.marks(position, claim.attempt) if claim.steps else ()
        lived = draft.service_status(position, claim.attempt)
        state = draft.transition(position, claim, event, self._node)
        if claim.steps:
            after = draft.marks(position, claim.attempt)
            self._steps.record(job.spec.id, claim.index, job.spec.steps, (before, after))
        self._record_service_status(job, claim, lived, draft.service_status(position, claim.attempt))
        if state is not None:
            kind = _EventGroup(job.spec.id, state, claim.exit_code, claim.attempt)
            self._happened.setdefault(kind, []).append(claim.index)
            if claim.reason:
                self._reasons[kind] = claim.reason
            if state >= ATTEMPT_FIRST_END:
                self._ended[job.spec.id, claim.index] = None

    def _record_service_status(
        self, job: JobView, claim: AttemptReport, before: ServiceStatus | None, now: ServiceStatus | None
    ) -> None:
        if now is not None and now != before:
            self._lives.record(job.spec.id, claim.index, before, now)

    def puts(self) -> tuple[StatusBlock, ...]:
        return tuple(draft.done() for draft in self._blocks.values() if draft.changed)

    def events(self, node_name: str) -> tuple[EventRecord, ...]:
        told = [
            self._event(kind, indices, node_name)
            for kind, indices in self._happened.items()
            if kind.state not in (AttemptState.QUEUED, AttemptState.ACCEPTED)
        ]
        news = (*self._steps.events(self._node, node_name), *self._lives.events(self._node, node_name))
        return (*news, *told, *self._drained_event(node_name))

    def _drained_event(self, node_name: str) -> Iterable[EventRecord]:
        """Who drains a node hears when the last of its work has ended."""
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

    def _event(self, happened: "_EventGroup", indices: list[int], node_name: str) -> EventRecord:
        job, state, exit_code, attempt = happened
        ranges = Ranges(indices)
        word = state.name.lower()
        ended = state >= ATTEMPT_FIRST_END
        reason = self._reasons.get(happened)
        code = f" with {exit_code}" if state is AttemptState.FAILED and exit_code != NO_EXIT_CODE else ""
        tasks = f"task{'s' if len(indices) > 1 else ''} {ranges} of job {job}"
        why = f"{tasks} {word}{code} on {node_name}" + (f": {reason}" if reason else "")
        kind = "task.ended" if ended else "task.started"
        return EventRecord(
            kind,
            why,
            job=job,
            node=self._node,
            indices=tuple(ranges.pairs),
            attempt=attempt,
            exit_code=exit_code if ended and exit_code != NO_EXIT_CODE else None,
            state=word,
        )


class _EventGroup(NamedTuple):
    """Tasks of which all this is the same share one event."""

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


def event_of(claim: AttemptReport, stays: bool = False) -> AttemptEvent | None:
    """None: a word of a newer version. What is to stay has not succeeded by going."""
    if claim.said == ReportedState.EXITED and claim.exit_code == 0 and not claim.signal and not stays:
        return AttemptEvent.EXITED_ZERO
    return _EVENTS.get(claim.said)  # type: ignore[call-overload, no-any-return]  # an int finds its IntEnum


class _StatusDraft:
    """One block: claims are judged one by one, and written column by column at the end."""

    def __init__(self, attempts: AttemptBlock, status: StatusBlock) -> None:
        self._status = status
        self._number = ints(attempts, "number")
        self._node = ints(attempts, "node")
        self._nodes = attempts.nodes
        self._known = ints(status, "number")
        self._states: dict[int, int] = {}  # since this report
        self._claims: dict[int, AttemptReport] = {}
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
        return bool(self._claims) or self._steps != status.steps or self._lives != status.lives

    def marks(self, position: int, attempt: int) -> Marks:
        """Of the steps that this attempt has begun."""
        is_known = position < len(self._known) and self._known_number(position) == attempt
        return self._steps.get(position, ()) if is_known else ()

    def service_status(self, position: int, attempt: int) -> ServiceStatus | None:
        """How this attempt lives, as far as it was told."""
        is_known = position < len(self._known) and self._known_number(position) == attempt
        return self._lives.get(position) if is_known else None

    def transition(
        self, position: int, claim: AttemptReport, event: AttemptEvent, node: NodeId
    ) -> AttemptState | None:
        number = self._number[position] if position < len(self._number) else 0
        if number != claim.attempt or number == 0 or self._nodes[self._node[position]] != node:
            return None
        known = self._known_number(position)
        before = _STATES[self._state(position)] if known == number else _OFFERED
        state = ATTEMPT.get((before, event))
        if known == number and before in _LIVE:
            self._update_in_place(position, claim)
        if state is None:
            return None
        if known and known != number:
            self._older.append(self._old(position, known))
            self._reasons.pop(position, None)
            self._steps.pop(position, None)
            self._lives.pop(position, None)
            self._causes.pop(position, None)
            self._versions.pop(position, None)
            self._handles.pop(position, None)
        self._update_in_place(position, claim)
        self._states[position] = int(state)
        self._claims[position] = claim
        self._keep_sparse_fields(position, claim)
        return state

    def _keep_sparse_fields(self, position: int, claim: AttemptReport) -> None:
        """What few attempts have."""
        if claim.version > 1:
            self._versions[position] = claim.version
        if claim.reason:
            self._reasons[position] = claim.reason
        if claim.cause:
            self._causes[position] = claim.cause
        if claim.handle:
            self._handles[position] = claim.handle

    def _update_in_place(self, position: int, claim: AttemptReport) -> None:
        """What goes on within an attempt."""
        if claim.steps:
            self._steps[position] = claim.steps
        if claim.life is not None:
            self._lives[position] = claim.life

    def done(self) -> StatusBlock:
        draft = Draft(self._status)
        positions = sorted(self._claims)
        claims = [self._claims[position] for position in positions]
        if positions:  # else only steps went on
            draft.fill("number", positions, [claim.attempt for claim in claims])
            draft.fill("state", positions, [self._states[position] for position in positions])
            for name in _COPIED:
                draft.fill(name, positions, [getattr(claim, name) for claim in claims])
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
        """The number of the attempt that the status is of."""
        return self._claims[position].attempt if position in self._claims else self._known[position]

    def _state(self, position: int) -> int:
        return self._states.get(position, self._status.state[position])

    def _old(self, position: int, number: int) -> OldStatus:
        """The attempt before, as stored or, if it ended in this very report, as claimed."""
        claim = self._claims.get(position)
        values: dict[str, Any] = {
            name: getattr(claim, name) if claim is not None else int(column(self._status, name)[position])
            for name in _COPIED
        }
        state, reason = self._state(position), self._reasons.get(position)
        marks, life, cause = (
            self._steps.get(position, ()),
            self._lives.get(position),
            self._causes.get(position),
        )
        return OldStatus(
            position, number, state, **values, reason=reason, steps=marks, life=life, cause=cause
        )
