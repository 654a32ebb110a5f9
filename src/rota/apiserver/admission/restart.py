"""The wish that tasks begin again: what runs of them is stopped and tried anew, and no retry is spent."""

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.model.amounts import parse_count
from rota.model.columns import Ranges, ints
from rota.model.errors import BadField, Conflict
from rota.model.ids import JobId
from rota.model.job import JobIntent
from rota.model.limits import BLOCK_TASKS, RESTARTS_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.shape import RunMode
from rota.model.view import JobView, View
from rota.rules.phases import FIRST_END, Phase


def restart_tasks(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Named by the number of its attempt, so that a repeated wish stops nothing that began since."""
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    wanted = parse_indices(fields.known_fields(body, ("indices",)).get("indices"), job.spec.count)
    _refuse_ended(job)
    live = _live_attempts(job)
    chosen = live if wanted is None else {index: live[index] for index in wanted if index in live}
    if not chosen:
        raise Conflict(f"none of these tasks of job {job.spec.id} runs", hint=f"see rota show {job.spec.id}")
    if len(chosen) > RESTARTS_MAX:
        raise Conflict(f"{len(chosen)} tasks run", hint=f"name at most {RESTARTS_MAX} of them")
    before = job.intent or JobIntent(job.spec.id)
    wish = msgspec.structs.replace(
        before, restart={**_still_live(before.restart, live), **chosen}, at_ms=now.ms
    )
    ranges = Ranges(list(chosen))
    why = f"{caller.name} restarts task{'s' if len(chosen) > 1 else ''} {ranges} of job {job.spec.id}"
    event = EventRecord("task.restart", why, job=job.spec.id, indices=tuple(ranges.pairs))
    return Plan((wish,), events=(event,), why=why, answer=job.spec.id)


def kill_and_restart_tasks(job: JobView, wanted: list[int], caller: Caller, now: Instant) -> Plan[JobId]:
    """Of what is kept running: what runs of these is killed, and started again."""
    live, before = _live_attempts(job), job.intent or JobIntent(job.spec.id)
    chosen = {index: live[index] for index in wanted if index in live}
    if not chosen:
        raise Conflict(f"none of these tasks of job {job.spec.id} runs", hint=f"see rota show {job.spec.id}")
    killed = {**_still_live(before.killed, live), **chosen}
    if killed == before.killed:
        return Plan(answer=job.spec.id, fenced=True)
    ranges = Ranges(list(chosen))
    why = f"{caller.name} kills task{'s' if len(chosen) > 1 else ''} {ranges} of job {job.spec.id}"
    told = f"{why}, which {'are' if len(chosen) > 1 else 'is'} started again"
    event = EventRecord("task.restart", told, job=job.spec.id, indices=tuple(ranges.pairs))
    wish = msgspec.structs.replace(before, killed=killed, at_ms=now.ms)
    return Plan((wish,), events=(event,), why=told, answer=job.spec.id)


def _still_live(wished: dict[int, int], live: dict[int, int]) -> dict[int, int]:
    return {index: number for index, number in wished.items() if live.get(index) == number}


def parse_indices(value: object, count: int) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadField("indices", "is not a list of numbers", "write [0, 3], or leave it out for all")
    return [fields.number("indices", parse_count, one, 0, count - 1) for one in value]


def _refuse_ended(job: JobView) -> None:
    if job.status is not None and job.status.ended:
        raise Conflict(f"job {job.spec.id} has ended: {job.status.state}", hint="submit it again")
    if job.intent is not None and job.intent.cancel:
        raise Conflict(f"job {job.spec.id} is being canceled", hint="submit it again")
    if job.spec.run is RunMode.AT_MOST_ONCE:
        raise Conflict(f"job {job.spec.id} runs at_most_once", hint="cancel it, and submit it again")


def _live_attempts(job: JobView) -> dict[int, int]:
    """Index -> the number of the attempt that is under way."""
    found: dict[int, int] = {}
    for block, phases in job.phases.items():
        if block in job.attempts:
            numbers = ints(job.attempts[block], "number")
            for position, phase in enumerate(phases):
                if Phase.PENDING < phase < FIRST_END and phase != Phase.UNRESOLVED:
                    found[block * BLOCK_TASKS + position] = int(numbers[position])
    return found
