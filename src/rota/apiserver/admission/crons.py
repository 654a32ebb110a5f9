"""Create, change, pause, run and delete crons: a request + the view -> a Plan, or a refusal."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller, can_see
from rota.apiserver.admission.idempotency import find_earlier_submit, spec_digest
from rota.apiserver.admission.submission import SubmitResult, require_capacity
from rota.apiserver.spec import fields
from rota.apiserver.spec.job import named_resources, parse_spec
from rota.model.amounts import parse_count
from rota.model.cron import CronRecord, MissedRuns, Overlap
from rota.model.errors import BadField, Conflict, NotFound, QueueFull
from rota.model.job import JobKind, SubmitKey
from rota.model.limits import CRON_HISTORY_MAX, CRONS_MAX, JOBS_WAITING_MAX, NAME_LENGTH_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View
from rota.rules.cron_runs import CronRunBatch
from rota.rules.cron_schedule import Zones, parse
from rota.rules.namespace_bounds import within_static_bounds
from rota.rules.needs import with_origins

CRON_BODY_FIELDS = ("name", "namespace", "schedule", "zone", "overlap", "missed", "history", "job")
_TIMESTAMP_LENGTH = len("@20261116T020000Z")
_REFUSED_IN_TEMPLATE = {
    "name": "its jobs are named after the cron and the time of the run",
    "namespace": "write it beside the schedule",
    "after": "every run would wait for the same job",
    "deadline": "it would be the same time for every run; limit a run with timeout",
}


def create(view: View, body: object, caller: Caller, zones: Zones, now: Instant) -> Plan[str]:
    """Create a cron. If the same one exists, the request is taken for a repeat whose answer was lost."""
    cron = _with_namespace_bounds(view, _parse_cron(body, caller, zones, now), body)
    before = view.crons.get(cron.ref)
    # Compared without the time of creation, which differs in every request.
    if before is not None and before == _with_creation_of(before, cron):
        return Plan(answer=cron.ref, fenced=True)
    if before is not None:
        hint = f"delete it first, or change it: rota cron create --replace --name {cron.name}"
        raise Conflict(f"cron {cron.name} exists already", field="name", hint=hint)
    if len(view.crons) >= CRONS_MAX:
        raise QueueFull(f"there are {len(view.crons)} crons already", hint="delete some")
    return _write_cron(cron, f"{caller.name} creates cron {cron.name}: {cron.schedule} in {cron.zone}")


def _with_creation_of(before: CronRecord, cron: CronRecord) -> CronRecord:
    """The cron with the time of an earlier creation, for comparison."""
    return msgspec.structs.replace(cron, created_at_ms=before.created_at_ms)


def change(
    view: View, ref: tuple[str, str], body: object, caller: Caller, *, zones: Zones, now: Instant
) -> Plan[str]:
    """Replace a cron as a whole. Runs that the new schedule would have had before now are not made up for."""
    given_fields = fields.known_fields(body, CRON_BODY_FIELDS)
    before = find_cron(view, *ref, caller)
    cron = _parse_cron(
        {**given_fields, "namespace": before.namespace, "name": before.name}, caller, zones, now
    )
    cron = _with_namespace_bounds(view, cron, given_fields)
    runs = CronRunBatch(view, before, now)
    # `max`: the wall clock may have been set back since the last run, and no instant is handled twice.
    runs.advance_to(max(runs.status.last_ms, now.wall_ms))
    cron = msgspec.structs.replace(cron, paused=before.paused, created_at_ms=before.created_at_ms)
    why = f"{caller.name} changes cron {cron.name}: {cron.schedule} in {cron.zone}"
    written = _write_cron(cron, why)
    return written.but(puts=(runs.status, *written.puts))


def pause(view: View, ref: tuple[str, str], caller: Caller) -> Plan[str]:
    cron = _find_changeable(view, ref, caller)
    if cron.paused:
        return Plan(answer=cron.ref, fenced=True)
    return _write_cron(msgspec.structs.replace(cron, paused=True), f"{caller.name} pauses cron {cron.name}")


def resume(view: View, ref: tuple[str, str], caller: Caller, now: Instant) -> Plan[str]:
    """Resume a cron. Runs that were due during the pause are not made up for."""
    cron = _find_changeable(view, ref, caller)
    if not cron.paused:
        return Plan(answer=cron.ref, fenced=True)
    runs = CronRunBatch(view, cron, now)
    runs.advance_to(max(runs.status.last_ms, now.wall_ms))
    written = _write_cron(
        msgspec.structs.replace(cron, paused=False), f"{caller.name} resumes cron {cron.name}"
    )
    return written.but(puts=(runs.status, *written.puts))


def run(
    view: View, ref: tuple[str, str], caller: Caller, now: Instant, key: str | None = None
) -> Plan[SubmitResult]:
    """Run a cron now, beside its schedule, paused or not. Requests with the same key create one job."""
    cron = _find_changeable(view, ref, caller)
    requested = msgspec.structs.replace(cron.template, name=f"cron {cron.name}", namespace=cron.namespace)
    before = find_earlier_submit(view, requested, key)
    if before is not None:
        return Plan(answer=SubmitResult(before, new=False), fenced=True)
    require_capacity(view)
    if view.unfinished >= JOBS_WAITING_MAX:
        raise QueueFull(f"{view.unfinished} jobs have not ended yet", hint="wait until some have ended")
    runs = CronRunBatch(view, cron, now)
    skipped = runs.start(now.wall_ms // 1000 * 1000)
    if skipped is not None:
        hint = skipped.hint or "wait for it, cancel it, or create the cron with overlap = allow"
        raise Conflict(skipped.reason, hint=hint)
    plan, job = runs.plan(), runs.status.runs[-1].job
    keys = () if key is None else (SubmitKey(cron.namespace, key, job, spec_digest(requested)),)
    return plan.but(puts=(*plan.puts, *keys)).answering(SubmitResult(job, new=True))


def delete(view: View, ref: tuple[str, str], caller: Caller) -> Plan[str]:
    """Delete a cron. Its jobs stay, and continue to run."""
    cron = _find_changeable(view, ref, caller)
    why = f"{caller.name} deletes cron {cron.name}"
    keys = (cron.key, CronRunBatch(view, cron, Instant(0, 0)).status.key)
    return Plan(deletes=keys, events=(_changed_event(cron, why),), why=why, answer=cron.ref)


def find_cron(view: View, namespace: str, name: str, caller: Caller) -> CronRecord:
    access.require_role(caller, Action.READ)
    cron = view.crons.get(f"{namespace}/{name}")
    if cron is not None and can_see(caller, namespace):
        return cron
    names = [
        other.name
        for other in view.crons.values()
        if other.namespace == namespace and can_see(caller, namespace)
    ]
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else "see what there is: rota cron ls"
    raise NotFound(f"no cron in namespace {fields.printable(namespace)} is called '{name[:60]}'", hint=hint)


def _find_changeable(view: View, ref: tuple[str, str], caller: Caller) -> CronRecord:
    cron = find_cron(view, *ref, caller)
    access.require_in_namespace(caller, Action.SUBMIT, cron.namespace)
    return cron


def _with_namespace_bounds(view: View, cron: CronRecord, body: object) -> CronRecord:
    """The cron with its template adapted to the bounds of the namespace."""
    given_fields = body.get("job") if isinstance(body, dict) else None
    requested = msgspec.structs.replace(cron.template, namespace=cron.namespace)
    fitting = within_static_bounds(view, requested, given_fields if isinstance(given_fields, dict) else ())
    template = msgspec.structs.replace(cron.template, priority=fitting.priority, cluster=fitting.cluster)
    return msgspec.structs.replace(cron, template=template)


def _write_cron(cron: CronRecord, why: str) -> Plan[str]:
    return Plan((cron,), events=(_changed_event(cron, why),), why=why, answer=cron.ref)


def _changed_event(cron: CronRecord, why: str) -> EventRecord:
    return EventRecord("cron.changed", why, namespace=cron.namespace)


def _parse_cron(body: object, caller: Caller, zones: Zones, now: Instant) -> CronRecord:
    given_fields = fields.known_fields(body, CRON_BODY_FIELDS)
    namespace = fields.name("namespace", given_fields.get("namespace", "default"))
    access.require_in_namespace(caller, Action.SUBMIT, namespace)
    schedule = fields.text("schedule", given_fields.get("schedule"), 256)
    parse(schedule)
    zone = fields.text("zone", given_fields.get("zone", "UTC"), 64)
    # Raises for an unknown zone, so that the user learns it now and not at the first run.
    zones(zone)
    template = _parse_template(given_fields.get("job"), _parse_name(given_fields.get("name")))
    cron = CronRecord(
        namespace=namespace,
        name=_parse_name(given_fields.get("name")),
        schedule=schedule,
        template=with_origins(parse_spec(template), named_resources(template)),
        zone=zone,
        overlap=fields.one_of("overlap", given_fields.get("overlap", Overlap.SKIP), Overlap),
        missed=fields.one_of("missed", given_fields.get("missed", MissedRuns.ONCE), MissedRuns),
        history=fields.number("history", parse_count, given_fields.get("history", 10), 0, CRON_HISTORY_MAX),
        user=caller.name,
        created_at_ms=now.wall_ms,
    )
    _check_consistency(cron)
    return cron


def _parse_name(value: object) -> str:
    given = fields.name("name", value)
    if len(given) > NAME_LENGTH_MAX - _TIMESTAMP_LENGTH:
        problem = f"is {len(given)} characters long"
        raise BadField(
            "name",
            problem,
            f"write at most {NAME_LENGTH_MAX - _TIMESTAMP_LENGTH}: the time of a run is added to it",
        )
    return given


def _parse_template(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadField("job", "is not a job", 'write {"command": ["echo", "hello"]}')
    for field, why in _REFUSED_IN_TEMPLATE.items():
        if value.get(field) not in (None, []):
            raise BadField(f"job.{field}", "is not allowed in the job of a cron", f"leave it out: {why}")
    return {
        **{field: given for field, given in value.items() if field not in _REFUSED_IN_TEMPLATE},
        "name": name,
    }


def _check_consistency(cron: CronRecord) -> None:
    if cron.missed is MissedRuns.ALL and cron.overlap is not Overlap.ALLOW:
        problem = f"all missed runs start together, and overlap = {cron.overlap} allows one at a time"
        raise BadField("missed", problem, "write once, or overlap = allow")
    if cron.template.kind is not JobKind.BATCH:
        raise BadField("job", f"a {cron.template.kind} job never ends", "write batch, or leave it out")
