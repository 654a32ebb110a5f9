"""Blocks of a job -> its tasks and attempts as the API shows them."""

from collections.abc import Container
from typing import Any, NamedTuple

import msgspec

from rota.apiserver.views import services
from rota.apiserver.views.job_spec import node_name
from rota.apiserver.views.jobs import Json, has_ended
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.adoption import GONE, MISSING
from rota.model.attempt import EVICTED, NO_EXIT_CODE, AttemptBlock, OldStatus, StatusBlock
from rota.model.columns import column
from rota.model.ids import NodeId
from rota.model.lifecycle import ATTEMPT_FIRST_END, AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.result import ResultRecord
from rota.model.steps import Step, StepMark, states
from rota.rules.phases import Phase

_PHASES = [phase.name.lower() for phase in Phase]
_ATTEMPT_STATES = [state.name.lower() for state in AttemptState]


class PlacedAttempt(NamedTuple):
    """One attempt: where it was placed, and its status."""

    number: int
    node: NodeId
    placed_at_ms: int
    status: OldStatus | None  # None: offered, not answered yet
    flags: int = 0

    @property
    def state(self) -> int:
        return AttemptState.OFFERED if self.status is None else self.status.state


class TaskFilter(NamedTuple):
    """A filter for tasks of a job: in one of these states, on this node, with an index above `after`."""

    states: Container[str] | None = None
    node: str | None = None
    after: int = -1


