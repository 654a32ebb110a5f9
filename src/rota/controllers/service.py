"""An ended attempt of a service -> wanted again, after a pause that grows while it does not last."""

from rota.controllers.verdict import Verdict
from rota.model.lifecycle import AttemptState, TaskEvent
from rota.model.limits import RETRY_FIRST_MS, SERVICE_LAST_MS

_FAILURES_MAX = 1_000  # more are not told apart


def judge(ended: AttemptState, failures: int, wanted: bool) -> Verdict:
    """Whatever way it ended: only who cancels it ends it."""
    if not wanted:
        return Verdict(TaskEvent.STOPPED)
    match ended:
        case AttemptState.SUCCEEDED | AttemptState.FAILED | AttemptState.TIMED_OUT:
            return Verdict(TaskEvent.AGAIN, failures < _FAILURES_MAX, pause_ms(failures))
        case AttemptState.STOPPED | AttemptState.LOST:
            return Verdict(TaskEvent.AGAIN)  # by no fault of its own
        case _:
            raise AssertionError(f"{ended.name} is not the end of a try")


def pause_ms(failures: int) -> int:
    return int(min(SERVICE_LAST_MS, RETRY_FIRST_MS * 2 ** min(failures, 16)))
