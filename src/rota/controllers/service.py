"""An ended attempt of a service -> wanted again, after a pause that grows while it does not last."""

from rota.controllers.verdict import End, Verdict
from rota.model.job import JobSpec
from rota.model.lifecycle import AttemptState, TaskEvent
from rota.model.limits import SERVICE_LAST_MS
from rota.model.retry import Retry

PAUSES = Retry(delay_max_ms=SERVICE_LAST_MS)


def judge(spec: JobSpec, end: End, failures: int, wanted: bool) -> Verdict:
    """Whatever way it ended: only who cancels it ends it."""
    del spec, failures  # it is tried for ever
    if not wanted:
        return Verdict(TaskEvent.STOPPED)
    match end.state:
        case AttemptState.SUCCEEDED | AttemptState.FAILED | AttemptState.TIMED_OUT:
            return Verdict(TaskEvent.AGAIN, spends_a_retry=not end.is_outdated)
        case AttemptState.STOPPED | AttemptState.LOST:
            return Verdict(TaskEvent.SUSPECTED if end.is_suspect else TaskEvent.AGAIN)
        case _:
            raise AssertionError(f"{end.state.name} is not the end of a try")
