"""`2h` from now or before it, or `2026-12-01T08:00:00+01:00` -> wall clock in milliseconds."""

import re
from calendar import monthrange, timegm

from rota.apiserver.spec import fields
from rota.model.amounts import parse_seconds
from rota.model.errors import BadField
from rota.model.limits import TIMEOUT_SECONDS_MAX

PAST_HINT = "write 10m, counted back from now, or a time with its zone: 2026-12-01T08:00:00+01:00"
DEADLINE_HINT = "write 2h, counted from now, or a time with its zone: 2026-12-01T08:00:00+01:00"

_TIME = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[Tt ](?P<hour>\d\d):(?P<minute>\d\d)"
    r"(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
    r"(?P<zone>[Zz]|[+-]\d\d:?\d\d)?",
    re.ASCII,
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
    parts = [int(found[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")]
    if not _is_calendar_date(parts):
        raise BadField(field, f"'{text}' is not in the calendar", hint)
    thousandths = int((found["fraction"] or "0").ljust(3, "0")[:3])
    return (timegm(tuple(parts)) - _zone_offset_seconds(field, found["zone"])) * 1000 + thousandths


def _is_calendar_date(parts: list[int]) -> bool:
    year, month, day, hour, minute, second = parts
    if year < 1970 or not 1 <= month <= 12:
        return False
    return 1 <= day <= monthrange(year, month)[1] and hour < 24 and minute < 60 and second < 60


def _zone_offset_seconds(field: str, zone: str) -> int:
    """Seconds east of Greenwich."""
    if zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        raise BadField(field, f"'{zone}' is not a time zone", DEADLINE_HINT)
    return (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
