"""Some fields of a spec, given anew + the job as it is -> the spec's next version, or Rejected."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from rota.apiserver import access, fields, show_service
from rota.apiserver.access import Action, Caller
from rota.apiserver.contradictions import refuse_circle
from rota.apiserver.finding import find_job
from rota.apiserver.services import refuse_unlike_a_service
from rota.apiserver.spec import BUILT_IN, KNOWN, check, parse_fields
from rota.model.errors import BadField, Conflict
from rota.model.job import JobSpec, JobWish, Kind, resized
from rota.model.needs import assess, noted
from rota.model.origin import Origin
from rota.model.pins import begun
from rota.model.plan import Event, Instant, Plan, Record
from rota.model.rollout import JobFormer, former_of
from rota.model.shape import RunMode
from rota.model.view import JobView, View

FIXED = ("name", "namespace", "kind", "after", "cluster")
TABLES = (
    "env",
    "labels",
    "limits",
    "resources",
    "files",
)  # of which entries are given one by one
NEEDS = (*BUILT_IN, "resources")
ATTRIBUTES = {  # where the spec has another name for it
    "timeout": "timeout_seconds",
    "grace": "grace_seconds",
    "expect": "expect_seconds",
    "keep": "keep_seconds",
    "deadline": "deadline_at_ms",
    "image": "container",
    "count": "size",
    **dict.fromkeys(("region", "on", "gpu_model"), "where"),
    **dict.fromkeys(NEEDS, "needs"),
}
AT_ONCE = frozenset(
    {"limits", "timeout", "grace", "priority", "retries", "labels", "parallel", "count", "preemptible"}
    | {"evict_at_most", "expect", "deadline", "when_unschedulable", "recovery", "keep", "rollout"}
    | {"move_pending"}
)


class Update(NamedTuple):
    """An update: which fields, and how it is to be made."""

    fields: object
    if_version: int | None = None  # only on top of this version
    replace: bool = False  # what runs an older version makes way
    max_parallel: int | None = None  # so many at one time; None: as the job says


class Updated(NamedTuple):
    job: JobSpec
    at_once: tuple[str, ...]  # fields that changed and hold for what runs
    later: tuple[str, ...]  # and those that hold from a task's next attempt on


def update(view: View, ref: str, wanted: Update, caller: Caller, now: Instant) -> Plan:
    """What is so already needs no precondition: an update whose answer was lost may be repeated."""
    job = find_job(view, ref, caller)
    access.require(caller, Action.SUBMIT, job.spec.namespace)
    _refuse_ended(job)
    patch = fields.known_fields(wanted.fields, KNOWN)
    spec = _assessed(view, job.spec, patched(job.spec, patch, now.wall_ms), patch)
    changed = [field for field in patch if _value(spec, field) != _value(job.spec, field)]
    if changed:
        _refuse(job, spec, wanted, changed)
        spec = begun(msgspec.structs.replace(spec, version=job.spec.version + 1))
        check(spec, now.wall_ms)
        refuse_unlike_a_service(patch, spec)
        refuse_circle(view, spec)
    puts: list[Record] = [spec, *_former(job, spec)] if changed else []
    wish = _replacement(job, spec, wanted)
    puts += [] if wish is None else [wish]
    at_once = tuple(field for field in changed if field in AT_ONCE)
    later = tuple(field for field in changed if field not in AT_ONCE)
    why = f"{caller.name} updates job {spec.id} to version {spec.version}: {', '.join(changed) or 'replace'}"
    events = (Event("job.updated", why, job=spec.id),) if puts else ()
    return Plan(
        tuple(puts), events=events, why=why if puts else "", answer=Updated(spec, at_once, later), fenced=True
    )


def patched(old: JobSpec, patch: Mapping[str, Any], wall_ms: int) -> JobSpec:
    """Fields that are given replace the old ones, null is the default; of tables only the entries given."""
    for field in FIXED:
        if field in patch:
            raise BadField(field, "cannot be changed", "submit another job")
    given = {field: value for field, value in patch.items() if value is not None}
    given |= {field: _entries(patch[field]) for field in TABLES if patch.get(field) is not None}
    if isinstance(given.get("rollout"), dict):
        given["rollout"] = show_service.rollout(old.rollout) | _entries(given["rollout"])  # type: ignore[operator]
    program = {} if "command" in given or "steps" in given else {"command": ["-"]}
    image = {"image": old.container.image} if "container" in given and old.container is not None else {}
    new = parse_fields({**program, **image, **given}, wall_ms)
    changes = {_attribute(field): getattr(new, _attribute(field)) for field in patch}
    for field in (one for one in ("env", "labels", "limits", "files") if one in patch):
        changes[field] = _merged(getattr(old, field), getattr(new, field), patch[field])
    if "container" in changes and "container" not in patch and old.container and new.container:
        changes["container"] = msgspec.structs.replace(old.container, image=new.container.image)
    if "needs" in changes:
        changes["needs"] = _needs(old.needs, new.needs, patch)
    if "command" in patch or "steps" in patch:
        changes |= {"command": new.command, "steps": new.steps}
    tasks = changes.pop("size", old.size)
    return resized(msgspec.structs.replace(old, **changes), tasks)


def _assessed(view: View, old: JobSpec, new: JobSpec, patch: Mapping[str, Any]) -> JobSpec:
    """What is given is its own word from now on; what is null, as if nothing had ever been said of it."""
    resources = patch.get("resources", {})
    if resources is None:
        resources = dict.fromkeys(name for name in old.needs if name not in BUILT_IN)
    said = {**resources, **{name: patch[name] for name in BUILT_IN if name in patch}}
    if not said:
        return new
    unsaid = [name for name, amount in said.items() if amount is None]
    fresh = assess(view, noted(new, [name for name in old.origins.keys() | new.needs if name not in unsaid]))
    origins = {**old.origins, **dict.fromkeys(said, Origin.EXPLICIT)}
    origins |= {name: fresh.origins[name] for name in unsaid if name in fresh.origins}
    observed = {name: amount for name, amount in old.observed.items() if name not in said} | fresh.observed
    return msgspec.structs.replace(new, needs=fresh.needs, origins=origins, observed=observed)


def _attribute(field: str) -> str:
    return ATTRIBUTES.get(field, field)


def _value(spec: JobSpec, field: str) -> object:
    return spec.needs.get(field, 0) if field in BUILT_IN else getattr(spec, _attribute(field))


def _entries(value: object) -> object:
    """Without those to be taken away; what is no table is refused by whoever reads it."""
    if not isinstance(value, dict):
        return value
    return {name: entry for name, entry in value.items() if entry is not None}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any], said: Mapping[str, Any] | None) -> dict[str, Any]:
    if said is None:
        return dict(new)
    kept = {name: entry for name, entry in old.items() if name not in said}
    return dict(sorted({**kept, **new}.items()))


def _needs(old: Mapping[str, int], new: Mapping[str, int], patch: Mapping[str, Any]) -> dict[str, int]:
    """Each amount by itself."""
    needs = dict(old)
    for resource in BUILT_IN:
        if resource in patch:
            needs[resource] = new.get(resource, 0)
    if "resources" in patch:
        said = patch["resources"]
        named = [name for name in old if name not in BUILT_IN] if said is None else list(said)
        needs |= {name: new.get(name, 0) for name in named}
    return {resource: amount for resource, amount in needs.items() if amount}


def _refuse(job: JobView, spec: JobSpec, wanted: Update, changed: list[str]) -> None:
    old = job.spec
    if wanted.if_version not in (None, old.version):
        hint = f"look at it again: rota show {old.id}"
        raise Conflict(f"job {old.id} is at version {old.version}, not {wanted.if_version}", hint=hint)
    if "count" in changed and spec.kind is Kind.SYSTEM:
        raise BadField("count", "a system job has a task on every node", "leave it out")
    if "count" in changed and spec.gang:
        raise BadField("count", "a gang starts together", "submit another job")
    if spec.line != old.line and job.tally.live:
        which = next((one for one in changed if one not in AT_ONCE), "where")
        hint = f"stop them first: rota pause {old.id} --stop, and after this rota resume {old.id}"
        raise Conflict(
            f"{which} says where tasks may run, and {job.tally.live} of job {old.id} are on their nodes",
            field=which,
            hint=hint,
        )


def _former(job: JobView, spec: JobSpec) -> tuple[JobFormer, ...]:
    """What this version may go back to. What may run elsewhere was changed while nothing ran: no way back."""
    if not spec.stays:
        return ()
    if spec.line != job.spec.line:
        return () if job.former is None else (JobFormer(spec.id),)
    return (former_of(job.spec, job.wish, job.former, job.rollout),)


def _replacement(job: JobView, spec: JobSpec, wanted: Update) -> JobWish | None:
    """None: as before."""
    if not wanted.replace:
        return None
    if spec.run is RunMode.AT_MOST_ONCE:
        raise Conflict(f"job {spec.id} runs at_most_once", hint="leave out --replace: what runs goes on")
    before = job.wish or JobWish(spec.id)
    most = wanted.max_parallel or spec.rollout.max_parallel
    wish = msgspec.structs.replace(before, max_parallel=most)
    if before.replace != spec.version:
        wish = msgspec.structs.replace(wish, replace=spec.version, spare=(), back_from=0, back_why=None)
    return None if wish == before else wish


def _refuse_ended(job: JobView) -> None:
    if job.status is not None and job.status.ended:
        raise Conflict(f"job {job.spec.id} has ended: {job.status.state}", hint="submit it again")
    if job.wish is not None and job.wish.cancel:
        raise Conflict(f"job {job.spec.id} is being canceled", hint="submit it again")
