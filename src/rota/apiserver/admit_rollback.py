"""The wish that a service goes back to the version before its last update."""

from rota.apiserver import access, fields, spec_body
from rota.apiserver.access import Action, Caller
from rota.apiserver.contradictions import refuse_affinity_cycle
from rota.apiserver.finding import find_job
from rota.apiserver.spec import parse_spec
from rota.model.bounds import check_update
from rota.model.errors import Conflict
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.rollout import plan_rollback
from rota.model.view import View


def rollback_job(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan:
    """Once: after it there is nothing to go back to until the next update."""
    del now
    fields.known_fields(body, ())
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.SUBMIT, job.spec.namespace)
    if job.status is not None and job.status.ended:
        raise Conflict(f"job {job.spec.id} has ended: {job.status.state}", hint="submit it again")
    if job.intent is not None and job.intent.cancel:
        raise Conflict(f"job {job.spec.id} is being canceled", hint="submit it again")
    back = plan_rollback(job.spec, job.intent, job.previous_version, f"as {caller.name} wishes")
    if back is None:
        hint = "update it: rota job update --help" if job.spec.is_service else "only services go back"
        raise Conflict(f"job {job.spec.id} has no version to go back to", hint=hint)
    parse_spec(spec_body.spec_to_body(back.spec))  # beside the number of tasks there are by now
    refuse_affinity_cycle(view, back.spec)
    check_update(view, job.spec, back.spec)
    before = f"what it was before version {back.wish.back_from}"
    why = f"{caller.name} lets job {job.spec.id} go back to {before}, as version {back.spec.version}"
    event = EventRecord("job.rollout", why, job=job.spec.id, state="back")
    return Plan(tuple(back), events=(event,), why=why, answer=job.spec.id)
