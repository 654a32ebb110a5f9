"""A request on a job that a client may repeat, because its answer was lost: it is carried out once."""

import msgspec

from rota.apiserver.access import Caller
from rota.apiserver.admission import parse_idempotency_key
from rota.apiserver.admit_wishes import AdmitAction
from rota.apiserver.finding import find_job
from rota.model.job import JobIntent
from rota.model.limits import REQUESTS_KEPT
from rota.model.plan import Instant, Plan, Record
from rota.model.view import View


def idempotent(admit: AdmitAction, given_key: str | None) -> AdmitAction:
    """The same admission, which leaves alone what a request with this key has already done.

    Without a key a repeated request is a new one: a restart would stop the attempt that the first one
    started, a rollback would find nothing left to go back to.
    """
    key = parse_idempotency_key(given_key)
    if key is None:
        return admit

    def admitted(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan:
        job = find_job(view, ref, caller)
        name = f"{caller.name}:{key}"  # two users may choose the same
        if job.intent is not None and name in job.intent.requests:
            return Plan(answer=job.spec.id, fenced=True)
        plan = admit(view, ref, body, caller, now)
        return plan.but(puts=tuple(_with_request_key(record, name) for record in plan.puts))

    return admitted


def _with_request_key(record: Record, name: str) -> Record:
    if not isinstance(record, JobIntent):
        return record
    return msgspec.structs.replace(record, requests=(*record.requests, name)[-REQUESTS_KEPT:])
