"""Start order: jobs start after their dependencies, and a cron runs each planned instant at most once."""

from collections.abc import Mapping
from typing import Any

from rota.model.amounts import MINUTE_MS
from rota.model.cron import CronRecord, CronStatus, MissedRuns
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import CRON_MISSED_MAX, CRON_MISSED_MS
from rota.sim.world.invariant import InvariantBroken

_GOOD = {
    "success": (JobState.SUCCEEDED,),
    "failure": (JobState.FAILED, JobState.TIMED_OUT, JobState.REJECTED),
    "any": (
        *(JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT, JobState.REJECTED),
        JobState.CANCELED,
    ),
}


def check_record(known: Mapping[str, Any], fresh: Mapping[str, Any], before: Any, now: Any) -> None:
    """Check one written record."""
    match now:
        case JobStatus():
            check_start(known, fresh, before, now)
        case CronStatus():
            check_cron(known, fresh, before, now)
        case _:
            pass


def check_start(known: Mapping[str, Any], fresh: Mapping[str, Any], before: Any, now: JobStatus) -> None:
    """A waiting job starts when all dependencies are met, and is canceled when one cannot be met any more."""
    spec = fresh.get(f"job/{now.id}/spec") or known.get(f"job/{now.id}/spec")
    waited = before is None or before.state is JobState.WAITING
    if spec is None or not spec.after or not waited or now.state is JobState.WAITING:
        return
    states = {dependency: _state(known, fresh, dependency.job) for dependency in spec.after}
    met = [state in _GOOD[after.on] for after, state in states.items()]
    intent = fresh.get(f"job/{now.id}/wish") or known.get(f"job/{now.id}/wish")
    if now.state is JobState.CANCELED:
        unmeetable = any(
            state is None or (state in _GOOD["any"] and not good)
            for state, good in zip(states.values(), met, strict=True)
        )
        requested = intent is not None and (intent.cancel or len(intent.cancel_tasks) >= spec.count)
        assigned = fresh.get(f"job/{now.id}/cluster") or known.get(f"job/{now.id}/cluster")
        # Its cluster has failed: it is canceled whatever its dependencies are.
        cluster_failed = assigned is not None and assigned.failed is not None
        if not unmeetable and not requested and not cluster_failed:
            raise InvariantBroken(f"job {now.id} was canceled while {states} may still be met")
    elif now.state is not JobState.TIMED_OUT and not all(met):
        raise InvariantBroken(f"job {now.id} became {now.state} before its dependencies: {states}")


def _state(known: Mapping[str, Any], fresh: Mapping[str, Any], job: str) -> JobState | None:
    if f"job/{job}/spec" not in known and f"job/{job}/spec" not in fresh:
        return None
    status = fresh.get(f"job/{job}/status") or known.get(f"job/{job}/status")
    return JobState.SUBMITTED if status is None else status.state


def check_cron(known: Mapping[str, Any], fresh: Mapping[str, Any], before: Any, now: CronStatus) -> None:
    """Instants are handled in order; with missed = all, each of them has its job in this commit."""
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
            raise InvariantBroken(f"cron {cron.name} skipped the run {name}")
