"""Jobs that ended long ago, or are too many -> gone; a day later so are their submit keys."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.ids import JobId, Key
from rota.model.job import JobGone, JobStatus
from rota.model.limits import EXPIRE_BATCH, EXPIRE_RECORDS, GONE_MAX, GONE_MS, JOBS_AGE_MS, JOBS_KEPT
from rota.model.past import Past
from rota.model.plan import Event, Instant, Plan
from rota.model.view import View, keys_of

NAME = "expire"
KEY = "jobs"
WAKES: Wakes = {JobStatus: lambda status: (KEY,) if status.ended else ()}
AGAIN_MS = 100  # after a full batch: others have their turn first
LOOK_MS = 60_000


class Retention(NamedTuple):
    age_ms: int = JOBS_AGE_MS
    jobs: int = JOBS_KEPT


def reconciler(retention: Retention | None = None) -> Reconciler:
    rules = retention or Retention()

    def decide(view: View, key: str, now: Instant) -> Plan:
        del key
        return expire(view, rules, now)

    return Reconciler(NAME, "controllers", WAKES, decide, lambda _: (KEY,))


def expire(view: View, rules: Retention, now: Instant) -> Plan:
    jobs = _chosen(view, rules, now)
    deleted = list(islice(view.past.orphans, EXPIRE_BATCH))
    forgotten = list(islice(_forgotten(view.past, now), EXPIRE_BATCH))
    records = sum(map(len, jobs.values()))
    is_full = max(len(jobs), len(deleted), len(forgotten)) == EXPIRE_BATCH or records >= EXPIRE_RECORDS
    wake_at_ms = now.ms + (AGAIN_MS if is_full else LOOK_MS)
    if not (jobs or deleted or forgotten):
        return Plan(wake_at_ms=wake_at_ms)
    buried = [_gone(view, job, now) for job in jobs]
    buried += [JobGone(job, now.ms, now.wall_ms, "deleted") for job in deleted]
    deletes = [key for keys in jobs.values() for key in keys]
    for job in forgotten:
        key = view.past.key_of.get(job)
        deletes += [Key(f"gone/{job}"), *(() if key is None else (key,))]
    events = tuple(Event("job.expired", f"job {job} expired", job=job) for job in jobs)
    why = f"{len(jobs)} jobs expired, {len(forgotten)} are forgotten"
    return Plan(tuple(buried), tuple(deletes), events, why, wake_at_ms)


def _chosen(view: View, rules: Retention, now: Instant) -> dict[JobId, list[Key]]:
    """The jobs that expire in this commit, with the keys of their records: as many as one commit bears."""
    found: dict[JobId, list[Key]] = {}
    records = 0
    for job in _expired(view.past, rules, now):
        if len(found) >= EXPIRE_BATCH or records >= EXPIRE_RECORDS:
            break
        if not view.followers(job):
            found[job] = keys_of(view.jobs[job])
            records += len(found[job])
    return found


def _expired(past: Past, rules: Retention, now: Instant) -> Iterator[JobId]:
    """Each once: too old; those whose own time is over; and then as many as there are still too many."""
    over: set[JobId] = set()
    for job in chain(_aged(past, rules, now), past.due(now.ms)):
        over.add(job)
        yield job
    excess = past.size - len(over) - rules.jobs
    if excess > 0:
        yield from islice((job for job in past.crowd() if job not in over), excess)


def _aged(past: Past, rules: Retention, now: Instant) -> Iterator[JobId]:
    for job, ended_ms in past.ended.items():
        if ended_ms + rules.age_ms > now.ms:
            return
        yield job


def _forgotten(past: Past, now: Instant) -> Iterator[JobId]:
    excess = len(past.gone) - GONE_MAX
    for place, (job, gone) in enumerate(past.gone.items()):
        if place >= excess and gone.at_ms + GONE_MS > now.ms:
            return
        yield job


def _gone(view: View, job: JobId, now: Instant) -> JobGone:
    entry = view.jobs[job]
    state = "" if entry.status is None else entry.status.state.value
    return JobGone(job, now.ms, now.wall_ms, state, entry.spec.namespace)
