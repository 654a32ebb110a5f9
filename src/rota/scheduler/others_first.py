"""A job that waits for others -> which of them, and what they do: no node can help."""

from rota.model.ids import JobId
from rota.model.lifecycle import JobState
from rota.model.view import JobView, View, state_of
from rota.model.why import Reason, Why

_NAMED = 8  # others named in an answer


def waiting_for(view: View, job: JobView) -> Why:
    after = job.spec.after
    left = [one for one in after if one.holds(state_of(view, one.job)) is None]
    reasons = [Reason("after", 1, 1, f"waits for {one.words}: it {_does(view, one.job)}") for one in left]
    if len(left) > _NAMED:
        more = len(left) - _NAMED
        reasons = [*reasons[:_NAMED], Reason("after", more, len(after), f"and for {more} other jobs to end")]
    head = f"waits for {len(left)} of {len(after)} jobs" if len(after) > 1 else "waits"
    first = reasons[0].text.removeprefix("waits ") if reasons else "it begins now"
    sentence = f"{head} {first}" if len(after) == 1 else f"{head}; the first: {first.removeprefix('for ')}"
    return Why(waits=True, sentence=sentence, reasons=tuple(reasons))


def _does(view: View, job_id: JobId) -> str:
    job = view.jobs[job_id]
    match state_of(view, job_id):
        case JobState.WAITING:
            return "waits for others itself"
        case JobState.CANCELING:
            return "is being canceled"
        case _:
            return "runs" if job.tally.live or job.tally.ended else "has not begun"
