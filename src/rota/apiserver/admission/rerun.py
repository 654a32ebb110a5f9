"""Rerun: an ended job + the view -> a new job with all of its tasks, or those that did not succeed."""

from itertools import groupby
from typing import NamedTuple

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.idempotency import find_earlier_submit, spec_digest
from rota.apiserver.admission.submission import SubmitResult, require_capacity
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.model.errors import Conflict
from rota.model.ids import JobId
from rota.model.job import Counters, JobKind, JobSpec, SubmitKey
from rota.model.limits import BLOCK_TASKS, CARRIED_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import JobView, View
from rota.rules.namespace_bounds import within_bounds
from rota.rules.phases import Phase

_SUCCEEDED = int(Phase.SUCCEEDED)


class RerunSelection(NamedTuple):
    body: object
    key: str | None = None  # idempotency key


def rerun_job(
    view: View, ref: str, selection: RerunSelection, caller: Caller, now: Instant
) -> Plan[SubmitResult]:
    """Submit an ended job again. Tasks keep their indices; with `failed`, succeeded ones are carried over."""
    given, key = fields.known_fields(selection.body, ("failed",)), selection.key
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.SUBMIT, job.spec.namespace)
    if job.status is None or not job.status.ended:
        raise Conflict(f"job {job.spec.id} has not ended", hint=f"wait for it: rota wait {job.spec.id}")
    carried = _succeeded_ranges(job) if fields.flag("failed", given.get("failed", False)) else ()
    # Without id, user and time of submit: those differ between repeats, and the
    # digest under the key must not.
    requested = _rerun_spec(job.spec, carried, now)
    before = find_earlier_submit(view, requested, key)
    if before is not None:
        return Plan(answer=SubmitResult(before, new=False))
    require_capacity(view)
    within_bounds(view, requested, ("priority",))
    number = view.counters.jobs + 1
    spec = msgspec.structs.replace(
        requested, id=JobId(str(number)), submitted_at_ms=now.wall_ms, user=caller.name
    )
    keys = () if key is None else (SubmitKey(spec.namespace, key, spec.id, spec_digest(requested)),)
    what = f"the tasks of job {job.spec.id} that did not succeed" if carried else f"job {job.spec.id}"
    why = f"{caller.name} reruns {what}, as job {spec.id}"
    return Plan(
        (spec, Counters(number, view.counters.nodes), *keys),
        events=(EventRecord("job.submitted", why, job=spec.id),),
        why=why,
        answer=SubmitResult(spec.id, new=True),
    )


def _rerun_spec(old: JobSpec, carried: tuple[tuple[int, int], ...], now: Instant) -> JobSpec:
    """The spec of the new job, without dependencies, and without a deadline that has passed."""
    deadline = old.deadline_at_ms
    return msgspec.structs.replace(
        old,
        id=JobId(""),
        submitted_at_ms=0,
        user="",
        version=1,
        count=0 if old.kind is JobKind.SYSTEM else old.size,
        desired_count=None,
        after=(),
        deadline_at_ms=deadline if deadline is not None and deadline > now.wall_ms else None,
        rerun_of=old.id,
        carried=carried,
    )


def _succeeded_ranges(job: JobView) -> tuple[tuple[int, int], ...]:
    """Ranges of indices that succeeded, first to last, in ascending order; adjacent ones are joined."""
    spec = job.spec
    if spec.kind is not JobKind.BATCH or spec.gang:
        what = "its tasks start together" if spec.gang else f"a {spec.kind} has no tasks that succeed"
        raise Conflict(f"{what}: there is no part of job {spec.id} to run", hint=f"rota rerun {spec.id}")
    found: list[tuple[int, int]] = []
    for block in sorted(job.phases):
        at = block * BLOCK_TASKS
        for phase, group in groupby(job.phases[block]):
            length = len(list(group))
            if phase == _SUCCEEDED:
                joins = found and found[-1][1] == at - 1
                first = found.pop()[0] if joins else at
                found.append((first, at + length - 1))
            at += length
    found = [(first, min(last, spec.size - 1)) for first, last in found if not spec.is_scaled_down(first)]
    if found == [(0, spec.size - 1)]:
        raise Conflict(f"all tasks of job {spec.id} succeeded", hint=f"run all again: rota rerun {spec.id}")
    if len(found) > CARRIED_MAX:
        problem = f"the tasks of job {spec.id} that succeeded are in more than {CARRIED_MAX} ranges"
        raise Conflict(problem, hint=f"run all again: rota rerun {spec.id}")
    return tuple(found)
