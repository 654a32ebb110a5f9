"""Some fields of a spec, given anew + the job as it is -> the spec's next version, or Rejected."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from rota.apiserver import access, fields, spec_body
from rota.apiserver.access import Action, Caller
from rota.apiserver.contradictions import refuse_circle
from rota.apiserver.finding import find_job
from rota.apiserver.spec import BUILT_IN, FIELDS, KNOWN, check, parse_spec
from rota.model.bounds import check_update
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
AT_ONCE = frozenset(
    {"limits", "timeout", "grace", "priority", "retries", "labels", "parallel", "count", "preemptible"}
    | {"evict_at_most", "expect", "deadline", "when_unschedulable", "recovery", "keep", "rollout"}
    | {"move_pending", "retry", "retry_on", "fail_on", "queue_timeout"}
    | {"controller", "when_no_controller", "controller_wait"}
)
OF_TIME = ("deadline", "expect", "timeout")


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
        # A deadline may be close by now: what the patch does not speak of is not refused for that.
        check(spec, now.wall_ms if any(field in patch for field in OF_TIME) else 0)
        refuse_circle(view, spec)
        check_update(view, job.spec, spec)
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
    """The spec with the fields that are given; the whole is checked as if it were submitted."""
    for field in FIXED:
        if field in patch:
            raise BadField(field, "cannot be changed", "submit another job")
    new = parse_spec(spec_body.patched(old, patch), wall_ms)
    names = {name: None for field in patch for name in FIELDS[field] if name != "size"}
    changed = msgspec.structs.replace(old, **{name: getattr(new, name) for name in names})
    return resized(changed, new.size) if "count" in patch else changed


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


def _value(spec: JobSpec, field: str) -> object:
    if field in BUILT_IN:
        return spec.needs.get(field, 0)
    return [getattr(spec, name) for name in FIELDS[field]]


def _refuse(job: JobView, spec: JobSpec, wanted: Update, changed: list[str]) -> None:
    old = job.spec
    if wanted.if_version not in (None, old.version):
        hint = f"look at it again: rota show {old.id}"
        raise Conflict(f"job {old.id} is at version {old.version}, not {wanted.if_version}", hint=hint)
    if "count" in changed and spec.kind is Kind.SYSTEM:
        raise BadField("count", "a system job has a task on every node", "leave it out")
    if "count" in changed and spec.gang:
        raise BadField("count", "a gang starts together", "submit another job")
    if (spec.lease_ms, spec.lease_margin_ms) != (old.lease_ms, old.lease_margin_ms) and job.tally.live:
        which = next(one for one in changed if one in ("lease", "lease_margin", "run"))
        problem = f"{job.tally.live} tasks of job {old.id} hold leases by which their nodes go on"
        hint = f"stop them first: rota pause {old.id} --stop, and after this rota resume {old.id}"
        raise Conflict(problem, field=which, hint=hint)
    if spec.where_it_may_run != old.where_it_may_run and job.tally.live:
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
    if spec.where_it_may_run != job.spec.where_it_may_run:
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
