"""What begins when: jobs after those they wait for, and each planned instant of a cron at most once."""

from collections.abc import Mapping
from typing import Any

from rota.model.amounts import MINUTE_MS
from rota.model.cron import CronRecord, CronStatus, MissedRuns
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import CRON_MISSED_MAX, CRON_MISSED_MS
from rota.sim.broken import InvariantBroken

_GOOD = {
    "success": (JobState.SUCCEEDED,),
    "failure": (JobState.FAILED, JobState.TIMED_OUT, JobState.REJECTED),
    "any": (
        *(JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT, JobState.REJECTED),
        JobState.CANCELED,
    ),
}


def look(known: Mapping[str, Any], fresh: Mapping[str, Any], before: Any, now: Any) -> None:
    """At one record that is written."""
    match now:
        case JobStatus():
            begins(known, fresh, before, now)
        case CronStatus():
            reaches(known, fresh, before, now)
        case _:
            pass


def begins(known: Mapping[str, Any], fresh: Mapping[str, Any], before: Any, now: JobStatus) -> None:
    """A job that waited goes on when all it waits for has happened, and gives up when that cannot be."""
    spec = fresh.get(f"job/{now.id}/spec") or known.get(f"job/{now.id}/spec")
    waited = before is None or before.state is JobState.WAITING
    if spec is None or not spec.after or not waited or now.state is JobState.WAITING:
        return
    states = {one: _state(known, fresh, one.job) for one in spec.after}
    met = [state in _GOOD[one.on] for one, state in states.items()]
    wish = fresh.get(f"job/{now.id}/wish") or known.get(f"job/{now.id}/wish")
    if now.state is JobState.CANCELED:
        impossible = any(
            state is None or (state in _GOOD["any"] and not good)
            for state, good in zip(states.values(), met, strict=True)
        )
        asked = wish is not None and (wish.cancel or len(wish.cancel_tasks) >= spec.count)
        assigned = fresh.get(f"job/{now.id}/cluster") or known.get(f"job/{now.id}/cluster")
        homeless = assigned is not None and assigned.failed is not None  # canceled whatever it waits for
        if not impossible and not asked and not homeless:
            raise InvariantBroken(f"job {now.id} gave up waiting for {states}, which may still happen")
    elif now.state is not JobState.TIMED_OUT and not all(met):
        raise InvariantBroken(f"job {now.id} became {now.state} though it waits for {states}")


def _state(known: Mapping[str, Any], fresh: Mapping[str, Any], job: str) -> JobState | None:
    if f"job/{job}/spec" not in known and f"job/{job}/spec" not in fresh:
        return None
    status = fresh.get(f"job/{job}/status") or known.get(f"job/{job}/status")
    return JobState.SUBMITTED if status is None else status.state


def reaches(known: Mapping[str, Any], fresh: Mapping[str, Any], before: Any, now: CronStatus) -> None:
    """Instants are dealt with in order; where all are to be made up for, each has its job in this commit."""
    cron: CronRecord | None = fresh.get(f"cron/{now.ref}") or known.get(f"cron/{now.ref}")
    if cron is None:
        return
    first_ms = cron.created_at_ms if before is None else before.last_ms
    if now.last_ms < first_ms:
        raise InvariantBroken(f"cron {now.name} went back from {first_ms} to {now.last_ms}")
    if cron.missed is not MissedRuns.ALL:
        return
    each = 2 if "/2" in cron.schedule else 1
    first_ms = max(first_ms, now.last_ms - CRON_MISSED_MS + MINUTE_MS)
    minutes = range(first_ms // MINUTE_MS + 1, now.last_ms // MINUTE_MS + 1)
    planned = [minute for minute in minutes if minute % each == 0][-CRON_MISSED_MAX:]
    made = {record.name for key, record in fresh.items() if key.endswith("/spec") and key.startswith("job/")}
    for minute in planned:
        name = cron.child_name(minute * MINUTE_MS)
        if name not in made:
            raise InvariantBroken(f"cron {cron.name} went on without the run {name}")
