"""A job with pending dependencies -> which jobs it waits for, and their states."""

from rota.model.ids import JobId
from rota.model.lifecycle import JobState
from rota.model.view import JobView, View, state_of
from rota.model.why import Explanation, WaitReason

_NAMED = 8  # dependencies named in an explanation


def explain_dependencies(view: View, job: JobView) -> Explanation:
    after = job.spec.after
    left = [dependency for dependency in after if dependency.is_met(state_of(view, dependency.job)) is None]
    reasons = [
        WaitReason(
            "after", 1, 1, f"waits for {dependency.description}: it {_describe_state(view, dependency.job)}"
        )
        for dependency in left
    ]
    if len(left) > _NAMED:
        more = len(left) - _NAMED
        reasons = [
            *reasons[:_NAMED],
            WaitReason("after", more, len(after), f"and for {more} other jobs to end"),
        ]
    head = f"waits for {len(left)} of {len(after)} jobs" if len(after) > 1 else "waits"
    first = reasons[0].text.removeprefix("waits ") if reasons else "it starts now"
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
            return "runs" if job.task_counts.live or job.task_counts.ended else "has not started"
