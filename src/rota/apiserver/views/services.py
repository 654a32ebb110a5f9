"""Services as the API shows them: status of one task, totals, and the progress of a rollout."""

from typing import Any

from rota.engine.state.entries import JobEntry
from rota.model.columns import column
from rota.model.lifecycle import AttemptState
from rota.model.service import Health, ServiceStatus

Json = dict[str, Any]

_RUNNING = int(AttemptState.RUNNING)


def service_status_json(status: ServiceStatus | None) -> Json | None:
    if status is None:
        return None
    return {
        "health": status.health,
        "restarts": status.restarts,
        "exit_code": None if status.exit_code < 0 else status.exit_code,
        "signal": status.signal or None,
        "ended_at_ms": status.ended_at_ms or None,
        "why": status.why,
    }


def service_totals(entry: JobEntry) -> Json:
    """Over all tasks: how many are healthy, how many wait for a restart, and the number of restarts."""
    live: list[ServiceStatus] = []
    restarts = 0
    for block, status in entry.statuses.items():
        attempt = entry.attempts[block]
        current = column(attempt, "number") == column(status, "number")
        for at, task_status in status.lives.items():
            restarts += task_status.restarts
            if current[at] and status.state[at] == _RUNNING:
                live.append(task_status)
        restarts += sum(old.life.restarts for old in status.older if old.life is not None)
    return {
        "healthy": sum(task.health == Health.HEALTHY for task in live) if entry.spec.check else None,
        "down": sum(task.health == Health.DOWN for task in live),
        "restarts": restarts,
    }


def service_sentence(entry: JobEntry, numbers: dict[str, int]) -> str:
    """`3 of 3 run, 2 healthy, restarted 5 times.`"""
    totals = service_totals(entry)
    parts = [f"{numbers['running'] - totals['down']} of {entry.spec.size} run"]
    if totals["healthy"] is not None:
        parts.append(f"{totals['healthy']} healthy")
    if totals["down"]:
        parts.append(f"{totals['down']} about to be restarted")
    waiting = numbers["pending"] + numbers["offered"] + numbers["queued"]
    if waiting:
        parts.append(f"{waiting} wait{'s' if waiting == 1 else ''} to be started")
    if totals["restarts"]:
        parts.append(f"restarted {_times(totals['restarts'])}")
    return f"{', '.join(parts)}."


def rollout_json(entry: JobEntry) -> Json | None:
    """The progress of the rollout; None: there never was one."""
    intent, rollout = entry.intent, entry.rollout
    if rollout is None or intent is None or rollout.version != intent.replace:
        return None
    return {
        "version": rollout.version,
        "state": rollout.state.value,
        "healthy": rollout.proven,
        "max_parallel": intent.max_parallel,
        "reason": rollout.reason,
        "back_from": intent.back_from or None,
        "back_why": intent.back_why,
    }


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
