"""Run mode, retries and recovery of a spec: when a task is started again, and which component decides it.

Retries follow a failure of the task. Recovery follows the loss of its node. The run mode limits both.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from rota.apiserver.access import Caller
from rota.apiserver.spec import fields
from rota.model import limits
from rota.model.amounts import parse_count, parse_seconds
from rota.model.errors import BadField
from rota.model.job import JobKind, JobSpec, Recovery
from rota.model.limits import CONTROLLER_WAIT_SECONDS, TIMEOUT_SECONDS_MAX
from rota.model.plan import Instant
from rota.model.recovery import Failure, Retry, WhenControllerAbsent
from rota.model.shape import RunMode
from rota.model.subscriber import names_of
from rota.model.view import View

LEASE_SECONDS_MIN, LEASE_SECONDS_MAX = limits.LEASE_MS_MIN // 1000, limits.LEASE_MS_MAX // 1000
RETRY_SHORTHANDS = {
    "attempts": "retries",
    "on": "retry_on",
    "fail_on": "fail_on",
}  # entry of `retry` -> field
RETRY_FIELDS = (*RETRY_SHORTHANDS, "delay", "delay_max", "jitter")
CODE_MAX = 255  # the largest exit code of a process
_FAILURES = list(Failure)
_RETRY_HINT = 'write {"attempts": 3, "on": [75, "oom"], "fail_on": [2], "delay": "5s"}, or some of these'
_ON_HINT = f"write exit codes from 1 to {CODE_MAX}, or any of: {', '.join(Failure)}"
_FAIL_HINT = f"write exit codes from 1 to {CODE_MAX}"
_CONTROLLER_FIELDS = ("controller", "when_no_controller", "controller_wait")


def with_named_controller(body: object) -> object:
    """The body of a submit over controller.proto: where it names a controller, `recovery` may be left out."""
    if not isinstance(body, dict) or "recovery" in body or body.get("controller") is None:
        return body
    return {**body, "recovery": Recovery.CONTROLLER.value}


def default_controller(view: View, body: object, caller: Caller, now: Instant) -> str | None:
    """The subscriber that recovers a job of controller.proto which names none; None: the scheduler does.

    It is the only name under which the caller is connected. Right after the start of a server, controllers
    may not have reconnected yet: then it is the only name of the caller that has a stored cursor.
    """
    if isinstance(body, dict) and "recovery" in body:
        return None
    names = view.presence.connected(caller.name)
    if not names and view.presence.is_young(now.ms, round(CONTROLLER_WAIT_SECONDS * 1000)):
        known = view.subscribers
        names = names_of(caller.name, (name for name in known if known[name].belongs_to(caller.owner)))
    return names[0] if len(names) == 1 else None


def with_controller(spec: JobSpec, controller: str | None) -> JobSpec:
    """The spec with that recovery controller; services and system jobs are left to the scheduler."""
    if controller is None or spec.is_service or spec.kind is JobKind.SYSTEM:
        return spec
    return msgspec.structs.replace(spec, recovery=Recovery.CONTROLLER, controller=controller)


def parse_recovery(body: Mapping[str, Any]) -> dict[str, Any]:
    recovery = fields.one_of("recovery", body.get("recovery", Recovery.SCHEDULER), Recovery)
    if recovery is not Recovery.CONTROLLER:
        for field in _CONTROLLER_FIELDS:
            if body.get(field) is not None:
                raise BadField(field, f"has no effect: {recovery} recovers it", "write recovery = controller")
        return {"recovery": recovery}
    if body.get("controller") is None:
        hint = "write the name under which it watches events, such as controller = ci"
        raise BadField("controller", "is missing: which controller recovers it?", hint)
    return {
        "recovery": recovery,
        "controller": fields.name("controller", body["controller"]),
        "when_no_controller": fields.one_of(
            "when_no_controller",
            body.get("when_no_controller", WhenControllerAbsent.WAIT),
            WhenControllerAbsent,
        ),
        "controller_wait_seconds": fields.number(
            "controller_wait",
            parse_seconds,
            body.get("controller_wait", CONTROLLER_WAIT_SECONDS),
            TIMEOUT_SECONDS_MAX,
        ),
    }


def parse_run_mode(body: Mapping[str, Any]) -> dict[str, Any]:
    run = fields.one_of("run", body.get("run", RunMode.AT_LEAST_ONCE), RunMode)
    for field in ("lease", "lease_margin"):
        if body.get(field) is not None and run is not RunMode.ONE_AT_A_TIME:
            raise BadField(
                field, f"{run.value} tasks hold no lease", "write run = one_at_a_time, or leave it out"
            )
    lease = _parse_lease(body.get("lease"))
    return {
        "run": run,
        "lease_seconds": lease,
        "lease_margin_seconds": _parse_margin(body.get("lease_margin"), lease or limits.LEASE_MS / 1000),
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


class GivenValue(NamedTuple):
    """A value, and the name of the field that it was given by, for errors."""

    field: str
    value: Any


def parse_retries(body: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes `retries` and `retry` of a JobSpec."""
    given = _given_values(body)
    attempts = given.get("attempts", GivenValue("retries", 0))
    on, fail_on = given.get("on", GivenValue("retry_on", [])), given.get("fail_on", GivenValue("fail_on", []))
    causes = _parse_entries(on, _ON_HINT)
    codes = _parse_codes(on.field, [cause for cause in causes if cause not in _FAILURES], _ON_HINT)
    never = _parse_codes(fail_on.field, _parse_entries(fail_on, _FAIL_HINT), _FAIL_HINT)
    for code in never:
        if code in codes:
            raise BadField(
                fail_on.field, f"{code} is in {on.field} as well", "leave it out of one of the two"
            )
    failures = tuple(Failure(cause) for cause in dict.fromkeys(causes) if cause in _FAILURES)
    return {
        "retries": fields.number(attempts.field, parse_count, attempts.value, 0, limits.RETRIES_MAX),
        "retry": Retry(failures, codes, never, **_parse_delays(given)),
    }


