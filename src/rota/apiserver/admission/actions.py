"""User actions on a job that has not ended: cancel, kill, signal, pause and resume.

Each is stored as part of the job's intent. Controllers carry it out and emit the events.
"""

from collections.abc import Callable

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.live_attempts import live_attempts, refuse_ended, require_active
from rota.apiserver.admission.restart import kill_and_restart_tasks
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.apiserver.spec.fields import SIGKILL, SIGNAL_NAMES, parse_signal
from rota.model.amounts import parse_count
from rota.model.columns import Ranges
from rota.model.errors import BadField, Conflict
from rota.model.ids import JobId
from rota.model.job import JobIntent, JobKind, SentSignal
from rota.model.limits import BLOCK_TASKS, RESTARTS_MAX, SIGNALS_KEPT
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.shape import RunMode
from rota.model.view import JobView, View
from rota.rules.phases import FIRST_END, Phase

AdmitAction = Callable[[View, str, object, Caller, Instant], Plan[JobId]]  # (view, job, body, caller, now)


def cancel(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Cancel a job, or some of its tasks. The controllers act on the intent and emit the event."""
    given = fields.known_fields(body, ("reason", "indices"))
    job = _find_job(view, ref, caller)
    return _request_end(
        job,
        parse_indices(given.get("indices"), job),
        _parse_reason(given.get("reason"), caller),
        now,
        kill=False,
    )


def kill(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Cancel without grace period; with another signal than KILL, only deliver that to running tasks.

    Single tasks of a service or a system job are restarted when they are killed; only a cancel ends them.
    """
    given = fields.known_fields(body, ("reason", "indices", "signal", "key"))
    job = _find_job(view, ref, caller)
    number = SIGKILL if given.get("signal") is None else parse_signal("signal", given["signal"])
    chosen = parse_indices(given.get("indices"), job)
    if number == SIGKILL and chosen is not None and job.spec.kind is not JobKind.BATCH:
        require_active(job, "there is nothing to kill")
        return kill_and_restart_tasks(job, chosen, caller, now)
    if number == SIGKILL:
        return _request_end(job, chosen, _parse_reason(given.get("reason"), caller, "killed"), now, kill=True)
    key = "" if given.get("key") is None else fields.text("key", given["key"], 64)
    return _send_signal(job, chosen, number, key, caller)


def pause(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Start no more tasks of the job; with `stop`, also stop running ones, which start again on resume."""
    given = fields.known_fields(body, ("stop",))
    stop = fields.flag("stop", given.get("stop", False))
    job = _find_job(view, ref, caller)
    require_active(job, "there is nothing to pause")
    if stop and job.spec.run is RunMode.AT_MOST_ONCE:
        raise Conflict(
            f"job {job.spec.id} runs at_most_once", hint="leave out --stop: running tasks continue"
        )
    before = job.intent or JobIntent(job.spec.id)
    intent = msgspec.structs.replace(before, paused=True, halted=before.halted or stop, at_ms=now.ms)
    return _write_intent(job, before, intent, f"{caller.name} pauses job {job.spec.id}")


def resume(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    fields.known_fields(body, ())
    job = _find_job(view, ref, caller)
    require_active(job, "there is nothing to resume")
    before = job.intent or JobIntent(job.spec.id)
    intent = msgspec.structs.replace(before, paused=False, halted=False, at_ms=now.ms)
    return _write_intent(job, before, intent, f"{caller.name} resumes job {job.spec.id}")


def parse_indices(value: object, job: JobView) -> list[int] | None:
    """The indices that a request names; None: all tasks of the job."""
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise BadField("indices", "is not a list of numbers", "write [0, 3], or leave it out for all")
    if len(value) > RESTARTS_MAX:
        raise BadField(
            "indices", f"names {len(value)} tasks", f"name at most {RESTARTS_MAX}, or leave it out"
        )
    return [fields.number("indices", parse_count, index, 0, job.spec.count - 1) for index in value]


def _find_job(view: View, ref: str, caller: Caller) -> JobView:
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    return job


def _request_end(
    job: JobView, chosen: list[int] | None, reason: str, now: Instant, *, kill: bool
) -> Plan[JobId]:
    """Request the end of a job or of tasks. A repeat changes nothing, or turns a cancel into a kill."""
    refuse_ended(job, "there is nothing to cancel")
    before = job.intent or JobIntent(job.spec.id)
    verb = "to be killed" if kill else "to be canceled"
    if chosen is None:
        # The first reason is kept: a repeat, or a kill that follows a cancel, is not why the job ended.
        first_reason = before.reason if before.cancel else reason
        intent = msgspec.structs.replace(
            before, cancel=True, kill=before.kill or kill, reason=first_reason, at_ms=now.ms
        )
        return _write_intent(job, before, intent, f"{reason}: job {job.spec.id} is {verb}")
    unfinished = [index for index in chosen if _task_phase(job, index) < FIRST_END]
    if not unfinished:
        raise Conflict(f"these tasks of job {job.spec.id} have ended", hint=f"see rota show {job.spec.id}")
    # Each is an entry in the intent, and the record is written at every action on the job.
    if len(before.cancel_tasks) + len(unfinished) > RESTARTS_MAX:
        raise Conflict(
            f"{RESTARTS_MAX} tasks of job {job.spec.id} were canceled one by one", hint="cancel the whole job"
        )
    named = {index: kill or before.cancel_tasks.get(index, False) for index in unfinished}
    intent = msgspec.structs.replace(
        before, cancel_tasks={**before.cancel_tasks, **named}, reason=before.reason or reason, at_ms=now.ms
    )
    return _write_intent(
        job, before, intent, f"{reason}: tasks {Ranges(unfinished)} of job {job.spec.id} are {verb}"
    )


def _send_signal(
    job: JobView, chosen: list[int] | None, number: int, key: str, caller: Caller
) -> Plan[JobId]:
    """Request a signal for running attempts.

    They are named by attempt number: an attempt that starts before the signal is delivered must not get it.
    """
    require_active(job, "there is nothing to signal")
    before = job.intent or JobIntent(job.spec.id)
    # A repeat whose answer was lost: a signal is not idempotent by itself.
    if key and any(signal.key == key for signal in before.sent):
        return Plan(answer=job.spec.id)
    running = {
        index: attempt.number
        for index, attempt in live_attempts(job).items()
        if attempt.phase in (Phase.RUNNING, Phase.STOPPING)
    }
    attempts = running if chosen is None else {index: running[index] for index in chosen if index in running}
    if not attempts:
        raise Conflict(f"none of these tasks of job {job.spec.id} runs", hint=f"see rota show {job.spec.id}")
    if len(attempts) > RESTARTS_MAX:
        raise Conflict(f"{len(attempts)} tasks run", hint=f"name at most {RESTARTS_MAX} of them")
    n = before.sent[-1].n + 1 if before.sent else 1
    # Numbered and bounded: nodes deliver each number once, and a node that was unreachable for
    # more of them gets only the last ones.
    sent = (*before.sent, SentSignal(n, number, attempts, key))[-SIGNALS_KEPT:]
    ranges = Ranges(list(attempts))
    why = f"{caller.name} sends SIG{SIGNAL_NAMES[number]} to task{'s' if len(attempts) > 1 else ''} {ranges}"
    event = EventRecord(
        "task.signal", f"{why} of job {job.spec.id}", job=job.spec.id, indices=tuple(ranges.pairs)
    )
    return Plan(
        (msgspec.structs.replace(before, sent=sent),), events=(event,), why=event.why, answer=job.spec.id
    )


def _write_intent(job: JobView, before: JobIntent, intent: JobIntent, why: str) -> Plan[JobId]:
    # The time alone is no change: a repeated request writes nothing.
    if msgspec.structs.replace(intent, at_ms=before.at_ms) == before:
        return Plan(answer=job.spec.id, fenced=True)
    return Plan((intent,), why=why, answer=job.spec.id)


def _parse_reason(value: object, caller: Caller, verb: str = "canceled") -> str:
    return f"{verb} by {caller.name}" if value is None else fields.text("reason", value)


def _task_phase(job: JobView, index: int) -> int:
    block, position = divmod(index, BLOCK_TASKS)
    return job.phases[block][position] if block in job.phases else int(Phase.PENDING)
