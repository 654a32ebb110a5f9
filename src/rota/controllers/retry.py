"""An ended attempt -> done, tried again (and when), or the end of its task."""

from rota.controllers.verdict import Verdict
from rota.model.job import JobSpec, Kind, Recovery
from rota.model.lifecycle import NOT_A_TRY, AttemptState, TaskEvent
from rota.model.limits import RETRY_FIRST_MS, RETRY_LAST_MS
from rota.model.shape import RunMode

_BY_ITSELF = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.TIMED_OUT)


def judge(spec: JobSpec, ended: AttemptState, failures: int, wanted: bool) -> Verdict:
    """What is kept running is started again however it ended, after a pause."""
    if spec.kind is Kind.SYSTEM and wanted and ended in _BY_ITSELF:
        return Verdict(TaskEvent.AGAIN, True, pause_ms(failures))
    return _judge(spec, ended, failures, wanted)


def _judge(spec: JobSpec, ended: AttemptState, failures: int, wanted: bool) -> Verdict:
    """A failure of the job's own spends a retry; a fault of the cluster's is free."""
    again = wanted and spec.run is not RunMode.AT_MOST_ONCE  # that is started once, ever
    match ended:
        case AttemptState.SUCCEEDED:
            return Verdict(TaskEvent.DONE)
        case AttemptState.FAILED if again and failures < spec.retries:
            return Verdict(TaskEvent.AGAIN, True, pause_ms(failures))
        case AttemptState.FAILED:
            return Verdict(TaskEvent.SPENT)
        case AttemptState.TIMED_OUT:
            return Verdict(TaskEvent.OVERTIME)
        case AttemptState.STOPPED:
            return Verdict(TaskEvent.AGAIN if again else TaskEvent.GONE if wanted else TaskEvent.STOPPED)
        case AttemptState.LOST:
            return Verdict(_after_loss(spec.recovery) if again else TaskEvent.GONE)
        case _ if ended in NOT_A_TRY and not wanted:
            return Verdict(TaskEvent.STOPPED)
        case _:
            raise AssertionError(f"{ended.name} is not the end of a try")


def pause_ms(failures: int) -> int:
    return int(min(RETRY_LAST_MS, RETRY_FIRST_MS * 2 ** min(failures, 16)))


def _after_loss(recovery: Recovery) -> TaskEvent:
    match recovery:
        case Recovery.SCHEDULER:
            return TaskEvent.AGAIN
        case Recovery.CANCEL:
            return TaskEvent.STOPPED
        case Recovery.NONE | Recovery.CONTROLLER:
            return TaskEvent.GONE
