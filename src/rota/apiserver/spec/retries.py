"""How often, for what and after which pauses a job is tried again, as said -> its retries and its Retry."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.apiserver.spec import fields
from rota.model import limits
from rota.model.amounts import parse_count, parse_seconds
from rota.model.errors import BadField
from rota.model.recovery import Failure, Retry

SHORTHANDS = {"attempts": "retries", "on": "retry_on", "fail_on": "fail_on"}  # of the table's entries
TABLE_FIELDS = (*SHORTHANDS, "delay", "delay_max", "jitter")
CODE_MAX = 255  # what a process can end with
_FAILURES = list(Failure)
_TABLE_HINT = 'write {"attempts": 3, "on": [75, "oom"], "fail_on": [2], "delay": "5s"}, or some of these'
_ON_HINT = f"write exit codes from 1 to {CODE_MAX}, or any of: {', '.join(Failure)}"
_FAIL_HINT = f"write exit codes from 1 to {CODE_MAX}"


class GivenValue(NamedTuple):
    """A value, and by which field it was said."""

    field: str
    value: Any


def parse_retries(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a JobSpec."""
    said = _given_values(body)
    times = said.get("attempts", GivenValue("retries", 0))
    on, fail_on = said.get("on", GivenValue("retry_on", [])), said.get("fail_on", GivenValue("fail_on", []))
    named = _parse_entries(on, _ON_HINT)
    codes = _parse_codes(on.field, [one for one in named if one not in _FAILURES], _ON_HINT)
    never = _parse_codes(fail_on.field, _parse_entries(fail_on, _FAIL_HINT), _FAIL_HINT)
    for code in never:
        if code in codes:
            raise BadField(
                fail_on.field, f"{code} is in {on.field} as well", "leave it out of one of the two"
            )
    failures = tuple(Failure(one) for one in dict.fromkeys(named) if one in _FAILURES)
    return {
        "retries": fields.number(times.field, parse_count, times.value, 0, limits.RETRIES_MAX),
        "retry": Retry(failures, codes, never, **_parse_delays(said)),
    }


def _given_values(body: Mapping[str, Any]) -> dict[str, GivenValue]:
    """By the names of the table, of which some have a field of their own."""
    table = body.get("retry")
    if table is None:
        table = {}
    if not isinstance(table, dict):
        raise BadField("retry", "is not an object", f"{_TABLE_HINT}; for a number alone there is retries")
    for name in table:
        if name not in TABLE_FIELDS:
            raise BadField(f"retry.{fields.printable(str(name))}", "is not a known field", _TABLE_HINT)
    said = {name: GivenValue(f"retry.{name}", value) for name, value in table.items() if value is not None}
    for name, field in SHORTHANDS.items():
        if body.get(field) is not None:
            if name in said:
                raise BadField(field, f"stands beside retry.{name}", "leave one of the two out")
            said[name] = GivenValue(field, body[field])
    return said


def _parse_entries(said: GivenValue, hint: str) -> list[Any]:
    given = said.value if isinstance(said.value, list) else [said.value]
    if len(given) > limits.RETRY_CODES_MAX:
        raise BadField(said.field, f"has {len(given)} entries", f"write at most {limits.RETRY_CODES_MAX}")
    if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in given):
        raise BadField(said.field, "is not a list of exit codes and words", hint)
    return given


def _parse_codes(field: str, given: list[Any], hint: str) -> tuple[int, ...]:
    found = []
    for one in given:
        try:
            found.append(parse_count(field, one, 1, CODE_MAX))
        except (BadField, ValueError, OverflowError):
            shown = fields.printable(one) if isinstance(one, str) else one if abs(one) < 10**9 else "a number"
            raise BadField(field, f"{shown} is not an exit code that a failure can have", hint) from None
    return tuple(sorted(set(found)))


def _parse_delays(said: Mapping[str, GivenValue]) -> dict[str, int]:
    plain = Retry()
    delay_ms = _parse_delay(said.get("delay"), plain.delay_ms)
    longest_ms = _parse_delay(said.get("delay_max"), max(plain.delay_max_ms, delay_ms))
    if longest_ms < delay_ms:
        problem = f"{longest_ms / 1000:g} s is shorter than the delay of {delay_ms / 1000:g} s"
        raise BadField("retry.delay_max", problem, "write at least the delay, or leave it out")
    jitter = said.get("jitter")
    percent = plain.jitter_percent if jitter is None else _parse_percent(jitter)
    return {"delay_ms": delay_ms, "delay_max_ms": longest_ms, "jitter_percent": percent}


def _parse_delay(said: GivenValue | None, otherwise_ms: int) -> int:
    if said is None:
        return otherwise_ms
    return round(
        fields.number(said.field, parse_seconds, said.value, limits.RETRY_DELAY_MS_MAX / 1000) * 1000
    )


def _parse_percent(said: GivenValue) -> int:
    value = said.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        hint = "write 0 for none, 0.2 for up to a fifth shorter, 1 for anything down to nothing"
        raise BadField(said.field, "is not a number from 0 to 1", hint)
    return round(value * 100)
