"""An ended attempt of a service -> wanted again, after a pause that grows while it does not last."""

from rota.controllers.attempt_end import AttemptEnd, RetryOutcome
from rota.model.job import JobSpec
from rota.model.lifecycle import AttemptState, TaskEvent
from rota.model.limits import SERVICE_BACKOFF_MAX_MS
from rota.model.recovery import Retry

BACKOFF = Retry(delay_max_ms=SERVICE_BACKOFF_MAX_MS)


def decide_restart(spec: JobSpec, end: AttemptEnd, failures: int, wanted: bool) -> RetryOutcome:
    """Whatever way it ended: only who cancels it ends it."""
    del spec, failures  # it is tried for ever
    if not wanted:
        return RetryOutcome(TaskEvent.STOPPED)
    match end.state:
        case AttemptState.SUCCEEDED | AttemptState.FAILED | AttemptState.TIMED_OUT:
            return RetryOutcome(TaskEvent.RETRY, counts_as_retry=not end.is_outdated)
        case AttemptState.STOPPED | AttemptState.LOST:
            return RetryOutcome(TaskEvent.QUARANTINED if end.is_suspect else TaskEvent.RETRY)
        case _:
            raise AssertionError(f"{end.state.name} is not the end of a try")
