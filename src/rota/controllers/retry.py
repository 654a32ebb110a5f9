"""An ended attempt -> done, tried again (and when), or the end of its task."""

from zlib import crc32

from rota.controllers.verdict import End, Verdict
from rota.model.job import JobSpec, Kind, Recovery
from rota.model.lifecycle import NOT_A_TRY, AttemptState, TaskEvent
from rota.model.limits import FAULT_FIRST_MS, FAULT_JITTER_PERCENT, FAULT_LAST_MS
from rota.model.retry import Cause, Failure, Retry
from rota.model.shape import RunMode

_FAULT_PAUSES = Retry(
    delay_ms=FAULT_FIRST_MS, delay_max_ms=FAULT_LAST_MS, jitter_percent=FAULT_JITTER_PERCENT
)
_BY_ITSELF = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.TIMED_OUT)


def judge(spec: JobSpec, end: End, failures: int, wanted: bool) -> Verdict:
    """Losses go to the recovery owner; a system job is started again however it ended, after a pause."""
    if wanted and end.is_loss:
        return Verdict(_after_loss(spec, end))
    if spec.kind is Kind.SYSTEM and wanted and end.state in _BY_ITSELF:
        return Verdict(TaskEvent.AGAIN, spends_a_retry=True)
    return _judge(spec, end, failures, wanted)


def _judge(spec: JobSpec, end: End, failures: int, wanted: bool) -> Verdict:
    """A failure of the job's own spends a retry; a fault of the cluster costs a pause at most."""
    again = wanted and spec.run is not RunMode.AT_MOST_ONCE  # that is started once, ever
    match end.state:
        case AttemptState.SUCCEEDED:
            return Verdict(TaskEvent.DONE)
        case AttemptState.FAILED | AttemptState.TIMED_OUT if again and failures < spec.retries:
            return _own_failure(spec.retry, end)
        case AttemptState.FAILED:
            return Verdict(TaskEvent.SPENT)
        case AttemptState.TIMED_OUT:
            return Verdict(TaskEvent.OVERTIME)
        case AttemptState.STOPPED:  # by request, or preempted
            return Verdict(TaskEvent.AGAIN if again else TaskEvent.GONE if wanted else TaskEvent.STOPPED)
        case AttemptState.LOST:  # unwanted
            return Verdict(TaskEvent.GONE)
        case _ if end.state in NOT_A_TRY and not wanted:
            return Verdict(TaskEvent.STOPPED)
        case _:
            raise AssertionError(f"{end.state.name} is not the end of a try")


def pause_ms(retry: Retry, failures: int, name: str) -> int:
    """Twice as long each time, less a part that is drawn from the name: every leader draws the same."""
    whole_ms = min(retry.delay_max_ms, retry.delay_ms << min(failures, 32))
    return whole_ms - whole_ms * retry.jitter_percent * (crc32(name.encode()) % 1000) // 100_000


def fault_pause_ms(faults: int, name: str) -> int:
    """The pause after this many faults of the cluster in a row: none after the first, then it doubles."""
    return 0 if faults <= 1 else pause_ms(_FAULT_PAUSES, faults - 2, name)


def _own_failure(retry: Retry, end: End) -> Verdict:
    """Retries are left: is this failure worth one?"""
    is_late = end.state is AttemptState.TIMED_OUT
    ends = TaskEvent.OVERTIME if is_late else TaskEvent.SPENT
    if end.signal == 0 and not is_late and end.exit_code in retry.fail_on:
        return Verdict(ends, reason=f"exit {end.exit_code}, and by its fail_on that is not tried again")
    if _is_named(retry, end) or not (retry.is_choosy or is_late):
        return Verdict(TaskEvent.AGAIN, spends_a_retry=True)
    return Verdict(
        ends, reason=f"{_told(end)}, which its retry_on does not name" if retry.is_choosy else None
    )


def _is_named(retry: Retry, end: End) -> bool:
    if end.state is AttemptState.TIMED_OUT:
        return Failure.TIMEOUT in retry.on
    if end.cause == Cause.OOM:
        return Failure.OOM in retry.on
    return Failure.SIGNAL in retry.on if end.signal else end.exit_code in retry.codes


def _told(end: End) -> str:
    if end.state is AttemptState.TIMED_OUT:
        return "over its time limit"
    if end.cause == Cause.OOM:
        return "out of memory"
    return f"killed by signal {end.signal}" if end.signal else f"exit {end.exit_code}"


def _after_loss(spec: JobSpec, end: End) -> TaskEvent:
    """What the owner says of a lost task that may be started again; a controller was asked before."""
    if spec.run is RunMode.AT_MOST_ONCE:
        return TaskEvent.GONE
    match spec.recovery:
        case Recovery.SCHEDULER:
            return TaskEvent.SUSPECTED if end.is_suspect else TaskEvent.AGAIN
        case Recovery.CANCEL:
            return TaskEvent.STOPPED
        case Recovery.NONE | Recovery.CONTROLLER:
            return TaskEvent.GONE
