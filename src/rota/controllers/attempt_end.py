"""AttemptEnd: how an attempt ended. RetryOutcome: what follows for its task."""

from typing import NamedTuple

from rota.model.attempt import DRAINED, EVICTED, NO_EXIT_CODE, AttemptBlock, StatusBlock
from rota.model.columns import ints
from rota.model.job import JobSpec
from rota.model.lifecycle import AttemptState, TaskEvent
from rota.model.recovery import EndCause


class AttemptEnd(NamedTuple):
    state: AttemptState
    exit_code: int = NO_EXIT_CODE
    signal: int = 0
    cause: str | None = None
    is_suspect: bool = False  # too many nodes went down while its task ran on them
    is_outdated: bool = False  # the job has a newer version of its spec
    is_evicted: bool = False  # the scheduler preempted or drained it
    left_with_node: bool = False  # its node was lost, left or was drained

    @property
    def is_loss(self) -> bool:
        """Whether it ended with its node: the recovery policy of its job decides about the task."""
        return self.state is AttemptState.LOST or self.left_with_node

    @property
    def reason(self) -> str | None:
        """Why it ended, if its node reported no reason."""
        return "its node was drained" if self.left_with_node and self.is_evicted else None

    @property
    def is_fault(self) -> bool:
        """Whether the cluster caused the end, not the task and not a user's request."""
        return self.is_loss or self.is_evicted


class RetryOutcome(NamedTuple):
    event: TaskEvent
    counts_as_retry: bool = False
    reason: str | None = None  # why it is not retried although retries are left


def is_loss(attempt: AttemptBlock, status: StatusBlock, position: int) -> bool:
    """Whether an attempt ended with its node, so that the recovery policy of its job decides.

    Its node was lost, deleted, restarted or left, its keeper died, its lease ended, or a drain moved it. Not
    a loss: an exit of its own, a stop by request (cancel, restart, pause, update), and a preemption, after
    which the scheduler places the task again.
    """
    flags = attempt.flags[position]
    # A preemption is the scheduler's own decision, so the scheduler places the task again, even if the node
    # was lost before it could confirm the stop. A drain belongs to the recovery policy.
    if flags & EVICTED and not flags & DRAINED:
        return False
    match AttemptState(status.state[position]):
        case AttemptState.LOST:
            return True
        case AttemptState.STOPPED:
            # A leaving node stops its tasks in good order, but to their job that is a
            # loss like that of a lost node.
            return bool(flags & DRAINED) or status.causes.get(position) == EndCause.NODE_LEFT
        case _:
            return False


def end_of_attempt(spec: JobSpec, attempt: AttemptBlock, status: StatusBlock, position: int) -> AttemptEnd:
    """How the attempt at this position ended; a preempted one counts as stopped even if its node was lost."""
    state, code = AttemptState(status.state[position]), ints(status, "exit_code")[position]
    lost = is_loss(attempt, status, position)
    evicted = bool(attempt.flags[position] & EVICTED)
    # The victim would have been stopped anyway. As a loss it could end the task by its recovery policy, or
    # add to the blame of the task for a lost node.
    if evicted and not lost and state is AttemptState.LOST:
        return AttemptEnd(AttemptState.STOPPED, is_evicted=True)
    return AttemptEnd(
        state,
        code,
        status.signal[position],
        status.causes.get(position),
        is_outdated=status.versions.get(position, 1) < spec.version,
        is_evicted=evicted and state is AttemptState.STOPPED,
        left_with_node=lost,
    )
