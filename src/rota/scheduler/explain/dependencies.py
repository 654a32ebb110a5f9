"""A job that waits for others -> which of them, and what they do: no node can help."""

from rota.model.ids import JobId
from rota.model.lifecycle import JobState
from rota.model.outlook import Explanation, WaitReason
from rota.model.view import JobView, View, state_of

_NAMED = 8  # others named in an answer


def explain_dependencies(view: View, job: JobView) -> Explanation:
    after = job.spec.after
    left = [one for one in after if one.is_met(state_of(view, one.job)) is None]
    reasons = [
        WaitReason("after", 1, 1, f"waits for {one.description}: it {_describe_state(view, one.job)}")
        for one in left
    ]
    if len(left) > _NAMED:
        more = len(left) - _NAMED
        reasons = [
            *reasons[:_NAMED],
            WaitReason("after", more, len(after), f"and for {more} other jobs to end"),
        ]
    head = f"waits for {len(left)} of {len(after)} jobs" if len(after) > 1 else "waits"
    first = reasons[0].text.removeprefix("waits ") if reasons else "it begins now"
    sentence = f"{head} {first}" if len(after) == 1 else f"{head}; the first: {first.removeprefix('for ')}"
    return Explanation(waits=True, sentence=sentence, reasons=tuple(reasons))


def _describe_state(view: View, job_id: JobId) -> str:
    job = view.jobs[job_id]
    match state_of(view, job_id):
        case JobState.WAITING:
            return "waits for others itself"
        case JobState.CANCELING:
            return "is being canceled"
        case _:
            return "runs" if job.task_counts.live or job.task_counts.ended else "has not begun"
