"""Update and rollback: a patch of some fields + the job -> the next version of its spec, or a refusal.

Some fields take effect on running attempts immediately, the others from the next attempt of each task on.
Where running tasks are to be replaced, the plan also holds the intent for it, which the rollout controller
carries out.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.live_attempts import require_active
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields, job_body
from rota.apiserver.spec.consistency import refuse_affinity_cycle
from rota.apiserver.spec.job import BUILT_IN_RESOURCES, SPEC_ATTRIBUTES, SPEC_FIELDS, check_spec, parse_spec
from rota.model.errors import BadField, Conflict
from rota.model.ids import JobId
from rota.model.job import JobIntent, JobKind, JobSpec, NeedOrigin, resized
from rota.model.plan import EventRecord, Instant, Plan, Record
from rota.model.rollout import JobPreviousVersion
from rota.model.shape import RunMode
from rota.model.task import begun
from rota.model.view import JobView, View
from rota.rules.namespace_bounds import check_update
from rota.rules.needs import assess_needs, with_origins
from rota.rules.rollback import plan_rollback, previous_version

IMMUTABLE_FIELDS = ("name", "namespace", "kind", "after", "cluster")
IMMEDIATE_FIELDS = frozenset(
    {"limits", "timeout", "grace", "priority", "retries", "labels", "parallel", "count", "preemptible"}
    | {"evict_at_most", "expect", "deadline", "when_unschedulable", "recovery", "keep", "rollout"}
    | {"move_pending", "retry", "retry_on", "fail_on", "queue_timeout"}
    | {"controller", "when_no_controller", "controller_wait"}
)
TIME_FIELDS = ("deadline", "expect", "timeout")


class UpdateRequest(NamedTuple):
    """An update: the patch, and how it is applied."""

    fields: object
    if_version: int | None = None  # only on top of this version
    replace: bool = False  # running tasks of older versions are replaced
    max_parallel: int | None = None  # tasks replaced at one time; None: as in the spec


class UpdateResult(NamedTuple):
    job: JobSpec
    at_once: tuple[str, ...]  # changed fields that apply to running attempts
    from_next_attempt: tuple[str, ...]  # changed fields that apply from the next attempt of a task on


def update_job(
    view: View, ref: str, request: UpdateRequest, caller: Caller, now: Instant
) -> Plan[UpdateResult]:
    """Admit an update. One that changes nothing is accepted without its precondition.

    A client whose answer was lost can therefore repeat the update with the same `if_version`.
    """
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.SUBMIT, job.spec.namespace)
    require_active(job, "submit it again")
    patch = fields.known_fields(request.fields, SPEC_FIELDS)
    spec = _with_assessed_needs(view, job.spec, patched_spec(job.spec, patch, now.wall_ms), patch)
    changed = [field for field in patch if _field_value(spec, field) != _field_value(job.spec, field)]
    if changed:
        _refuse_conflicts(job, spec, request, changed)
        spec = begun(msgspec.structs.replace(spec, version=job.spec.version + 1))
        # A deadline may be close by now: an update that leaves the times alone is not refused for that.
        check_spec(spec, now.wall_ms if any(field in patch for field in TIME_FIELDS) else 0)
        refuse_affinity_cycle(view, spec)
        check_update(view, job.spec, spec)
    puts: list[Record] = [spec, *_previous_version(job, spec)] if changed else []
    intent = _replacement_intent(job, spec, request)
    puts += [] if intent is None else [intent]
    at_once = tuple(field for field in changed if field in IMMEDIATE_FIELDS)
    later = tuple(field for field in changed if field not in IMMEDIATE_FIELDS)
    why = f"{caller.name} updates job {spec.id} to version {spec.version}: {', '.join(changed) or 'replace'}"
    events = (EventRecord("job.updated", why, job=spec.id),) if puts else ()
    return Plan(
        tuple(puts),
        events=events,
        why=why if puts else "",
        answer=UpdateResult(spec, at_once, later),
        fenced=True,
    )


def patched_spec(old: JobSpec, patch: Mapping[str, Any], wall_ms: int) -> JobSpec:
    """The spec with the patch applied, checked as a whole like a submit."""
    for field in IMMUTABLE_FIELDS:
        if field in patch:
            raise BadField(field, "cannot be changed", "submit another job")
    new = parse_spec(job_body.patched_body(old, patch), wall_ms)
    names = {name: None for field in patch for name in SPEC_ATTRIBUTES[field] if name != "size"}
    changed = msgspec.structs.replace(old, **{name: getattr(new, name) for name in names})
    return resized(changed, new.size) if "count" in patch else changed


def _with_assessed_needs(view: View, old: JobSpec, new: JobSpec, patch: Mapping[str, Any]) -> JobSpec:
    """The new spec with needs and their origins: a given amount is explicit, null is derived again."""
    resources = patch.get("resources", {})
    if resources is None:
        resources = dict.fromkeys(name for name in old.needs if name not in BUILT_IN_RESOURCES)
    given = {**resources, **{name: patch[name] for name in BUILT_IN_RESOURCES if name in patch}}
    if not given:
        return new
    reset = [name for name, amount in given.items() if amount is None]
    fresh = assess_needs(
        view, with_origins(new, [name for name in old.origins.keys() | new.needs if name not in reset])
    )
    origins = {**old.origins, **dict.fromkeys(given, NeedOrigin.EXPLICIT)}
    origins |= {name: fresh.origins[name] for name in reset if name in fresh.origins}
    observed = {name: amount for name, amount in old.observed.items() if name not in given} | fresh.observed
    return msgspec.structs.replace(new, needs=fresh.needs, origins=origins, observed=observed)


def _field_value(spec: JobSpec, field: str) -> object:
    if field in BUILT_IN_RESOURCES:
        return spec.needs.get(field, 0)
    return [getattr(spec, name) for name in SPEC_ATTRIBUTES[field]]


def _refuse_conflicts(job: JobView, spec: JobSpec, request: UpdateRequest, changed: list[str]) -> None:
    old = job.spec
    if request.if_version not in (None, old.version):
        hint = f"see its current version: rota show {old.id}"
        raise Conflict(f"job {old.id} is at version {old.version}, not {request.if_version}", hint=hint)
    if "count" in changed and spec.kind is JobKind.SYSTEM:
        raise BadField("count", "a system job has a task on every node", "leave it out")
    if "count" in changed and spec.gang:
        raise BadField("count", "a gang starts together", "submit another job")
    # Keepers run these attempts under the old length. The server would compute their end by the new one, and
    # could start a second attempt while the first still runs.
    if (spec.lease_ms, spec.lease_margin_ms) != (old.lease_ms, old.lease_margin_ms) and job.task_counts.live:
        which = next(field for field in changed if field in ("lease", "lease_margin", "run"))
        problem = f"{job.task_counts.live} tasks of job {old.id} run under leases of the old length"
        hint = f"stop them first: rota pause {old.id} --stop, and after this rota resume {old.id}"
        raise Conflict(problem, field=which, hint=hint)
    # What a live attempt reserves on its node is derived from the spec: changed under it, the
    # reservations of its node would be wrong.
    if spec.placement_inputs != old.placement_inputs and job.task_counts.live:
        which = next((field for field in changed if field not in IMMEDIATE_FIELDS), "where")
        hint = f"stop them first: rota pause {old.id} --stop, and after this rota resume {old.id}"
        raise Conflict(
            f"{which} decides where tasks may run, and {job.task_counts.live} of job {old.id} are on nodes",
            field=which,
            hint=hint,
        )


def _previous_version(job: JobView, spec: JobSpec) -> tuple[JobPreviousVersion, ...]:
    """The version that a rollback returns to, for services.

    An update of placement is made while no task is on a node, so there is nothing to roll back to.
    """
    if not spec.is_service:
        return ()
    if spec.placement_inputs != job.spec.placement_inputs:
        return () if job.previous_version is None else (JobPreviousVersion(spec.id),)
    return (previous_version(job.spec, job.intent, job.previous_version, job.rollout),)


def _replacement_intent(job: JobView, spec: JobSpec, request: UpdateRequest) -> JobIntent | None:
    """The intent to replace running tasks; None: no change."""
    if not request.replace:
        return None
    if spec.run is RunMode.AT_MOST_ONCE:
        raise Conflict(f"job {spec.id} runs at_most_once", hint="leave out --replace: running tasks continue")
    before = job.intent or JobIntent(spec.id)
    max_parallel = request.max_parallel or spec.rollout.max_parallel
    intent = msgspec.structs.replace(before, max_parallel=max_parallel)
    # A new rollout. With the same version the request is a repeat, which must not restart it.
    if before.replace != spec.version:
        intent = msgspec.structs.replace(intent, replace=spec.version, spare=(), back_from=0, back_why=None)
    return None if intent == before else intent


def rollback_job(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Return a service to its previous version. It can be done once per update."""
    del now
    fields.known_fields(body, ())
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.SUBMIT, job.spec.namespace)
    require_active(job, "submit it again")
    back = plan_rollback(job.spec, job.intent, job.previous_version, f"as requested by {caller.name}")
    if back is None:
        hint = (
            "update it: rota job update --help" if job.spec.is_service else "only services can be rolled back"
        )
        raise Conflict(f"job {job.spec.id} has no version to roll back to", hint=hint)
    # The number of tasks may have changed since: check the previous version together with it.
    parse_spec(job_body.spec_to_body(back.spec))
    refuse_affinity_cycle(view, back.spec)
    check_update(view, job.spec, back.spec)
    target = f"its state before version {back.intent.back_from}"
    why = f"{caller.name} rolls job {job.spec.id} back to {target}, as version {back.spec.version}"
    event = EventRecord("job.rollout", why, job=job.spec.id, state="back")
    return Plan(tuple(back), events=(event,), why=why, answer=job.spec.id)
