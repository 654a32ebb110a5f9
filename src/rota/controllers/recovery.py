"""Losses of jobs with a recovery controller: notices, decisions, and the fallback while it is absent."""

from collections.abc import Iterable
from typing import NamedTuple

from rota.controllers.attempt_end import is_loss
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import Ranges, ints
from rota.model.ids import NodeId
from rota.model.job import JobSpec
from rota.model.lifecycle import AttemptState, TaskEvent, TaskState
from rota.model.limits import BLOCK_TASKS, TICK_MS
from rota.model.plan import EventRecord, Instant
from rota.model.recovery import Loss, RecoveryDecision, WhenControllerAbsent, next_notice_at_ms
from rota.model.shape import RunMode
from rota.model.task import TaskBlock
from rota.model.view import JobView, View


class BlockRecords(NamedTuple):
    """The three records of one block of tasks."""

    task: TaskBlock
    attempt: AttemptBlock
    status: StatusBlock


class RecoveryRequest(NamedTuple):
    """What the recovery controller is asked, and the decisions that are known."""

    losses: dict[int, Loss]  # by position: waiting for a decision
    decisions: dict[int, TaskEvent]  # by position: decided
    events: tuple[EventRecord, ...] = ()
    wake_at_ms: int | None = None


NO_REQUEST = RecoveryRequest({}, {})


def ask_recovery_controller(
    view: View, job: JobView, block: BlockRecords, ended: Iterable[int], now: Instant
) -> RecoveryRequest:
    """Only the recovery controller decides about its losses.

    While it is absent the scheduler may, if the job allows.
    """
    lost = _controller_losses(job.spec, block, ended)
    if not lost:
        return NO_REQUEST
    number, first = ints(block.attempt, "number"), block.task.block * BLOCK_TASKS
    losses: dict[int, Loss] = {}
    decisions: dict[int, TaskEvent] = {}
    taken_over: list[int] = []
    for at in lost:
        # The loss is in the block with its times, so a new leader continues the
        # notices and does not restart them.
        before = block.task.losses.get(at) or Loss(number[at], now.ms, now.ms, times=0)
        # Decisions name an attempt number: a late or repeated one cannot decide about a newer attempt.
        decision = None if job.answers is None else job.answers.on(first + at, number[at])
        if decision is not None:
            decisions[at] = _task_event(decision)
        elif _scheduler_takes_over(view, job.spec, before, now):
            decisions[at] = TaskEvent.RETRY
            taken_over.append(first + at)
        else:
            losses[at] = _with_notice(before, now)
    notified = [at for at, loss in losses.items() if loss != block.task.losses.get(at)]
    events = (*_loss_events(view, job, block, losses, notified), *_takeover_events(job.spec, taken_over))
    return RecoveryRequest(losses, decisions, events, _wake_at_ms(view, job.spec, losses, now))


def _controller_losses(spec: JobSpec, block: BlockRecords, ended: Iterable[int]) -> list[int]:
    """Positions the controller decides about; an at-most-once task ends as lost regardless."""
    # There is nothing to decide about an at-most-once task: it may have run, so it is never started again.
    if spec.recovery_controller is None or spec.run is RunMode.AT_MOST_ONCE:
        return []
    task, attempt, status = block
    return [at for at in ended if task.state[at] == TaskState.WANTED and is_loss(attempt, status, at)]


def _task_event(decision: RecoveryDecision) -> TaskEvent:
    match decision:
        case RecoveryDecision.RETRY:
            return TaskEvent.RETRY
        case RecoveryDecision.FAIL:
            return TaskEvent.RETRIES_EXHAUSTED
        case RecoveryDecision.CANCEL:
            return TaskEvent.STOPPED
        case RecoveryDecision.LOST:
            return TaskEvent.NODE_LOST


def _scheduler_takes_over(view: View, spec: JobSpec, loss: Loss, now: Instant) -> bool:
    at_ms = _takeover_at_ms(view, spec, loss)
    return at_ms is not None and now.ms >= at_ms


def _takeover_at_ms(view: View, spec: JobSpec, loss: Loss) -> int | None:
    """Cluster time at which the scheduler takes over; None: the controller is connected, or is waited for."""
    absent_ms = view.presence.absent_since(spec.recovery_controller or "")
    if spec.when_no_controller is WhenControllerAbsent.WAIT or absent_ms is None:
        return None
    # From the later of both: a controller that was connected when the task was lost gets its full time after
    # it disconnected, and after a restart of the server every controller counts as absent from then on.
    return max(loss.since_ms, absent_ms) + _wait_ms(spec)


def _with_notice(loss: Loss, now: Instant) -> Loss:
    # Repeated for as long as the loss stands: an event may have been lost with a crash of the
    # controller after it was acknowledged.
    due = loss.times == 0 or now.ms >= next_notice_at_ms(loss.notified_ms, loss.times)
    return Loss(loss.attempt, loss.since_ms, now.ms, loss.times + 1) if due else loss


def _wake_at_ms(view: View, spec: JobSpec, losses: dict[int, Loss], now: Instant) -> int | None:
    times = [next_notice_at_ms(loss.notified_ms, loss.times) for loss in losses.values()]
    if spec.when_no_controller is WhenControllerAbsent.SCHEDULER:
        # A connected controller may disconnect at any time; the scheduler would take over no earlier than
        # this.
        later_ms = now.ms + max(TICK_MS, _wait_ms(spec))
        times += [_takeover_at_ms(view, spec, loss) or later_ms for loss in losses.values()]
    return min(times, default=None)


def _wait_ms(spec: JobSpec) -> int:
    return round(spec.controller_wait_seconds * 1000)


def _loss_events(
    view: View, job: JobView, block: BlockRecords, losses: dict[int, Loss], notified: list[int]
) -> Iterable[EventRecord]:
    """One event for each node, attempt number and end state: the controller answers by attempt."""
    places, states = ints(block.attempt, "node"), block.status.state
    groups: dict[tuple[int, NodeId, int, int], list[int]] = {}
    for at in notified:
        kind = (losses[at].attempt, block.attempt.nodes[places[at]], losses[at].times, states[at])
        groups.setdefault(kind, []).append(block.task.block * BLOCK_TASKS + at)
    for (attempt, node, times, ended), indices in groups.items():
        ranges = Ranges(indices)
        name = view.nodes[node].spec.name if node in view.nodes else node
        was = "tasks {} of job {} were" if len(indices) > 1 else "task {} of job {} was"
        again = f", told {times} times" if times > 1 else ""
        request = f"{job.spec.recovery_controller} must decide: again, fail, cancel or lost"
        state = AttemptState(ended).name.lower()
        yield EventRecord(
            "task.unresolved",
            f"{was.format(ranges, job.spec.id)} {state} on {name}: {request}{again}",
            job=job.spec.id,
            node=node,
            indices=tuple(ranges.pairs),
            attempt=attempt,
            state="unresolved",
        )


def _takeover_events(spec: JobSpec, taken_over: list[int]) -> Iterable[EventRecord]:
    if taken_over:
        ranges = Ranges(taken_over)
        tasks = f"task{'s' if len(taken_over) > 1 else ''} {ranges} of job {spec.id}"
        why = f"{spec.recovery_controller} is away: the scheduler places {tasks} again"
        yield EventRecord(
            "task.resolved", why, job=spec.id, indices=tuple(ranges.pairs), state=RecoveryDecision.RETRY.value
        )
