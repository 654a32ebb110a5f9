"""The wish that tasks under suspicion are started again, at the risk of whoever wishes it."""

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.restart import parse_indices
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.model.columns import Ranges, ints
from rota.model.errors import Conflict
from rota.model.ids import JobId
from rota.model.job import JobIntent
from rota.model.lifecycle import TaskState
from rota.model.limits import BLOCK_TASKS, RESTARTS_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import JobView, View


def release_tasks(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Named by the number of its try, so that a repeated wish releases nothing that was held since."""
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    wanted = parse_indices(fields.known_fields(body, ("indices",)).get("indices"), job.spec.count)
    held = {} if job.status is None or job.status.ended else _held_tasks(job)
    chosen = held if wanted is None else {index: held[index] for index in wanted if index in held}
    if not chosen:
        raise Conflict(
            f"none of these tasks of job {job.spec.id} is held", hint=f"see rota show {job.spec.id}"
        )
    if len(chosen) > RESTARTS_MAX:
        raise Conflict(f"{len(chosen)} tasks are held", hint=f"name at most {RESTARTS_MAX} of them")
    before = job.intent or JobIntent(job.spec.id)
    still = {index: tries for index, tries in before.release.items() if held.get(index) == tries}
    wish = msgspec.structs.replace(before, release={**still, **chosen}, at_ms=now.ms)
    ranges = Ranges(list(chosen))
    why = f"{caller.name} releases task{'s' if len(chosen) > 1 else ''} {ranges} of job {job.spec.id}"
    event = EventRecord("task.release", why, job=job.spec.id, indices=tuple(ranges.pairs))
    return Plan((wish,), events=(event,), why=why, answer=job.spec.id)


def _held_tasks(job: JobView) -> dict[int, int]:
    """Index -> the number of the try that is held."""
    return {
        block * BLOCK_TASKS + at: ints(task, "wanted")[at]
        for block, task in job.tasks.items()
        for at, state in enumerate(task.state)
        if state == TaskState.HELD
    }
