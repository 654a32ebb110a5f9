"""The submit and the deletion of a job: a request + the view -> a Plan, or a refusal.

The plan holds the spec, the counter that its id came from, and the idempotency key. They are one commit, so
that a crash leaves all of them or none. A client that repeats a submit with its key gets the id of the first.
"""

from typing import NamedTuple

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.clusters import check_job_cluster
from rota.apiserver.admission.idempotency import find_earlier_submit, spec_digest
from rota.apiserver.admission.warnings import SubmitWarning, submit_warnings
from rota.apiserver.lookup import find_job
from rota.apiserver.spec.consistency import refuse_affinity_cycle
from rota.apiserver.spec.job import check_spec, named_resources, parse_spec
from rota.apiserver.spec.recovery import with_controller
from rota.model.amounts import show_amount
from rota.model.dependency import Dependency
from rota.model.errors import Conflict, NotFound, QueueFull, StoreFull
from rota.model.ids import JobId
from rota.model.job import Counters, JobSpec, SubmitKey
from rota.model.limits import JOBS_WAITING_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View, keys_of
from rota.rules.namespace_bounds import within_bounds
from rota.rules.needs import assess_needs, with_origins


class SubmitResult(NamedTuple):
    job: JobId
    new: bool  # False: an earlier submit with the same key created it
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
    """Admit a new job, or find the one that an earlier submit with this key has created.

    `controller` is the subscriber that recovers the job. It is not compared under the key: it may depend on
    which subscribers are connected, and a repeat must not be refused for that.
    """
    requested = parse_spec(body)
    given_fields = body if isinstance(body, dict) else {}
    access.require_in_namespace(caller, Action.SUBMIT, requested.namespace)
    # Before all bounds: a repeat of a submit that was accepted must succeed even if the queue is full by now.
    before = find_earlier_submit(view, requested, key)
    if before is not None:
        return Plan(answer=SubmitResult(before, new=False, warnings=_warnings(view, requested, body)))
    require_capacity(view)
    bounded = within_bounds(view, requested, given_fields)
    check_job_cluster(view, bounded.cluster)
    # From the counter, which is never decremented: the number of a deleted job is not used again.
    number = view.counters.jobs + 1
    # The digest under the key must not depend on the time of the request: only now are deadlines such as `2h`
    # counted from the wall clock.
    dated = requested if requested.deadline_at_ms is None else parse_spec(body, now.wall_ms)
    spec = msgspec.structs.replace(
        dated,
        id=JobId(str(number)),
        submitted_at_ms=now.wall_ms,
        user=caller.name,
        priority=bounded.priority,
        cluster=bounded.cluster,
    )
    spec = with_controller(spec, controller)
    spec = assess_needs(
        view, with_origins(_resolve_dependencies(view, spec, caller), named_resources(given_fields))
    )
    # Defaults of the namespace may contradict what the user has requested.
    if spec.needs != dated.needs:
        check_spec(spec, now.wall_ms)
    # Jobs that each require to be near the other would wait for each other for ever.
    refuse_affinity_cycle(view, spec)
    keys = () if key is None else (SubmitKey(spec.namespace, key, spec.id, spec_digest(requested)),)
    why = _describe_request(spec)
    return Plan(
        (spec, Counters(number, view.counters.nodes), *keys),
        events=(EventRecord("job.submitted", why, job=spec.id),),
        why=why,
        answer=SubmitResult(spec.id, new=True, warnings=_warnings(view, spec, body)),
    )


def require_capacity(view: View) -> None:
    """Backpressure: refuse new jobs while the disk is low or too many have not ended."""
    if view.disk_low:
        raise StoreFull("the server's disk is nearly full: no new job is accepted until there is free space")
    if view.unfinished >= JOBS_WAITING_MAX:
        raise QueueFull(f"{view.unfinished} jobs have not ended yet", hint="wait until some have ended")


def delete_job(view: View, ref: str, caller: Caller) -> Plan[JobId]:
    """Delete the records of an ended job, except its submit key.

    The key stays, so that a late repeat of the submit does not create a second job.
    """
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.DELETE, job.spec.namespace)
    # By name, a repeated call would delete the next job of that name.
    if ref != job.spec.id:
        raise Conflict("a job can be deleted by its id only", hint=f"the id of {ref[:60]} is {job.spec.id}")
    if job.status is None or not job.status.ended:
        raise Conflict(f"job {job.spec.id} has not ended", hint=f"cancel it first: rota cancel {job.spec.id}")
    dependents = view.dependents(job.spec.id)
    if dependents:
        hint = f"cancel it first: rota cancel {' '.join(dependents[:8])}"
        raise Conflict(f"job {dependents[0]} depends on how job {job.spec.id} ended", hint=hint)
    why = f"{caller.name} deletes job {job.spec.id}"
    event = EventRecord("job.deleted", why, job=job.spec.id)
    return Plan(deletes=tuple(keys_of(job)), events=(event,), why=why, answer=job.spec.id)


def _warnings(view: View, spec: JobSpec, body: object) -> tuple[SubmitWarning, ...]:
    return submit_warnings(view, spec, body if isinstance(body, dict) else ())


def _describe_request(spec: JobSpec) -> str:
    tasks = "one task" if spec.count == 1 else f"{spec.count} tasks"
    needs = ", ".join(show_amount(resource, amount) for resource, amount in spec.needs.items())
    return f"{spec.user} asks for {tasks} of {spec.name}, {'' if spec.count == 1 else 'each '}with {needs}"


def _resolve_dependencies(view: View, spec: JobSpec, caller: Caller) -> JobSpec:
    """The spec with its dependencies by id.

    Only existing jobs can be named, and ids only grow: so dependencies cannot form a cycle.
    """
    if not spec.after:
        return spec
    resolved = dict.fromkeys(_resolve_dependency(view, dependency, caller) for dependency in spec.after)
    return msgspec.structs.replace(spec, after=tuple(resolved))


def _resolve_dependency(view: View, dependency: Dependency, caller: Caller) -> Dependency:
    try:
        return Dependency(find_job(view, dependency.job, caller).spec.id, dependency.on)
    except NotFound as problem:
        raise NotFound(problem.detail, field="after", hint="name a job that was submitted before") from None
