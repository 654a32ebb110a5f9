"""Idempotency keys: a request that a client repeats because its answer was lost is carried out once."""

import hashlib
import re

import msgspec

from rota.apiserver.access import Caller
from rota.apiserver.admission.actions import AdmitAction
from rota.apiserver.lookup import find_job
from rota.model.errors import BadField, Conflict
from rota.model.ids import JobId
from rota.model.job import JobIntent, JobSpec
from rota.model.limits import REQUESTS_KEPT
from rota.model.plan import Instant, Plan, Record
from rota.model.view import View

IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,256}")  # printable without spaces: it is an HTTP header


def idempotent(admit: AdmitAction, given_key: str | None) -> AdmitAction:
    """The same admission, which does nothing if a request with this key was carried out before.

    Without a key a repeated request is a new one: a restart would stop the attempt that the first one
    started, a rollback would find no previous version.
    """
    key = parse_idempotency_key(given_key)
    if key is None:
        return admit

    def admitted(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
        job = find_job(view, ref, caller)
        name = f"{caller.name}:{key}"  # two users may choose the same key
        if job.intent is not None and name in job.intent.requests:
            return Plan(answer=job.spec.id, fenced=True)
        plan = admit(view, ref, body, caller, now)
        return plan.but(puts=tuple(_with_request_key(record, name) for record in plan.puts))

    return admitted


def _with_request_key(record: Record, name: str) -> Record:
    if not isinstance(record, JobIntent):
        return record
    # With the intent, in one commit: the key is stored if and only if the action is. Bounded, since a client
    # repeats a request within minutes and has few at once.
    return msgspec.structs.replace(record, requests=(*record.requests, name)[-REQUESTS_KEPT:])


def parse_idempotency_key(given: str | None) -> str | None:
    if given is not None and IDEMPOTENCY_KEY.fullmatch(given) is None:
        raise BadField(
            "Idempotency-Key", "is not a key", "write 1 to 256 printable characters without spaces"
        )
    return given


def find_earlier_submit(view: View, spec: JobSpec, key: str | None) -> JobId | None:
    """The job that an equal submit with this key has created; a different one under the key is refused."""
    key = parse_idempotency_key(key)
    if key is None:
        return None
    before = view.submitted(spec.namespace, key)
    if before is None:
        return None
    if before.digest != spec_digest(spec):
        raise Conflict(
            f"this key was used for job {before.job}, which has another spec", hint="use another key"
        )
    # Not a new job: a late repeat would run work a second time that has ended and was deleted.
    if before.job not in view.jobs:
        tombstone = view.ended_jobs.tombstones.get(before.job)
        how = "has expired" if tombstone is not None and tombstone.state != "deleted" else "was deleted"
        raise Conflict(f"this key was used for job {before.job}, which {how}", hint="use another key")
    return before.job


def spec_digest(spec: JobSpec) -> str:
    """A digest of the parsed spec: equal for equal requests, however they were written."""
    return hashlib.sha256(msgspec.msgpack.encode(spec)).hexdigest()
