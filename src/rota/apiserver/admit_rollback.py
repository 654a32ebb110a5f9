"""The wish that a service goes back to the version before its last update."""

from rota.apiserver import access, fields, spec_body
from rota.apiserver.access import Action, Caller
from rota.apiserver.contradictions import refuse_circle
from rota.apiserver.finding import find_job
from rota.apiserver.spec import parse_spec
from rota.model.bounds import check_update
from rota.model.errors import Conflict
from rota.model.plan import Event, Instant, Plan
from rota.model.rollout import go_back
from rota.model.view import View


def rollback(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan:
    """Once: after it there is nothing to go back to until the next update."""
    del now
    fields.known_fields(body, ())
    job = find_job(view, ref, caller)
    access.require(caller, Action.SUBMIT, job.spec.namespace)
    if job.status is not None and job.status.ended:
        raise Conflict(f"job {job.spec.id} has ended: {job.status.state}", hint="submit it again")
    if job.wish is not None and job.wish.cancel:
        raise Conflict(f"job {job.spec.id} is being canceled", hint="submit it again")
    back = go_back(job.spec, job.wish, job.former, f"as {caller.name} wishes")
    if back is None:
        hint = "update it: rota job update --help" if job.spec.stays else "only services go back"
        raise Conflict(f"job {job.spec.id} has no version to go back to", hint=hint)
    parse_spec(spec_body.body_of(back.spec))  # beside the number of tasks there are by now
    refuse_circle(view, back.spec)
    check_update(view, job.spec, back.spec)
    before = f"what it was before version {back.wish.back_from}"
    why = f"{caller.name} lets job {job.spec.id} go back to {before}, as version {back.spec.version}"
    event = Event("job.rollout", why, job=job.spec.id, state="back")
    return Plan(tuple(back), events=(event,), why=why, answer=job.spec.id)
