"""An ended attempt -> its task succeeded, is retried after a backoff, or has ended.

Batch and system jobs are decided by `decide_retry`, services by `decide_restart`. Losses of nodes never cost
a retry: the recovery policy of the job decides about them.
"""

from zlib import crc32

from rota.controllers.attempt_end import AttemptEnd, RetryOutcome
from rota.model.job import JobKind, JobSpec, Recovery
from rota.model.lifecycle import NOT_STARTED, AttemptState, TaskEvent
from rota.model.limits import (
    FAULT_BACKOFF_FIRST_MS,
    FAULT_BACKOFF_MAX_MS,
    FAULT_JITTER_PERCENT,
    SERVICE_BACKOFF_MAX_MS,
)
from rota.model.recovery import EndCause, Failure, Retry
from rota.model.shape import RunMode

SERVICE_BACKOFF = Retry(delay_max_ms=SERVICE_BACKOFF_MAX_MS)
_FAULT_BACKOFF = Retry(
    delay_ms=FAULT_BACKOFF_FIRST_MS, delay_max_ms=FAULT_BACKOFF_MAX_MS, jitter_percent=FAULT_JITTER_PERCENT
)
_OWN_ENDS = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.TIMED_OUT)


def decide_retry(spec: JobSpec, end: AttemptEnd, failures: int, is_wanted: bool) -> RetryOutcome:
    """Losses follow the recovery policy; system jobs restart on any exit, with backoff."""
    if is_wanted and end.is_loss:
        return RetryOutcome(_after_loss(spec, end))
    if spec.kind is JobKind.SYSTEM and is_wanted and end.state in _OWN_ENDS:
        return RetryOutcome(TaskEvent.RETRY, counts_as_retry=True)
    return _decide_without_loss(spec, end, failures, is_wanted)


def decide_restart(spec: JobSpec, end: AttemptEnd, failures: int, is_wanted: bool) -> RetryOutcome:
    """Services restart on any exit, for ever: only a cancellation ends them."""
    del spec, failures
    if not is_wanted:
        return RetryOutcome(TaskEvent.STOPPED)
    match end.state:
        case AttemptState.SUCCEEDED | AttemptState.FAILED | AttemptState.TIMED_OUT:
            # Failures of an older version do not slow down the first start of the newer one.
            return RetryOutcome(TaskEvent.RETRY, counts_as_retry=not end.is_outdated)
        case AttemptState.STOPPED | AttemptState.LOST:
            return RetryOutcome(TaskEvent.QUARANTINED if end.is_suspect else TaskEvent.RETRY)
        case _:
            raise AssertionError(f"{end.state.name} is not the end of a try")


def _decide_without_loss(spec: JobSpec, end: AttemptEnd, failures: int, is_wanted: bool) -> RetryOutcome:
    """A failure of the task itself costs a retry; a fault of the cluster costs a backoff at most."""
    # An at-most-once task is never started again.
    may_retry = is_wanted and spec.run is not RunMode.AT_MOST_ONCE
    match end.state:
        case AttemptState.SUCCEEDED:
            return RetryOutcome(TaskEvent.SUCCEEDED)
        case AttemptState.FAILED | AttemptState.TIMED_OUT if may_retry and failures < spec.retries:
            return _decide_own_failure(spec.retry, end)
        case AttemptState.FAILED:
            return RetryOutcome(TaskEvent.RETRIES_EXHAUSTED)
        case AttemptState.TIMED_OUT:
            return RetryOutcome(TaskEvent.TIMED_OUT)
        case AttemptState.STOPPED:  # by request, or preempted
            return RetryOutcome(
                # A desired at-most-once task that was preempted is lost, not canceled:
                # no user asked for its end.
                TaskEvent.RETRY if may_retry else TaskEvent.NODE_LOST if is_wanted else TaskEvent.STOPPED
            )
        case AttemptState.LOST:  # no longer desired: a desired one is a loss
            return RetryOutcome(TaskEvent.NODE_LOST)
        case _ if end.state in NOT_STARTED and not is_wanted:
            return RetryOutcome(TaskEvent.STOPPED)
        case _:
            raise AssertionError(f"{end.state.name} is not the end of a try")


def backoff_ms(retry: Retry, failures: int, name: str) -> int:
    """Exponential backoff with jitter derived from the name, so that every leader computes the same delay."""
    # The shift is bounded: services fail without limit, and an unbounded shift
    # would make numbers of any length.
    whole_ms = min(retry.delay_max_ms, retry.delay_ms << min(failures, 32))
    return whole_ms - whole_ms * retry.jitter_percent * (crc32(name.encode()) % 1000) // 100_000


def fault_backoff_ms(faults: int, name: str) -> int:
    """Backoff after this many consecutive faults of the cluster: none after the first, then it doubles."""
    # No delay after the first fault: tasks of a lost node are placed elsewhere immediately.
    return 0 if faults <= 1 else backoff_ms(_FAULT_BACKOFF, faults - 2, name)


def _decide_own_failure(retry: Retry, end: AttemptEnd) -> RetryOutcome:
    """Retries are left: decide by `retry_on` and `fail_on` whether this failure is retried."""
    timed_out = end.state is AttemptState.TIMED_OUT
    final_event = TaskEvent.TIMED_OUT if timed_out else TaskEvent.RETRIES_EXHAUSTED
    # `fail_on` precedes `retry_on`: it names what a further try cannot change.
    if end.signal == 0 and not timed_out and end.exit_code in retry.fail_on:
        return RetryOutcome(
            final_event, reason=f"exit {end.exit_code}, and by its fail_on that is not tried again"
        )
    # A timeout is retried only on request: the same work would most likely take as long again.
    if _is_retryable(retry, end) or not (retry.is_choosy or timed_out):
        return RetryOutcome(TaskEvent.RETRY, counts_as_retry=True)
    return RetryOutcome(
        final_event,
        reason=f"{_describe_end(end)}, which its retry_on does not name" if retry.is_choosy else None,
    )


def _is_retryable(retry: Retry, end: AttemptEnd) -> bool:
    if end.state is AttemptState.TIMED_OUT:
        return Failure.TIMEOUT in retry.on
    if end.cause == EndCause.OOM:
        return Failure.OOM in retry.on
    return Failure.SIGNAL in retry.on if end.signal else end.exit_code in retry.codes


def _describe_end(end: AttemptEnd) -> str:
    if end.state is AttemptState.TIMED_OUT:
        return "over its time limit"
    if end.cause == EndCause.OOM:
        return "out of memory"
    return f"killed by signal {end.signal}" if end.signal else f"exit {end.exit_code}"


def _after_loss(spec: JobSpec, end: AttemptEnd) -> TaskEvent:
    """Outcome of a lost task by recovery policy; a recovery controller was asked before."""
    if spec.run is RunMode.AT_MOST_ONCE:
        return TaskEvent.NODE_LOST
    match spec.recovery:
        case Recovery.SCHEDULER:
            return TaskEvent.QUARANTINED if end.is_suspect else TaskEvent.RETRY
        case Recovery.CANCEL:
            return TaskEvent.STOPPED
        case Recovery.NONE | Recovery.CONTROLLER:
            return TaskEvent.NODE_LOST