def _given_values(body: Mapping[str, Any]) -> dict[str, GivenValue]:
    """Values by entry of the table `retry`; some entries may be given by a field of their own instead."""
    hint = f"{_RETRY_HINT}; for a number alone there is retries"
    value = body.get("retry")
    table = fields.table("retry", {} if value is None else value, RETRY_FIELDS, hint)
    given = {name: GivenValue(f"retry.{name}", value) for name, value in table.items() if value is not None}
    for name, field in RETRY_SHORTHANDS.items():
        if body.get(field) is not None:
            if name in given:
                raise BadField(field, f"conflicts with retry.{name}", "leave one of the two out")
            given[name] = GivenValue(field, body[field])
    return given


def _parse_entries(given: GivenValue, hint: str) -> list[Any]:
    entries = given.value if isinstance(given.value, list) else [given.value]
    if len(entries) > limits.RETRY_CODES_MAX:
        raise BadField(given.field, f"has {len(entries)} entries", f"write at most {limits.RETRY_CODES_MAX}")
    if not all(isinstance(entry, str | int) and not isinstance(entry, bool) for entry in entries):
        raise BadField(given.field, "is not a list of exit codes and kinds of failure", hint)
    return entries


def _parse_codes(field: str, given: list[Any], hint: str) -> tuple[int, ...]:
    found = []
    for code in given:
        try:
            found.append(parse_count(field, code, 1, CODE_MAX))
        except (BadField, ValueError, OverflowError):
            shown = "a number"
            if isinstance(code, str) or abs(code) < 10**9:
                shown = fields.printable(str(code))
            raise BadField(field, f"{shown} is not an exit code that a failure can have", hint) from None
    return tuple(sorted(set(found)))


def _parse_delays(given: Mapping[str, GivenValue]) -> dict[str, int]:
    default = Retry()
    delay_ms = _parse_delay(given.get("delay"), default.delay_ms)
    longest_ms = _parse_delay(given.get("delay_max"), max(default.delay_max_ms, delay_ms))
    if longest_ms < delay_ms:
        problem = f"{longest_ms / 1000:g} s is shorter than the delay of {delay_ms / 1000:g} s"
        raise BadField("retry.delay_max", problem, "write at least the delay, or leave it out")
    jitter = given.get("jitter")
    percent = default.jitter_percent if jitter is None else _parse_percent(jitter)
    return {"delay_ms": delay_ms, "delay_max_ms": longest_ms, "jitter_percent": percent}


def _parse_delay(given: GivenValue | None, default_ms: int) -> int:
    if given is None:
        return default_ms
    return round(
        fields.number(given.field, parse_seconds, given.value, limits.RETRY_DELAY_MS_MAX / 1000) * 1000
    )


def _parse_percent(given: GivenValue) -> int:
    value = given.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        hint = "write 0 for none, 0.2 for up to a fifth shorter, 1 for anything down to nothing"
        raise BadField(given.field, "is not a number from 0 to 1", hint)
    return round(value * 100)
