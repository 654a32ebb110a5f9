"""A cron schedule of five fields + the offsets of a time zone -> its instants.

All instants are whole minutes since 1970, UTC. When a zone's clock is set forward, an instant in the skipped
minutes runs once, right after them; when it is set back, an instant at a fixed hour runs the first time only.
Schedules whose hour field starts with * follow elapsed time: they skip the skipped minutes, and run in both
of the repeated hours.
"""

from collections.abc import Callable, Iterator
from datetime import date
from functools import lru_cache
from typing import NamedTuple

from rota.model.errors import BadField

Offset = Callable[[int], int]  # minute, UTC -> minutes that the local clock is ahead
Zones = Callable[[str], Offset]  # name of a zone -> its offsets; raises BadField if unknown

DAY_MINUTES = 24 * 60
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
SEARCHED_DAYS = 9 * 366  # 29 February is at most eight years away
_HINT = "write '*/5 * * * *' (minute hour day month weekday), or @hourly, @daily, @weekly, @monthly, @yearly"
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()  # names of the values from `low` on


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)


class Schedule(NamedTuple):
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either_day: bool  # day and weekday are both restricted: one match is enough
    by_time: bool  # it follows elapsed time, not the hours of the clock


@lru_cache(maxsize=4096)
def parse(text: str) -> Schedule:
    """Parse a schedule; raises BadField, which names the wrong field."""
    words = _SHORT.get(text.strip().lower(), text).lower().split()
    if len(words) != len(_FIELDS):
        raise BadField("schedule", f"'{text[:60]}' is not a schedule", _HINT)
    minutes, hours, days, months, weekdays = (
        _values(field, word) for field, word in zip(_FIELDS, words, strict=True)
    )
    restricted = not words[2].startswith("*") and not words[4].startswith("*")
    by_time = words[1].startswith("*")
    found = frozenset(day % 7 for day in weekdays)
    schedule = Schedule(
        tuple(sorted(minutes)), tuple(sorted(hours)), days, months, found, restricted, by_time
    )
    # 31 February is refused at submit: such a cron would search nine years of days at every check.
    if next_after(schedule, lambda _: 0, 0) is None:
        raise BadField("schedule", f"'{text[:60]}' names a day that never comes", "write a day its month has")
    return schedule


def next_after(schedule: Schedule, offset: Offset, after: int) -> int | None:
    """The first instant later than `after`; None: none within SEARCHED_DAYS."""
    today = (after + offset(after)) // DAY_MINUTES
    # From the day before: near midnight a change of the clock can move an instant into the next day.
    for day in range(today - 1, today + SEARCHED_DAYS):
        if not _is_planned(schedule, day):
            continue
        midnight = day * DAY_MINUTES
        ahead = offset(midnight - 2 * DAY_MINUTES)
        if ahead == offset(midnight + 3 * DAY_MINUTES):  # no clock change near this day
            first = _first_of_day(schedule, after + ahead - midnight)
            if first is not None:
                return midnight + first - ahead
            continue
        # Around midnight a clock may be set back into the day before.
        found = (*_of_day(schedule, offset, day), *_of_day(schedule, offset, day + 1))
        later = [at for at in found if at > after]
        if later:
            return min(later)
    return None


def _first_of_day(schedule: Schedule, after: int) -> int | None:
    """The first scheduled minute of a day that is later than `after`."""
    for hour in schedule.hours:
        if hour * 60 + 59 > after:
            for minute in schedule.minutes:
                if hour * 60 + minute > after:
                    return hour * 60 + minute
    return None


def between(schedule: Schedule, offset: Offset, after: int, until: int) -> list[int]:
    """All instants later than `after`, up to and including `until`."""
    if until <= after:
        return []
    first = (after + offset(after)) // DAY_MINUTES - 1
    last = (until + offset(until)) // DAY_MINUTES + 1
    # A set: at a clock change two local times may map to the same instant, which must run once.
    found = {at for day in range(first, last + 1) for at in _of_day(schedule, offset, day)}
    return sorted(at for at in found if after < at <= until)


def _is_planned(schedule: Schedule, day: int) -> bool:
    on = date.fromordinal(_EPOCH_ORDINAL + day)
    if on.month not in schedule.months:
        return False
    in_month, in_week = on.day in schedule.days, on.isoweekday() % 7 in schedule.weekdays
    return in_month or in_week if schedule.either_day else in_month and in_week


def _of_day(schedule: Schedule, offset: Offset, day: int) -> Iterator[int]:
    if not _is_planned(schedule, day):
        return
    for hour in schedule.hours:
        for minute in schedule.minutes:
            yield from _when(schedule, offset, day * DAY_MINUTES + hour * 60 + minute)


def _when(schedule: Schedule, offset: Offset, local: int) -> tuple[int, ...]:
    """Instants at which the local clock shows this minute: usually one, 0 or 2 at a clock change."""
    before, later = offset(local - DAY_MINUTES), offset(local + DAY_MINUTES)
    if before == later:
        return (local - before,)
    shown = sorted(local - ahead for ahead in sorted({before, later}) if offset(local - ahead) == ahead)
    if shown:
        return tuple(shown) if schedule.by_time else (shown[0],)
    return () if schedule.by_time else (_change(offset, local),)


def _change(offset: Offset, local: int) -> int:
    """The first minute with the new offset, around a local time that is skipped."""
    low, high = local - DAY_MINUTES, local + DAY_MINUTES
    before = offset(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset(middle) == before else (low, middle)
    return high


def _values(field: _Field, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        found |= _part(field, part)
    return frozenset(found)


def _part(field: _Field, text: str) -> set[int]:
    """`*`, `5`, `mon-fri`, `*/10`, `8-18/2` or `5/15`."""
    span, sign, each = text.partition("/")
    if sign and not (each.isascii() and each.isdigit() and 0 < int(each[:4]) <= field.high):
        raise _wrong(field, text)
    first, dash, last = span.partition("-")
    if span == "*":
        low, high = field.low, min(field.high, 6) if field.name == "weekday" else field.high
    else:
        low = _value(field, first, text)
        high = _value(field, last, text) if dash else field.high if sign else low
    if low > high:
        raise _wrong(field, text)
    return set(range(low, high + 1, int(each) if sign else 1))


def _value(field: _Field, word: str, text: str) -> int:
    if word in field.words:
        return field.words.index(word) + field.low
    if not (word.isascii() and word.isdigit() and len(word) <= 2 and field.low <= int(word) <= field.high):
        raise _wrong(field, text)
    return int(word)


def _wrong(field: _Field, text: str) -> BadField:
    words = f", or {field.words[0]} to {field.words[-1]}" if field.words else ""
    problem = f"'{text[:30]}' is no {field.name}"
    return BadField("schedule", problem, f"write {field.low} to {field.high}{words}, as 5, 1-5, */2 or 1,3")
