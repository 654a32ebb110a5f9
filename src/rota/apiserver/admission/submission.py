"""A user's request + the view -> a Plan, or Rejected."""

from typing import NamedTuple

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.clusters import check_job_cluster
from rota.apiserver.admission.idempotency import find_earlier_submit, spec_digest
from rota.apiserver.admission.warnings import SubmitWarning, submit_warnings
from rota.apiserver.lookup import find_job
from rota.apiserver.spec.consistency import refuse_affinity_cycle
from rota.apiserver.spec.dependencies import resolve_dependencies
from rota.apiserver.spec.job import check_spec, named_resources, parse_spec
from rota.apiserver.spec.recovery import with_controller
from rota.model.amounts import show_amount
from rota.model.errors import Conflict, QueueFull, StoreFull
from rota.model.ids import JobId
from rota.model.job import Counters, JobSpec, SubmitKey
from rota.model.limits import JOBS_WAITING_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View, keys_of
from rota.rules.namespace_bounds import admitted
from rota.rules.needs import assess_needs, with_origins


class SubmitResult(NamedTuple):
    job: JobId
    new: bool  # else an earlier submit with the same key made it
    warnings: tuple[SubmitWarning, ...] = ()


def submit_job(
    view: View,
    body: object,
    caller: Caller,
    key: str | None,
    now: Instant,
    *,
    controller: str | None = None,
) -> Plan[SubmitResult]:
    """`controller`: the subscriber that owns the recovery. The key compares the body without it."""
    wish = parse_spec(body)
    known = body if isinstance(body, dict) else {}
    access.require_in_namespace(caller, Action.SUBMIT, wish.namespace)
    before = find_earlier_submit(view, wish, key)
    if before is not None:
        return Plan(answer=SubmitResult(before, new=False, warnings=_warnings(view, wish, body)))
    require_capacity(view)
    wish_within = admitted(view, wish, known)
    check_job_cluster(view, wish_within.cluster)
    number = view.counters.jobs + 1
    dated = wish if wish.deadline_at_ms is None else parse_spec(body, now.wall_ms)
    spec = msgspec.structs.replace(
        dated,
        id=JobId(str(number)),
        submitted_at_ms=now.wall_ms,
        user=caller.name,
        priority=wish_within.priority,
        cluster=wish_within.cluster,
    )
    spec = with_controller(spec, controller)
    spec = assess_needs(view, with_origins(resolve_dependencies(view, spec, caller), named_resources(known)))
    if spec.needs != dated.needs:  # by its namespace: together with the rest that may be too much
        check_spec(spec, now.wall_ms)
    refuse_affinity_cycle(view, spec)
    keys = () if key is None else (SubmitKey(spec.namespace, key, spec.id, spec_digest(wish)),)
    why = _describe_request(spec)
    return Plan(
        (spec, Counters(number, view.counters.nodes), *keys),
        events=(EventRecord("job.submitted", why, job=spec.id),),
        why=why,
        answer=SubmitResult(spec.id, new=True, warnings=_warnings(view, spec, body)),
    )


def require_capacity(view: View) -> None:
    if view.disk_low:
        raise StoreFull("the server's disk is full: nothing new is taken until there is room on it")
    if view.unfinished >= JOBS_WAITING_MAX:
        raise QueueFull(f"{view.unfinished} jobs have not ended yet", hint="wait until some have ended")


def delete_job(view: View, ref: str, caller: Caller) -> Plan[JobId]:
    """All records of an ended job but its submit key, so that a late repeat makes no second one."""
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.DELETE, job.spec.namespace)
    if ref != job.spec.id:  # a name would mean the next one when the call is repeated
        raise Conflict("a job is deleted by its id", hint=f"the id of {ref[:60]} is {job.spec.id}")
    if job.status is None or not job.status.ended:
        raise Conflict(f"job {job.spec.id} has not ended", hint=f"cancel it first: rota cancel {job.spec.id}")
    followers = view.dependents(job.spec.id)
    if followers:
        hint = f"cancel it first: rota cancel {' '.join(followers[:8])}"
        raise Conflict(f"job {followers[0]} waits for how job {job.spec.id} ended", hint=hint)
    why = f"{caller.name} deletes job {job.spec.id}"
    event = EventRecord("job.deleted", why, job=job.spec.id)
    return Plan(deletes=tuple(keys_of(job)), events=(event,), why=why, answer=job.spec.id)


def _warnings(view: View, spec: JobSpec, body: object) -> tuple[SubmitWarning, ...]:
    return submit_warnings(view, spec, body if isinstance(body, dict) else ())


def _describe_request(spec: JobSpec) -> str:
    tasks = "one task" if spec.count == 1 else f"{spec.count} tasks"
    needs = ", ".join(show_amount(resource, amount) for resource, amount in spec.needs.items())
    return f"{spec.user} asks for {tasks} of {spec.name}, {'' if spec.count == 1 else 'each '}with {needs}"