def tasks_page(mirror: Mirror, entry: JobEntry, task_filter: TaskFilter, limit: int) -> Json:
    """Up to `limit` tasks that match, and the index that the next page starts after."""
    found: list[Json] = []
    for block in range((task_filter.after + 1) // BLOCK_TASKS, entry.spec.blocks):
        positions = _positions(entry, block, task_filter.states)
        if not positions:
            continue
        rows = _BlockRows(mirror, entry, block)
        for position in positions:
            is_after = block * BLOCK_TASKS + position > task_filter.after
            if is_after and task_filter.node in (None, rows.node(position)):
                if len(found) == limit:
                    return {"tasks": found, "next": found[-1]["index"]}
                found.append(rows.task(position))
    return {"tasks": found, "next": None}


def task_line(mirror: Mirror, entry: JobEntry, index: int) -> Json:
    """One task without its attempts."""
    block, position = divmod(index, BLOCK_TASKS)
    return _BlockRows(mirror, entry, block).task(position)


def task_json(mirror: Mirror, entry: JobEntry, index: int) -> Json:
    """One task and all its known attempts, oldest first."""
    shown = task_line(mirror, entry, index)
    attempts = attempts_json(mirror, entry, index)
    steps = attempts[-1]["steps"] if attempts else _steps_json(entry.spec.steps, None)
    result = attempts[-1]["result"] if attempts else None
    return {**shown, "steps": steps, "result": result, "attempts": attempts}


def attempts_json(mirror: Mirror, entry: JobEntry, index: int) -> list[Json]:
    return [
        {
            **_attempt_json(mirror, placed, entry.spec.steps),
            "result": result_json(entry.results.get((index, placed.number))),
        }
        for placed in attempts_of(entry, index)
    ]


def attempts_of(entry: JobEntry, index: int) -> list[PlacedAttempt]:
    """All known attempts of a task, oldest first."""
    block, position = divmod(index, BLOCK_TASKS)
    attempt, status = entry.attempts.get(block), entry.statuses.get(block)
    if attempt is None:
        return []
    old_statuses = {old.number: old for old in status.older if old.position == position} if status else {}
    found = [
        PlacedAttempt(old.number, old.node, old.placed_at_ms, old_statuses.get(old.number), old.flags)
        for old in attempt.older
        if old.position == position
    ]
    number = int(column(attempt, "number")[position])
    if number:
        node = attempt.nodes[int(column(attempt, "node")[position])]
        placed_at_ms, flags = int(column(attempt, "placed_at_ms")[position]), attempt.flags[position]
        found.append(
            PlacedAttempt(number, node, placed_at_ms, _current_status(status, position, number), flags)
        )
    return found


def _current_status(status: StatusBlock | None, position: int, number: int) -> OldStatus | None:
    if status is None or int(column(status, "number")[position]) != number:
        return None
    cells: dict[str, Any] = {name: int(column(status, name)[position]) for name in status.COLUMNS}
    marks, life = status.steps.get(position, ()), status.lives.get(position)
    reason = status.reasons.get(position)
    return OldStatus(position=position, reason=reason, steps=marks, life=life, **cells)


def _positions(entry: JobEntry, block: int, states: Container[str] | None) -> list[int]:
    """Positions in a block of the tasks that are in one of these states."""
    size = min(entry.spec.block_size(block), entry.spec.count - block * BLOCK_TASKS)
    if states is None:
        return list(range(size))
    phases = entry.phases.get(block) or bytes(size)
    matching = [phase for phase in Phase if _state_name(phase, _unstarted_state(entry)) in states]
    return [position for position, phase in enumerate(phases[:size]) if phase in matching]


def _unstarted_state(entry: JobEntry) -> str | None:
    """The state that tasks of an ended job show if they never started; None: the job has not ended."""
    if not has_ended(entry):
        return None
    return "timed_out" if entry.verdict is not None and entry.verdict.late else "canceled"


def _state_name(phase: int, unstarted: str | None) -> str:
    return unstarted if unstarted and phase in (Phase.PENDING, Phase.HELD) else _PHASES[phase]


class _BlockRows:
    """The columns of one block as plain lists, converted once for all of its tasks."""

    def __init__(self, mirror: Mirror, entry: JobEntry, block: int) -> None:
        self._spec = entry.spec
        self._first = block * BLOCK_TASKS
        self._unstarted_state = _unstarted_state(entry)
        self._phases = entry.phases.get(block) or bytes(entry.spec.block_size(block))
        attempt, status, task_block = (
            entry.attempts.get(block),
            entry.statuses.get(block),
            entry.tasks.get(block),
        )
        self._attempt = _lists(attempt) if attempt else None
        self._status = _lists(status) if status else None
        self._nodes = [node_name(mirror, node) for node in attempt.nodes] if attempt else []
        self._lives = status.lives if status else {}
        self._without_attempt: dict[int, str] = {}  # phase -> reason of a task without attempt
        if entry.spec.carried:
            self._without_attempt[Phase.SUCCEEDED] = f"succeeded in job {entry.spec.rerun_of}"
        if entry.adoption is not None:
            self._without_attempt |= {Phase.HELD: MISSING, Phase.LOST: GONE}
        self._reasons = {**(status.reasons if status else {}), **(task_block.reasons if task_block else {})}

    def node(self, position: int) -> str | None:
        attempt = self._attempt
        placed = attempt is not None and attempt["number"][position]
        return self._nodes[attempt["node"][position]] if attempt and placed else None

    def task(self, position: int) -> Json:
        attempt, status = self._attempt, self._status
        number = attempt["number"][position] if attempt else 0
        shown: Json = {
            "job": self._spec.id,
            "index": self._first + position,
            "state": _state_name(self._phases[position], self._unstarted_state),
            "tries": attempt["tries"][position] + 1 if attempt and number else 0,
            "attempt": number or None,
            "node": self.node(position),
            "placed_at_ms": attempt["placed_at_ms"][position] if attempt and number else None,
            "evicted": bool(attempt and number and attempt["flags"][position] & EVICTED),
            "reason": self._reasons.get(position) or self._reason_without_attempt(position, number),
            "life": None,
            **_NO_STATUS,
        }
        if status and number and status["number"][position] == number:
            fields = _ENDED_FIELDS if status["state"][position] >= ATTEMPT_FIRST_END else _STARTED_FIELDS
            for field in fields:
                shown[field] = _FIELD_READERS[field](status, position)
            shown["life"] = services.service_status_json(self._lives.get(position))
        return shown

    def _reason_without_attempt(self, position: int, number: int) -> str | None:
        """The reason of a task that ended without an attempt, or was removed by a scale-down."""
        if self._phases[position] == Phase.CANCELED and self._spec.is_scaled_down(self._first + position):
            return f"its job has {self._spec.size} task{'s' if self._spec.size > 1 else ''} now"
        return None if number else self._without_attempt.get(self._phases[position])


_NO_STATUS: Json = dict.fromkeys(
    ("exit_code", "signal", "started_at_ms", "ended_at_ms", "ran_ms", "cpu_ms", "peak_memory_bytes")
)
_STARTED_FIELDS = ("started_at_ms",)
_ENDED_FIELDS = tuple(_NO_STATUS)
_FIELD_READERS: dict[str, Any] = {
    "exit_code": lambda row, at: None if row["exit_code"][at] == NO_EXIT_CODE else row["exit_code"][at],
    "signal": lambda row, at: row["signal"][at] or None,
    "started_at_ms": lambda row, at: row["started_at_ms"][at] or None,
    "ended_at_ms": lambda row, at: row["ended_at_ms"][at] or None,
    "ran_ms": lambda row, at: row["ran_us"][at] / 1000 if row["started_at_ms"][at] else None,
    "cpu_ms": lambda row, at: row["cpu_us"][at] / 1000 if row["started_at_ms"][at] else None,
    "peak_memory_bytes": lambda row, at: row["peak_kib"][at] * 1024 or None,
}


def _lists(block: AttemptBlock | StatusBlock) -> dict[str, list[int]]:
    return {name: column(block, name).tolist() for name in block.COLUMNS}


def _attempt_json(mirror: Mirror, placed: PlacedAttempt, steps: tuple[Step, ...]) -> Json:
    shown: Json = {
        "attempt": placed.number,
        "state": _ATTEMPT_STATES[placed.state],
        "node": node_name(mirror, placed.node),
        "placed_at_ms": placed.placed_at_ms,
        "evicted": bool(placed.flags & EVICTED),
        "reason": placed.status.reason if placed.status else None,
        "steps": _steps_json(steps, placed.status),
        "life": services.service_status_json(placed.status.life) if placed.status else None,
        **_NO_STATUS,
    }
    if placed.status is not None:
        row = {name: [getattr(placed.status, name)] for name in StatusBlock.COLUMNS}
        for field in _ENDED_FIELDS if placed.state >= ATTEMPT_FIRST_END else _STARTED_FIELDS:
            shown[field] = _FIELD_READERS[field](row, 0)
    return shown


def _steps_json(steps: tuple[Step, ...], status: OldStatus | None) -> list[Json]:
    """All steps, including those that have not started."""
    marks = status.steps if status else ()
    step_states = states(len(steps), marks, AttemptState(status.state) if status else AttemptState.OFFERED)
    padded: list[StepMark | None] = [*marks[: len(steps)], *[None] * (len(steps) - len(marks))]
    return [
        {"step": number, "name": step.name, "state": state, **_step_mark_json(mark)}
        for number, (step, state, mark) in enumerate(zip(steps, step_states, padded, strict=False), 1)
    ]


def _step_mark_json(mark: StepMark | None) -> Json:
    return {
        "exit_code": None if mark is None or mark.exit_code < 0 else mark.exit_code,
        "signal": mark.signal or None if mark else None,
        "started_at_ms": mark.started_at_ms if mark else None,
        "ended_at_ms": mark.ended_at_ms or None if mark else None,
        "stdout_offset": mark.out_offset if mark else None,
        "stderr_offset": mark.err_offset if mark else None,
    }


def result_json(result: ResultRecord | None) -> dict[str, Any] | None:
    """The reported result of an attempt, or None."""
    if result is None:
        return None
    results = msgspec.json.decode(result.results)
    return {"results": results, "failure": result.failure, "reported_at_ms": result.at_ms}
