"""Recovery of lost tasks: one party decides, once, and what is written follows its decision."""

from collections.abc import Container, Mapping
from typing import Any

from rota.keeper.resources.reservations import AttemptKey
from rota.model.attempt import DRAINED, EVICTED, AttemptBlock, StatusBlock
from rota.model.columns import ints
from rota.model.ids import NodeId
from rota.model.job import JobKind, JobSpec, Recovery
from rota.model.lifecycle import AttemptState, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.recovery import RecoveryAnswers, RecoveryDecision, WhenControllerAbsent
from rota.model.shape import RunMode
from rota.model.task import TaskBlock
from rota.sim.world.invariant import InvariantBroken

Records = Mapping[str, Any]
Left = Container[AttemptKey]  # attempts that ended with their node: it left, or it was drained
_ENDS = {
    RecoveryDecision.FAIL: TaskState.FAILED,
    RecoveryDecision.CANCEL: TaskState.CANCELED,
    RecoveryDecision.LOST: TaskState.LOST,
}


def check_answers(before: RecoveryAnswers | None, now: RecoveryAnswers) -> None:
    """The first decision on an attempt counts."""
    for index, answer in now.decisions.items():
        old = None if before is None else before.decisions.get(index)
        if old is not None and answer != old and answer.attempt <= old.attempt:
            raise InvariantBroken(
                f"two decisions on task {index} of job {now.id} were accepted: {old}, {answer}"
            )


def check_next_attempt(known: Records, spec: JobSpec, before: AttemptBlock, at: int, left: Left = ()) -> None:
    """A task is placed again; if it was lost, its recovery policy or controller has decided so."""
    index, number = before.block * BLOCK_TASKS + at, ints(before, "number")[at]
    if not number or not _is_lost(known, before, at, left):
        return
    name = f"task {index} of job {spec.id}"
    match spec.recovery:
        case Recovery.SCHEDULER:
            pass
        case Recovery.CANCEL | Recovery.NONE:
            raise InvariantBroken(f"{name} was lost and is placed again, with recovery {spec.recovery}")
        case Recovery.CONTROLLER:
            decision = _decision(known, spec, index, number)
            taken_over = decision is None and spec.when_no_controller is WhenControllerAbsent.SCHEDULER
            if decision is not RecoveryDecision.RETRY and not taken_over:
                raise InvariantBroken(
                    f"{name} was lost and is placed again, and its controller decided: {decision}"
                )


def check_end(known: Records, now: TaskBlock, at: int, left: Left = ()) -> None:
    """A task has ended; if it was lost, as decided, unless a user or a failed cluster canceled it."""
    spec, attempts = known[f"job/{now.job}/spec"], known.get(f"attempt/{now.job}/{now.block}")
    intent, state, index = (
        known.get(f"job/{now.job}/wish"),
        TaskState(now.state[at]),
        now.block * BLOCK_TASKS + at,
    )
    assigned = known.get(f"job/{now.job}/cluster")
    was_canceled = intent is not None and (intent.cancel or index in intent.cancel_tasks)
    was_canceled = was_canceled or (assigned is not None and assigned.failed is not None)
    if attempts is None or was_canceled or not _is_lost(known, attempts, at, left):
        return
    verdict = known.get(f"job/{now.job}/verdict")
    if verdict is not None and verdict.late:
        return
    if spec.kind is JobKind.SYSTEM and known.get(f"node/{_node(attempts, at)}/spec") is None:
        return  # its node is deleted: a task of a system job has no other node
    number = ints(attempts, "number")[at]
    expected = _end(spec, _decision(known, spec, index, number))
    if state is not expected:
        raise InvariantBroken(
            f"task {index} of job {spec.id} was lost and ends as {state!r}, not as {expected!r}"
        )


def may_be(known: Records, spec: JobSpec, index: int, state: TaskState) -> bool:
    """Whether a recovery decision explains this end of a task."""
    answers = known.get(f"job/{spec.id}/answers")
    answer = None if answers is None else answers.decisions.get(index)
    if answer is not None and _ENDS.get(answer.decision) is state:
        return True
    return spec.recovery is Recovery.CANCEL and state is TaskState.CANCELED


def _end(spec: JobSpec, decision: RecoveryDecision | None) -> TaskState | None:
    """The state in which a lost task ends; None if it does not end."""
    if spec.run is RunMode.AT_MOST_ONCE:
        return TaskState.LOST
    match spec.recovery:
        case Recovery.SCHEDULER:
            return None
        case Recovery.CANCEL:
            return TaskState.CANCELED
        case Recovery.NONE:
            return TaskState.LOST
        case Recovery.CONTROLLER:
            return None if decision is None else _ENDS.get(decision)


def _node(attempts: AttemptBlock, at: int) -> NodeId:
    return attempts.nodes[ints(attempts, "node")[at]]


def _is_lost(known: Records, attempts: AttemptBlock, at: int, left: Left) -> bool:
    """Whether the attempt ended with its node; a preempted one did not."""
    status: StatusBlock | None = known.get(f"status/{attempts.job}/{attempts.block}")
    number = ints(attempts, "number")[at]
    if status is None or number == 0 or ints(status, "number")[at] != number:
        return False
    key = (str(attempts.job), attempts.block * BLOCK_TASKS + at, number)
    is_drained = bool(attempts.flags[at] & DRAINED) or key in left
    if attempts.flags[at] & EVICTED and not is_drained:
        return False
    return status.state[at] == AttemptState.LOST or (status.state[at] == AttemptState.STOPPED and is_drained)


def _decision(known: Records, spec: JobSpec, index: int, attempt: int) -> RecoveryDecision | None:
    answers: RecoveryAnswers | None = known.get(f"job/{spec.id}/answers")
    return None if answers is None else answers.on(index, attempt)
