"""How often a task may run, as it was said: its mode, and the lease of what runs one at a time."""

from collections.abc import Mapping
from typing import Any

from rota.apiserver.spec import fields
from rota.model import limits
from rota.model.amounts import parse_seconds
from rota.model.errors import BadField
from rota.model.shape import RunMode

LEASE_SECONDS_MIN, LEASE_SECONDS_MAX = limits.LEASE_MS_MIN // 1000, limits.LEASE_MS_MAX // 1000


def parse_run_mode(said: Mapping[str, Any]) -> dict[str, Any]:
    run = fields.one_of("run", said.get("run", RunMode.AT_LEAST_ONCE), RunMode)
    for field in ("lease", "lease_margin"):
        if said.get(field) is not None and run is not RunMode.ONE_AT_A_TIME:
            raise BadField(
                field, f"{run.value} work holds no lease", "write run = one_at_a_time, or leave it out"
            )
    lease = _parse_lease(said.get("lease"))
    return {
        "run": run,
        "lease_seconds": lease,
        "lease_margin_seconds": _parse_margin(said.get("lease_margin"), lease or limits.LEASE_MS / 1000),
    }


def _parse_lease(value: object) -> float | None:
    if value is None:
        return None
    seconds = fields.number("lease", parse_seconds, value, limits.TIMEOUT_SECONDS_MAX)
    if not LEASE_SECONDS_MIN <= seconds <= LEASE_SECONDS_MAX:
        problem = f"{seconds:g} s is too {'short' if seconds < LEASE_SECONDS_MIN else 'long'}"
        raise BadField(
            "lease", problem, f"write {LEASE_SECONDS_MIN}s to {LEASE_SECONDS_MAX}s, or leave it out"
        )
    return seconds


def _parse_margin(value: object, lease: float) -> float | None:
    if value is None:
        return None
    seconds = fields.number("lease_margin", parse_seconds, value, LEASE_SECONDS_MAX)
    least = max(limits.LEASE_MARGIN_MS_MIN / 1000, limits.LEASE_MARGIN_SHARE_MIN * lease)
    if seconds < least:
        problem = f"{seconds:g} s is too short for a lease of {lease:g} s: clocks differ"
        raise BadField("lease_margin", problem, f"write at least {least:g}s, or leave it out")
    return seconds
