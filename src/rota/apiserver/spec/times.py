"""`2h` from now or before it, or `2026-12-01T08:00:00+01:00` -> wall clock in milliseconds."""

import re
from datetime import UTC, datetime, timedelta

from rota.apiserver.spec import fields
from rota.model.amounts import EPOCH, parse_seconds
from rota.model.errors import BadField
from rota.model.limits import TIMEOUT_SECONDS_MAX

PAST_HINT = "write 10m, counted back from now, or a time with its zone: 2026-12-01T08:00:00+01:00"
DEADLINE_HINT = "write 2h, counted from now, or a time with its zone: 2026-12-01T08:00:00+01:00"

# The accepted subset of ISO 8601: what fromisoformat() reads beyond it differs between versions of Python.
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):\d\d(:\d\d(\.\d{1,9})?)?(?P<zone>[Zz]|[+-]\d\d:?[0-5]\d)?", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d.*", re.ASCII | re.DOTALL)


def parse_deadline(field: str, value: object, wall_ms: int) -> int:
    if isinstance(value, str) and _DATE.fullmatch(value.strip()[:40]):
        at_ms = _parse_timestamp(field, value.strip()[:40])
        if at_ms <= wall_ms:
            raise BadField(field, f"{value.strip()} is over", DEADLINE_HINT)
        return at_ms
    seconds = fields.number(field, _parse_duration, value)
    if seconds == 0:
        raise BadField(field, "0 s leaves no time to run", DEADLINE_HINT)
    return wall_ms + round(seconds * 1000)


def parse_past_time(field: str, value: str, wall_ms: int) -> int:
    """In the past, unless a time is given; never 0."""
    text = value.strip()[:40]
    if _DATE.fullmatch(text):
        return max(1, _parse_timestamp(field, text, PAST_HINT))
    try:
        seconds = fields.number(field, parse_seconds, text, TIMEOUT_SECONDS_MAX)
    except BadField as problem:
        raise BadField(field, problem.detail.partition(": ")[2], PAST_HINT) from None
    return max(1, wall_ms - round(seconds * 1000))


def _parse_duration(field: str, value: object) -> float:
    try:
        return parse_seconds(field, value, TIMEOUT_SECONDS_MAX)
    except BadField as problem:
        raise BadField(field, problem.detail.partition(": ")[2], DEADLINE_HINT) from None


def _parse_timestamp(field: str, text: str, hint: str = DEADLINE_HINT) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise BadField(field, f"'{fields.printable(text)}' is not a time", hint)
    if found["zone"] is None:
        raise BadField(field, f"'{text}' has no time zone", hint)
    try:
        at = datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadField(field, f"'{text}' is not in the calendar", hint) from None
    if int(text[:4]) < 1970:
        raise BadField(field, f"'{text}' is before 1970", hint)
    return (at - EPOCH) // timedelta(milliseconds=1)
