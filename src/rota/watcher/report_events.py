"""Steps and service status before and after a report -> events, one for all tasks with equal changes."""

from typing import NamedTuple

from rota.model.columns import Ranges
from rota.model.ids import JobId, NodeId
from rota.model.plan import EventRecord
from rota.model.service import Health, ServiceStatus
from rota.model.steps import Step, StepMark, describe_step

Marks = tuple[StepMark, ...]
_SHOWN_HEALTH = (Health.HEALTHY, Health.UNHEALTHY)


class _StepChange(NamedTuple):
    job: JobId
    number: int
    total: int
    text: str
    exit_code: int  # -1: none


class StepEvents:
    """Collects changed step marks; tasks with an equal change share one event."""

    def __init__(self) -> None:
        self._indices: dict[_StepChange, list[int]] = {}

    def record(self, job: JobId, index: int, steps: tuple[Step, ...], marks: tuple[Marks, Marks]) -> None:
        before, after = marks
        for position, mark in enumerate(after[: len(steps)]):
            if position < len(before) and before[position] == mark:
                continue
            text = describe_step(steps[position].name, mark)
            change = _StepChange(job, position + 1, len(steps), text, mark.exit_code)
            self._indices.setdefault(change, []).append(index)

    def events(self, node: NodeId, node_name: str) -> tuple[EventRecord, ...]:
        return tuple(
            _step_event(change, Ranges(indices), node, node_name) for change, indices in self._indices.items()
        )


def _step_event(change: _StepChange, ranges: Ranges, node: NodeId, node_name: str) -> EventRecord:
    tasks = f"task {ranges} of job {change.job}"
    return EventRecord(
        "task.step",
        f"{tasks}: step {change.number} of {change.total}, {change.text} on {node_name}",
        job=change.job,
        node=node,
        indices=tuple(ranges.pairs),
        exit_code=change.exit_code if change.exit_code >= 0 else None,
        step=change.number,
    )


class _ServiceChange(NamedTuple):
    kind: str
    job: JobId
    text: str
    exit_code: int | None = None
    state: str | None = None


class ServiceEvents:
    """Collects restarts and changes of health; tasks with an equal change share one event."""

    def __init__(self) -> None:
        self._indices: dict[_ServiceChange, list[int]] = {}

    def record(self, job: JobId, index: int, before: ServiceStatus | None, now: ServiceStatus) -> None:
        then = before or ServiceStatus()
        if now.restarts > then.restarts:
            cause = now.why or now.last_end
            code = None if now.signal or now.exit_code < 0 else now.exit_code
            text = f"ended ({cause}) and is started again, {_times(now.restarts)}"
            self._add(_ServiceChange("task.restarted", job, text, code), index)
        if now.health in _SHOWN_HEALTH and (now.health, now.restarts) != (then.health, then.restarts):
            text = f"is {now.why if now.health == Health.UNHEALTHY and now.why else now.health}"
            self._add(_ServiceChange("task.health", job, text, state=now.health), index)

    def events(self, node: NodeId, node_name: str) -> tuple[EventRecord, ...]:
        return tuple(
            _service_event(change, Ranges(indices), node, node_name)
            for change, indices in self._indices.items()
        )

    def _add(self, change: _ServiceChange, index: int) -> None:
        self._indices.setdefault(change, []).append(index)


def _service_event(change: _ServiceChange, ranges: Ranges, node: NodeId, node_name: str) -> EventRecord:
    return EventRecord(
        change.kind,
        f"task {ranges} of job {change.job} on {node_name} {change.text}",
        job=change.job,
        node=node,
        indices=tuple(ranges.pairs),
        exit_code=change.exit_code,
        state=change.state,
    )


def _times(count: int) -> str:
    return "for the first time" if count == 1 else f"{count} times so far"
