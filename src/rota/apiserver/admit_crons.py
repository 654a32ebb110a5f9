"""A user's wish for a cron + the view -> a Plan, or Rejected."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from rota.apiserver import access, fields
from rota.apiserver.access import Action, Caller, sees
from rota.apiserver.admission import Submitted, digest, require_room, submitted_before
from rota.apiserver.spec import parse_spec, said_needs
from rota.model.amounts import parse_count
from rota.model.bounds import allowed
from rota.model.cron import Cron, Missed, Overlap
from rota.model.cron_run import Runs
from rota.model.errors import BadField, Conflict, NotFound, QueueFull
from rota.model.job import Kind, SubmitKey
from rota.model.limits import CRON_HISTORY_MAX, CRONS_MAX, JOBS_WAITING_MAX, NAME_LENGTH_MAX
from rota.model.needs import noted
from rota.model.plan import Event, Instant, Plan
from rota.model.schedule import Zones, parse
from rota.model.view import View

KNOWN = ("name", "namespace", "schedule", "zone", "overlap", "missed", "history", "job")
_STAMP = len("@20261116T020000Z")
_NOT_IN_A_TEMPLATE = {
    "name": "its jobs are named after the cron and the instant",
    "namespace": "write it beside the schedule",
    "after": "what a run has to wait for would be the same job every time",
    "deadline": "it would be the same moment every time; limit a run with timeout",
}


def create(view: View, body: object, caller: Caller, zones: Zones, now: Instant) -> Plan:
    """What is there as it is wished was created by a request whose answer was lost."""
    cron = _within(view, _parsed(body, caller, zones, now), body)
    before = view.crons.get(cron.ref)
    if before is not None and before == _as_of(before, cron):
        return Plan(answer=cron.ref, fenced=True)
    if before is not None:
        hint = f"delete it first, or change it: rota cron create --replace --name {cron.name}"
        raise Conflict(f"there is a cron {cron.name} already", field="name", hint=hint)
    if len(view.crons) >= CRONS_MAX:
        raise QueueFull(f"there are {len(view.crons)} crons already", hint="delete some")
    return _written(cron, f"{caller.name} creates cron {cron.name}: {cron.schedule} in {cron.zone}")


def _as_of(before: Cron, cron: Cron) -> Cron:
    """As it would have been created then: earlier nobody noted which needs were spoken of."""
    template = cron.template
    if not before.template.origins:
        template = msgspec.structs.replace(template, origins={})
    return msgspec.structs.replace(cron, created_at_ms=before.created_at_ms, template=template)


def change(
    view: View, ref: tuple[str, str], body: object, caller: Caller, *, zones: Zones, now: Instant
) -> Plan:
    """As a whole. What the new schedule would have planned before now does not count."""
    said = fields.known_fields(body, KNOWN)
    before = find(view, *ref, caller)
    cron = _parsed({**said, "namespace": before.namespace, "name": before.name}, caller, zones, now)
    cron = _within(view, cron, said)
    runs = Runs(view, before, now)
    runs.reach(max(runs.status.last_ms, now.wall_ms))
    cron = msgspec.structs.replace(cron, paused=before.paused, created_at_ms=before.created_at_ms)
    why = f"{caller.name} changes cron {cron.name}: {cron.schedule} in {cron.zone}"
    written = _written(cron, why)
    return written.but(puts=(runs.status, *written.puts))


def pause(view: View, ref: tuple[str, str], caller: Caller) -> Plan:
    cron = _changeable(view, ref, caller)
    if cron.paused:
        return Plan(answer=cron.ref, fenced=True)
    return _written(msgspec.structs.replace(cron, paused=True), f"{caller.name} pauses cron {cron.name}")


def resume(view: View, ref: tuple[str, str], caller: Caller, now: Instant) -> Plan:
    """The instants of the pause are nobody's."""
    cron = _changeable(view, ref, caller)
    if not cron.paused:
        return Plan(answer=cron.ref, fenced=True)
    runs = Runs(view, cron, now)
    runs.reach(max(runs.status.last_ms, now.wall_ms))
    written = _written(msgspec.structs.replace(cron, paused=False), f"{caller.name} resumes cron {cron.name}")
    return written.but(puts=(runs.status, *written.puts))


