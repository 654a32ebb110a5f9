"""How the tasks of a service live, one by one and together."""

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
    """Of all its tasks: how many are healthy, down between two starts, and were started again."""
    live: list[ServiceStatus] = []
    restarts = 0
    for block, status in entry.statuses.items():
        attempt = entry.attempts[block]
        current = column(attempt, "number") == column(status, "number")
        for at, lived in status.lives.items():
            restarts += lived.restarts
            if current[at] and status.state[at] == _RUNNING:
                live.append(lived)
        restarts += sum(old.life.restarts for old in status.older if old.life is not None)
    return {
        "healthy": sum(one.health == Health.HEALTHY for one in live) if entry.spec.check else None,
        "down": sum(one.health == Health.DOWN for one in live),
        "restarts": restarts,
    }


def service_sentence(entry: JobEntry, numbers: dict[str, int]) -> str:
    """`3 of 3 run, 2 healthy, restarted 5 times.`"""
    whole = service_totals(entry)
    said = [f"{numbers['running'] - whole['down']} of {entry.spec.size} run"]
    if whole["healthy"] is not None:
        said.append(f"{whole['healthy']} healthy")
    if whole["down"]:
        said.append(f"{whole['down']} about to be restarted")
    waiting = numbers["pending"] + numbers["offered"] + numbers["queued"]
    if waiting:
        said.append(f"{waiting} wait{'s' if waiting == 1 else ''} to be started")
    if whole["restarts"]:
        said.append(f"restarted {_times(whole['restarts'])}")
    return f"{', '.join(said)}."


def rollout_json(entry: JobEntry) -> Json | None:
    """How far its newest version is; None: it was never rolled out."""
    wish, known = entry.intent, entry.rollout
    if known is None or wish is None or known.version != wish.replace:
        return None
    return {
        "version": known.version,
        "state": known.state.value,
        "healthy": known.proven,
        "max_parallel": wish.max_parallel,
        "reason": known.reason,
        "back_from": wish.back_from or None,
        "back_why": wish.back_why,
    }


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
