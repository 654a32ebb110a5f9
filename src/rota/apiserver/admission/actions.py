"""What users wish of a job that has not ended: that tasks of it end, get a signal, pause or go on."""

from collections.abc import Callable

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.restart import kill_and_restart_tasks
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.apiserver.spec.signals import SIGKILL, SIGNAL_NAMES, parse_signal
from rota.model.amounts import parse_count
from rota.model.columns import Ranges, ints
from rota.model.errors import BadField, Conflict
from rota.model.ids import JobId
from rota.model.job import JobIntent, JobKind, SentSignal
from rota.model.limits import BLOCK_TASKS, RESTARTS_MAX, SIGNALS_KEPT
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.shape import RunMode
from rota.model.view import JobView, View
from rota.rules.phases import FIRST_END, Phase

# An action on a job: the view, the job's id or name, the request body, the caller and the time -> a plan.
AdmitAction = Callable[[View, str, object, Caller, Instant], Plan[JobId]]


def cancel(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """The job, or some of its tasks. The controllers see the wish, and say so in an event."""
    said = fields.known_fields(body, ("reason", "indices"))
    job = _find_job(view, ref, caller)
    return _request_end(
        job,
        parse_indices(said.get("indices"), job),
        _parse_reason(said.get("reason"), caller),
        now,
        kill=False,
    )


def kill(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Cancel without grace; any other signal is delivered to what runs, and nothing else is wished.

    One task of what is kept running is no longer there only if it is canceled: killed, it is started again.
    """
    said = fields.known_fields(body, ("reason", "indices", "signal", "key"))
    job = _find_job(view, ref, caller)
    number = SIGKILL if said.get("signal") is None else parse_signal("signal", said["signal"])
    chosen = parse_indices(said.get("indices"), job)
    if number == SIGKILL and chosen is not None and job.spec.kind is not JobKind.BATCH:
        _refuse_ended(job, "to kill")
        return kill_and_restart_tasks(job, chosen, caller, now)
    if number == SIGKILL:
        return _request_end(job, chosen, _parse_reason(said.get("reason"), caller, "killed"), now, kill=True)
    key = "" if said.get("key") is None else fields.text("key", said["key"], 64)
    return _send_signal(job, chosen, number, key, caller)


def pause(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Nothing new of it starts; with `stop` what runs is stopped, too, to be tried again."""
    said = fields.known_fields(body, ("stop",))
    stop = fields.flag("stop", said.get("stop", False))
    job = _find_job(view, ref, caller)
    _refuse_ended(job, "to pause")
    if stop and job.spec.run is RunMode.AT_MOST_ONCE:
        raise Conflict(f"job {job.spec.id} runs at_most_once", hint="leave out --stop: what runs goes on")
    before = job.intent or JobIntent(job.spec.id)
    wish = msgspec.structs.replace(before, paused=True, halted=before.halted or stop, at_ms=now.ms)
    return _write_intent(job, before, wish, f"{caller.name} pauses job {job.spec.id}")


def resume(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    fields.known_fields(body, ())
    job = _find_job(view, ref, caller)
    _refuse_ended(job, "to go on with")
    before = job.intent or JobIntent(job.spec.id)
    wish = msgspec.structs.replace(before, paused=False, halted=False, at_ms=now.ms)
    return _write_intent(job, before, wish, f"{caller.name} lets job {job.spec.id} go on")


def parse_indices(value: object, job: JobView) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise BadField("indices", "is not a list of numbers", "write [0, 3], or leave it out for all")
    if len(value) > RESTARTS_MAX:
        raise BadField(
            "indices", f"names {len(value)} tasks", f"name at most {RESTARTS_MAX}, or leave it out"
        )
    return [fields.number("indices", parse_count, one, 0, job.spec.count - 1) for one in value]


def _find_job(view: View, ref: str, caller: Caller) -> JobView:
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    return job


def _request_end(
    job: JobView, chosen: list[int] | None, reason: str, now: Instant, *, kill: bool
) -> Plan[JobId]:
    """Asked again it changes nothing, or is in more of a hurry."""
    _refuse_ended(job, "to cancel")
    before = job.intent or JobIntent(job.spec.id)
    verb = "to be killed" if kill else "to be canceled"
    if chosen is None:
        told = before.reason if before.cancel else reason
        wish = msgspec.structs.replace(
            before, cancel=True, kill=before.kill or kill, reason=told, at_ms=now.ms
        )
        return _write_intent(job, before, wish, f"{reason}: job {job.spec.id} is {verb}")
    open_ = [index for index in chosen if _task_phase(job, index) < FIRST_END]
    if not open_:
        raise Conflict(f"these tasks of job {job.spec.id} have ended", hint=f"see rota show {job.spec.id}")
    if len(before.cancel_tasks) + len(open_) > RESTARTS_MAX:
        raise Conflict(
            f"{RESTARTS_MAX} tasks of job {job.spec.id} were canceled one by one", hint="cancel it"
        )
    named = {index: kill or before.cancel_tasks.get(index, False) for index in open_}
    wish = msgspec.structs.replace(
        before, cancel_tasks={**before.cancel_tasks, **named}, reason=before.reason or reason, at_ms=now.ms
    )
    return _write_intent(
        job, before, wish, f"{reason}: tasks {Ranges(open_)} of job {job.spec.id} are {verb}"
    )


def _send_signal(
    job: JobView, chosen: list[int] | None, number: int, key: str, caller: Caller
) -> Plan[JobId]:
    """To attempts by their number, so that one that starts later does not get it."""
    _refuse_ended(job, "to signal")
    before = job.intent or JobIntent(job.spec.id)
    if key and any(one.key == key for one in before.sent):
        return Plan(answer=job.spec.id)
    running = _running_attempts(job)
    attempts = running if chosen is None else {index: running[index] for index in chosen if index in running}
    if not attempts:
        raise Conflict(f"none of these tasks of job {job.spec.id} runs", hint=f"see rota show {job.spec.id}")
    if len(attempts) > RESTARTS_MAX:
        raise Conflict(f"{len(attempts)} tasks run", hint=f"name at most {RESTARTS_MAX} of them")
    n = before.sent[-1].n + 1 if before.sent else 1
    sent = (*before.sent, SentSignal(n, number, attempts, key))[-SIGNALS_KEPT:]
    ranges = Ranges(list(attempts))
    why = f"{caller.name} sends SIG{SIGNAL_NAMES[number]} to task{'s' if len(attempts) > 1 else ''} {ranges}"
    event = EventRecord(
        "task.signal", f"{why} of job {job.spec.id}", job=job.spec.id, indices=tuple(ranges.pairs)
    )
    return Plan(
        (msgspec.structs.replace(before, sent=sent),), events=(event,), why=event.why, answer=job.spec.id
    )


def _write_intent(job: JobView, before: JobIntent, wish: JobIntent, why: str) -> Plan[JobId]:
    if msgspec.structs.replace(wish, at_ms=before.at_ms) == before:
        return Plan(answer=job.spec.id, fenced=True)
    return Plan((wish,), why=why, answer=job.spec.id)


def _parse_reason(value: object, caller: Caller, verb: str = "canceled") -> str:
    return f"{verb} by {caller.name}" if value is None else fields.text("reason", value)


def _refuse_ended(job: JobView, what: str) -> None:
    if job.status is not None and job.status.ended:
        raise Conflict(f"job {job.spec.id} has ended: {job.status.state}", hint=f"there is nothing {what}")
    if job.intent is not None and job.intent.cancel and what != "to cancel":
        raise Conflict(f"job {job.spec.id} is being canceled", hint=f"there is nothing {what}")


def _task_phase(job: JobView, index: int) -> int:
    block, position = divmod(index, BLOCK_TASKS)
    return job.phases[block][position] if block in job.phases else int(Phase.PENDING)


def _running_attempts(job: JobView) -> dict[int, int]:
    """Index -> the number of the attempt that runs."""
    found: dict[int, int] = {}
    for block, phases in job.phases.items():
        if block in job.attempts:
            numbers = ints(job.attempts[block], "number")
            for position, phase in enumerate(phases):
                if phase in (Phase.RUNNING, Phase.STOPPING):
                    found[block * BLOCK_TASKS + position] = int(numbers[position])
    return found