def run(view: View, ref: tuple[str, str], caller: Caller, now: Instant, key: str | None = None) -> Plan:
    """At once, besides its schedule; paused or not. For a key there is one job only."""
    cron = _changeable(view, ref, caller)
    wish = msgspec.structs.replace(cron.template, name=f"cron {cron.name}", namespace=cron.namespace)
    before = submitted_before(view, wish, key)
    if before is not None:
        return Plan(answer=Submitted(before, new=False), fenced=True)
    require_room(view)
    if view.unfinished >= JOBS_WAITING_MAX:
        raise QueueFull(f"{view.unfinished} jobs have not ended yet", hint="wait until some have ended")
    runs = Runs(view, cron, now)
    skipped = runs.begin(now.wall_ms // 1000 * 1000)
    if skipped is not None:
        hint = skipped.hint or "wait for it, cancel it, or create the cron with overlap = allow"
        raise Conflict(skipped.reason, hint=hint)
    plan, job = runs.plan(), runs.status.runs[-1].job
    keys = () if key is None else (SubmitKey(cron.namespace, key, job, digest(wish)),)
    return plan.but(puts=(*plan.puts, *keys), answer=Submitted(job, new=True))


def delete(view: View, ref: tuple[str, str], caller: Caller) -> Plan:
    """Its jobs stay, and go on."""
    cron = _changeable(view, ref, caller)
    why = f"{caller.name} deletes cron {cron.name}"
    keys = (cron.key, Runs(view, cron, Instant(0, 0)).status.key)
    return Plan(deletes=keys, events=(_changed(cron, why),), why=why, answer=cron.ref)


def find(view: View, namespace: str, name: str, caller: Caller) -> Cron:
    access.require_role(caller, Action.LOOK)
    cron = view.crons.get(f"{namespace}/{name}")
    if cron is not None and sees(caller, namespace):
        return cron
    names = [
        one.name for one in view.crons.values() if one.namespace == namespace and sees(caller, namespace)
    ]
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else "see what there is: rota cron ls"
    raise NotFound(f"no cron in namespace {fields.printable(namespace)} is called '{name[:60]}'", hint=hint)


def _changeable(view: View, ref: tuple[str, str], caller: Caller) -> Cron:
    cron = find(view, *ref, caller)
    access.require(caller, Action.SUBMIT, cron.namespace)
    return cron


def _within(view: View, cron: Cron, body: object) -> Cron:
    """The cron with what its template may ask for in its namespace."""
    said = body.get("job") if isinstance(body, dict) else None
    wish = msgspec.structs.replace(cron.template, namespace=cron.namespace)
    fitting = allowed(view, wish, said if isinstance(said, dict) else ())
    template = msgspec.structs.replace(cron.template, priority=fitting.priority, cluster=fitting.cluster)
    return msgspec.structs.replace(cron, template=template)


def _written(cron: Cron, why: str) -> Plan:
    return Plan((cron,), events=(_changed(cron, why),), why=why, answer=cron.ref)


def _changed(cron: Cron, why: str) -> Event:
    return Event("cron.changed", why, namespace=cron.namespace)


def _parsed(body: object, caller: Caller, zones: Zones, now: Instant) -> Cron:
    said = fields.known_fields(body, KNOWN)
    namespace = fields.name("namespace", said.get("namespace", "default"))
    access.require(caller, Action.SUBMIT, namespace)
    schedule = fields.text("schedule", said.get("schedule"), 256)
    parse(schedule)
    zone = fields.text("zone", said.get("zone", "UTC"), 64)
    zones(zone)
    template = _template(said.get("job"), _name(said.get("name")))
    cron = Cron(
        namespace=namespace,
        name=_name(said.get("name")),
        schedule=schedule,
        template=noted(parse_spec(template), said_needs(template)),
        zone=zone,
        overlap=fields.one_of("overlap", said.get("overlap", Overlap.SKIP), Overlap),
        missed=fields.one_of("missed", said.get("missed", Missed.ONCE), Missed),
        history=fields.number("history", parse_count, said.get("history", 10), 0, CRON_HISTORY_MAX),
        user=caller.name,
        created_at_ms=now.wall_ms,
    )
    _refuse_contradictions(cron)
    return cron


def _name(value: object) -> str:
    given = fields.name("name", value)
    if len(given) > NAME_LENGTH_MAX - _STAMP:
        problem = f"is {len(given)} characters long"
        raise BadField("name", problem, f"write at most {NAME_LENGTH_MAX - _STAMP}: instants are added to it")
    return given


def _template(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadField("job", "is not the table of a job", 'write {"command": ["echo", "hello"]}')
    for field, why in _NOT_IN_A_TEMPLATE.items():
        if value.get(field) not in (None, []):
            raise BadField(f"job.{field}", "does not belong into a cron's job", f"leave it out: {why}")
    return {
        **{field: given for field, given in value.items() if field not in _NOT_IN_A_TEMPLATE},
        "name": name,
    }


def _refuse_contradictions(cron: Cron) -> None:
    if cron.missed is Missed.ALL and cron.overlap is not Overlap.ALLOW:
        problem = f"all of them begin at once, and overlap = {cron.overlap} lets one run at a time"
        raise BadField("missed", problem, "write once, or overlap = allow")
    if cron.template.kind is not Kind.BATCH:
        raise BadField("job", f"a {cron.template.kind} job never ends", "write batch, or leave it out")
