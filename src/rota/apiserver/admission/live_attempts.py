"""What actions on a job share: its live attempts, and the refusal of a job that has ended or is canceled."""

from typing import NamedTuple

from rota.model.columns import ints
from rota.model.errors import Conflict
from rota.model.ids import NodeId
from rota.model.limits import BLOCK_TASKS
from rota.model.view import JobView
from rota.rules.phases import FIRST_END, Phase


class LiveAttempt(NamedTuple):
    """The live attempt of a task."""

    number: int
    tries: int
    node: NodeId
    phase: Phase


def live_attempts(job: JobView) -> dict[int, LiveAttempt]:
    """The tasks of a job that are on a node, by index."""
    found: dict[int, LiveAttempt] = {}
    for block, phases in job.phases.items():
        if block not in job.attempts:
            continue
        attempts = job.attempts[block]
        number, tries, node = (ints(attempts, name) for name in ("number", "tries", "node"))
        for at, phase in enumerate(phases):
            # An unresolved task has lost its attempt: its recovery controller decides, and no action does.
            if Phase.PENDING < phase < FIRST_END and phase != Phase.UNRESOLVED:
                where = attempts.nodes[node[at]]
                found[block * BLOCK_TASKS + at] = LiveAttempt(number[at], tries[at], where, Phase(phase))
    return found


def require_active(job: JobView, hint: str) -> None:
    """Refuse an action on a job that has ended or is being canceled."""
    refuse_ended(job, hint)
    if job.intent is not None and job.intent.cancel:
        raise Conflict(f"job {job.spec.id} is being canceled", hint=hint)


def refuse_ended(job: JobView, hint: str) -> None:
    if job.status is not None and job.status.ended:
        raise Conflict(f"job {job.spec.id} has ended: {job.status.state}", hint=hint)
