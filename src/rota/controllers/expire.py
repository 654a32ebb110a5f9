"""Retention: ended jobs that are too old or too many -> tombstones.

A day later these and submit keys are deleted.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.ended_jobs import EndedJobs
from rota.model.ids import JobId, Key
from rota.model.job import JobStatus, JobTombstone
from rota.model.limits import (
    EXPIRE_BATCH,
    EXPIRE_RECORDS,
    JOBS_AGE_MS,
    JOBS_KEPT,
    TOMBSTONE_MS,
    TOMBSTONES_MAX,
)
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View, keys_of
from rota.rules.reconciler_names import ReconcilerName

KEY = "jobs"
WAKES: Wakes = {JobStatus: lambda status: (KEY,) if status.ended else ()}
NEXT_BATCH_MS = 100  # after a full batch: other keys are decided in between
CHECK_MS = 60_000


class JobRetention(NamedTuple):
    age_ms: int = JOBS_AGE_MS
    jobs: int = JOBS_KEPT


def reconciler(retention: JobRetention | None = None) -> Reconciler:
    rules = retention or JobRetention()

    def decide(view: View, key: str, now: Instant) -> Plan:
        del key
        return expire_jobs(view, rules, now)

    return Reconciler(ReconcilerName.EXPIRE, "controllers", WAKES, decide, lambda _: (KEY,))


def expire_jobs(view: View, rules: JobRetention, now: Instant) -> Plan:
    jobs = _jobs_to_expire(view, rules, now)
    deleted = list(islice(view.ended_jobs.orphans, EXPIRE_BATCH))
    forgotten = list(islice(_expired_tombstones(view.ended_jobs, now), EXPIRE_BATCH))
    # Bounded by jobs and by records: a job of a million tasks has thousands of records, and one commit of all
    # of them would delay every other request.
    records = sum(map(len, jobs.values()))
    is_full = max(len(jobs), len(deleted), len(forgotten)) == EXPIRE_BATCH or records >= EXPIRE_RECORDS
    wake_at_ms = now.ms + (NEXT_BATCH_MS if is_full else CHECK_MS)
    if not (jobs or deleted or forgotten):
        return Plan(wake_at_ms=wake_at_ms)
    tombstones = [_tombstone(view, job, now) for job in jobs]
    tombstones += [JobTombstone(job, now.ms, now.wall_ms, "deleted") for job in deleted]
    # Tombstones and deletes are one commit: a repeated submit must find either the job or its tombstone.
    deletes = [key for keys in jobs.values() for key in keys]
    for job in forgotten:
        key = view.ended_jobs.key_of.get(job)
        deletes += [Key(f"gone/{job}"), *(() if key is None else (key,))]
    events = tuple(EventRecord("job.expired", f"job {job} expired", job=job) for job in jobs)
    why = f"{len(jobs)} jobs expired, {len(forgotten)} are forgotten"
    return Plan(tuple(tombstones), tuple(deletes), events, why, wake_at_ms)


def _jobs_to_expire(view: View, rules: JobRetention, now: Instant) -> dict[JobId, list[Key]]:
    """Jobs that expire in this commit with the keys of their records, bounded to keep the commit small."""
    found: dict[JobId, list[Key]] = {}
    records = 0
    for job in _expired(view.ended_jobs, rules, now):
        if len(found) >= EXPIRE_BATCH or records >= EXPIRE_RECORDS:
            break
        # A waiting job still needs the result of its dependency. It expires once nothing depends on it.
        if not view.dependents(job):
            found[job] = keys_of(view.jobs[job])
            records += len(found[job])
    return found


def _expired(ended_jobs: EndedJobs, rules: JobRetention, now: Instant) -> Iterator[JobId]:
    """Expired jobs, each once: too old, past their own retention, then the excess over the maximum count."""
    # Age comes first: what is deleted by age does not count towards the excess, so no
    # younger job is deleted in its place.
    expired: set[JobId] = set()
    for job in chain(_aged(ended_jobs, rules, now), ended_jobs.due(now.ms)):
        expired.add(job)
        yield job
    excess = ended_jobs.size - len(expired) - rules.jobs
    if excess > 0:
        yield from islice((job for job in ended_jobs.crowd() if job not in expired), excess)


def _aged(ended_jobs: EndedJobs, rules: JobRetention, now: Instant) -> Iterator[JobId]:
    for job, ended_ms in ended_jobs.ended.items():
        # The jobs are in the order of their ends, so the first one that is young enough ends the search.
        if ended_ms + rules.age_ms > now.ms:
            return
        yield job


def _expired_tombstones(ended_jobs: EndedJobs, now: Instant) -> Iterator[JobId]:
    excess = len(ended_jobs.tombstones) - TOMBSTONES_MAX
    for position, (job, tombstone) in enumerate(ended_jobs.tombstones.items()):
        # In the order of deletion. Beyond the maximum the oldest ones are dropped early: memory is bounded
        # first, and idempotency is kept for as long as that allows.
        if position >= excess and tombstone.at_ms + TOMBSTONE_MS > now.ms:
            return
        yield job


def _tombstone(view: View, job: JobId, now: Instant) -> JobTombstone:
    entry = view.jobs[job]
    state = "" if entry.status is None else entry.status.state.value
    return JobTombstone(job, now.ms, now.wall_ms, state, entry.spec.namespace)
