"""An ended attempt -> done, tried again (and when), or the end of its task."""

from zlib import crc32

from rota.controllers.attempt_end import AttemptEnd, RetryOutcome
from rota.model.job import JobKind, JobSpec, Recovery
from rota.model.lifecycle import NOT_STARTED, AttemptState, TaskEvent
from rota.model.limits import FAULT_BACKOFF_FIRST_MS, FAULT_BACKOFF_MAX_MS, FAULT_JITTER_PERCENT
from rota.model.recovery import EndCause, Failure, Retry
from rota.model.shape import RunMode

_FAULT_BACKOFF = Retry(
    delay_ms=FAULT_BACKOFF_FIRST_MS, delay_max_ms=FAULT_BACKOFF_MAX_MS, jitter_percent=FAULT_JITTER_PERCENT
)
_OWN_ENDS = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.TIMED_OUT)


def decide_retry(spec: JobSpec, end: AttemptEnd, failures: int, wanted: bool) -> RetryOutcome:
    """Losses go to the recovery owner; a system job is started again however it ended, after a pause."""
    if wanted and end.is_loss:
        return RetryOutcome(_after_loss(spec, end))
    if spec.kind is JobKind.SYSTEM and wanted and end.state in _OWN_ENDS:
        return RetryOutcome(TaskEvent.RETRY, counts_as_retry=True)
    return _decide_without_loss(spec, end, failures, wanted)


def _decide_without_loss(spec: JobSpec, end: AttemptEnd, failures: int, wanted: bool) -> RetryOutcome:
    """A failure of the job's own spends a retry; a fault of the cluster costs a pause at most."""
    again = wanted and spec.run is not RunMode.AT_MOST_ONCE  # that is started once, ever
    match end.state:
        case AttemptState.SUCCEEDED:
            return RetryOutcome(TaskEvent.SUCCEEDED)
        case AttemptState.FAILED | AttemptState.TIMED_OUT if again and failures < spec.retries:
            return _decide_own_failure(spec.retry, end)
        case AttemptState.FAILED:
            return RetryOutcome(TaskEvent.RETRIES_EXHAUSTED)
        case AttemptState.TIMED_OUT:
            return RetryOutcome(TaskEvent.TIMED_OUT)
        case AttemptState.STOPPED:  # by request, or preempted
            return RetryOutcome(
                TaskEvent.RETRY if again else TaskEvent.NODE_LOST if wanted else TaskEvent.STOPPED
            )
        case AttemptState.LOST:  # unwanted
            return RetryOutcome(TaskEvent.NODE_LOST)
        case _ if end.state in NOT_STARTED and not wanted:
            return RetryOutcome(TaskEvent.STOPPED)
        case _:
            raise AssertionError(f"{end.state.name} is not the end of a try")


def backoff_ms(retry: Retry, failures: int, name: str) -> int:
    """Twice as long each time, less a part that is drawn from the name: every leader draws the same."""
    whole_ms = min(retry.delay_max_ms, retry.delay_ms << min(failures, 32))
    return whole_ms - whole_ms * retry.jitter_percent * (crc32(name.encode()) % 1000) // 100_000


def fault_backoff_ms(faults: int, name: str) -> int:
    """The pause after this many faults of the cluster in a row: none after the first, then it doubles."""
    return 0 if faults <= 1 else backoff_ms(_FAULT_BACKOFF, faults - 2, name)


def _decide_own_failure(retry: Retry, end: AttemptEnd) -> RetryOutcome:
    """Retries are left: is this failure worth one?"""
    is_late = end.state is AttemptState.TIMED_OUT
    ends = TaskEvent.TIMED_OUT if is_late else TaskEvent.RETRIES_EXHAUSTED
    if end.signal == 0 and not is_late and end.exit_code in retry.fail_on:
        return RetryOutcome(ends, reason=f"exit {end.exit_code}, and by its fail_on that is not tried again")
    if _is_retryable(retry, end) or not (retry.is_choosy or is_late):
        return RetryOutcome(TaskEvent.RETRY, counts_as_retry=True)
    return RetryOutcome(
        ends, reason=f"{_describe_end(end)}, which its retry_on does not name" if retry.is_choosy else None
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
    """What the owner says of a lost task that may be started again; a controller was asked before."""
    if spec.run is RunMode.AT_MOST_ONCE:
        return TaskEvent.NODE_LOST
    match spec.recovery:
        case Recovery.SCHEDULER:
            return TaskEvent.QUARANTINED if end.is_suspect else TaskEvent.RETRY
        case Recovery.CANCEL:
            return TaskEvent.STOPPED
        case Recovery.NONE | Recovery.CONTROLLER:
            return TaskEvent.NODE_LOST
