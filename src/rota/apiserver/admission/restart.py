"""User actions that start tasks again: restart of live ones, release of those in quarantine.

A restarted task is stopped and placed again, which costs no retry. The intent names tasks by index and
attempt number: so a repeated request never stops or releases an attempt that came later.
"""

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.live_attempts import live_attempts, require_active
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.model.amounts import parse_count
from rota.model.columns import Ranges, ints
from rota.model.errors import BadField, Conflict
from rota.model.ids import JobId
from rota.model.job import JobIntent
from rota.model.lifecycle import TaskState
from rota.model.limits import BLOCK_TASKS, RESTARTS_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.shape import RunMode
from rota.model.view import JobView, View


def restart_tasks(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Restart the live tasks, or those of them that are named."""
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    indices = _parse_indices(fields.known_fields(body, ("indices",)).get("indices"), job.spec.count)
    _require_restartable(job)
    live = _live_numbers(job)
    chosen = live if indices is None else {index: live[index] for index in indices if index in live}
    if not chosen:
        raise Conflict(f"none of these tasks of job {job.spec.id} runs", hint=f"see rota show {job.spec.id}")
    if len(chosen) > RESTARTS_MAX:
        raise Conflict(f"{len(chosen)} tasks run", hint=f"name at most {RESTARTS_MAX} of them")
    before = job.intent or JobIntent(job.spec.id)
    # Drop requests for attempts that have ended: the record stays bounded by the number of live tasks.
    intent = msgspec.structs.replace(
        before, restart={**_still_live(before.restart, live), **chosen}, at_ms=now.ms
    )
    ranges = Ranges(list(chosen))
    why = f"{caller.name} restarts task{'s' if len(chosen) > 1 else ''} {ranges} of job {job.spec.id}"
    event = EventRecord("task.restart", why, job=job.spec.id, indices=tuple(ranges.pairs))
    return Plan((intent,), events=(event,), why=why, answer=job.spec.id)


def kill_and_restart_tasks(job: JobView, indices: list[int], caller: Caller, now: Instant) -> Plan[JobId]:
    """Kill tasks of a service or system job without grace period; they are started again."""
    live, before = _live_numbers(job), job.intent or JobIntent(job.spec.id)
    chosen = {index: live[index] for index in indices if index in live}
    if not chosen:
        raise Conflict(f"none of these tasks of job {job.spec.id} runs", hint=f"see rota show {job.spec.id}")
    killed = {**_still_live(before.killed, live), **chosen}
    # A repeat of a kill whose answer was lost: the same attempts are named, and nothing is written.
    if killed == before.killed:
        return Plan(answer=job.spec.id, fenced=True)
    ranges = Ranges(list(chosen))
    why = f"{caller.name} kills task{'s' if len(chosen) > 1 else ''} {ranges} of job {job.spec.id}"
    reason = f"{why}, which {'are' if len(chosen) > 1 else 'is'} started again"
    event = EventRecord("task.restart", reason, job=job.spec.id, indices=tuple(ranges.pairs))
    intent = msgspec.structs.replace(before, killed=killed, at_ms=now.ms)
    return Plan((intent,), events=(event,), why=reason, answer=job.spec.id)


def _live_numbers(job: JobView) -> dict[int, int]:
    """Index -> number of the live attempt."""
    return {index: attempt.number for index, attempt in live_attempts(job).items()}


def _still_live(requested: dict[int, int], live: dict[int, int]) -> dict[int, int]:
    return {index: number for index, number in requested.items() if live.get(index) == number}


def _parse_indices(value: object, count: int) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadField("indices", "is not a list of numbers", "write [0, 3], or leave it out for all")
    return [fields.number("indices", parse_count, index, 0, count - 1) for index in value]


def _require_restartable(job: JobView) -> None:
    require_active(job, "submit it again")
    if job.spec.run is RunMode.AT_MOST_ONCE:
        raise Conflict(f"job {job.spec.id} runs at_most_once", hint="cancel it, and submit it again")


def release_tasks(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Release tasks from quarantine: they start again, at the risk of taking another node down."""
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    indices = _parse_indices(fields.known_fields(body, ("indices",)).get("indices"), job.spec.count)
    held = {} if job.status is None or job.status.ended else _held_tasks(job)
    chosen = held if indices is None else {index: held[index] for index in indices if index in held}
    if not chosen:
        raise Conflict(
            f"none of these tasks of job {job.spec.id} is held", hint=f"see rota show {job.spec.id}"
        )
    if len(chosen) > RESTARTS_MAX:
        raise Conflict(f"{len(chosen)} tasks are held", hint=f"name at most {RESTARTS_MAX} of them")
    before = job.intent or JobIntent(job.spec.id)
    # Earlier releases that are done are dropped, so the intent stays bounded by the number of held tasks.
    still_held = {index: number for index, number in before.release.items() if held.get(index) == number}
    intent = msgspec.structs.replace(before, release={**still_held, **chosen}, at_ms=now.ms)
    ranges = Ranges(list(chosen))
    why = f"{caller.name} releases task{'s' if len(chosen) > 1 else ''} {ranges} of job {job.spec.id}"
    event = EventRecord("task.release", why, job=job.spec.id, indices=tuple(ranges.pairs))
    return Plan((intent,), events=(event,), why=why, answer=job.spec.id)


def _held_tasks(job: JobView) -> dict[int, int]:
    """Index -> desired attempt number of each task in quarantine."""
    return {
        block * BLOCK_TASKS + at: ints(task, "wanted")[at]
        for block, task in job.tasks.items()
        for at, state in enumerate(task.state)
        if state == TaskState.HELD
    }
