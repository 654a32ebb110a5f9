"""Cron schedules compared with a scan of every minute of the local clock."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.engine.time_zones import zone
from rota.model.amounts import MINUTE_MS, format_utc
from rota.model.errors import BadField
from rota.rules.cron_schedule import Schedule, between, next_after, parse

ZONES = (
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
)
DAY = 1440
CHANGES = (
    *("2026-03-28", "2026-10-24", "2026-03-07", "2026-10-31", "2018-11-03", "2018-02-17"),
    *("2026-04-04", "2026-10-03", "2024-02-28"),
)


def minute(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) // 60


def matches(schedule: Schedule, local: datetime) -> bool:
    day = local.day in schedule.days
    weekday = local.isoweekday() % 7 in schedule.weekdays
    return (
        local.minute in schedule.minutes
        and local.hour in schedule.hours
        and local.month in schedule.months
        and ((day or weekday) if schedule.either_day else (day and weekday))
    )


def walked(text: str, name: str, after: int, until: int) -> list[int]:
    """The runs of a schedule, found by testing every minute of the local clock."""
    schedule, where = parse(text), ZoneInfo(name)
    minutes = range(after - DAY, until + 1)
    shown = {at: datetime.fromtimestamp(at * 60, where).replace(tzinfo=None, fold=0) for at in minutes}
    seen: set[datetime] = set()
    found: set[int] = set()
    for before, at in pairwise(minutes):
        local = shown[at]
        if matches(schedule, local) and (schedule.by_time or local not in seen):
            found.add(at)
        seen.add(local)
        left_out = shown[before] + timedelta(minutes=1)
        while left_out < local and not schedule.by_time:
            if matches(schedule, left_out):
                found.add(at)
            left_out += timedelta(minutes=1)
    return sorted(at for at in found if after < at <= until)


FIELD = {
    "minute": st.sampled_from(("0", "*", "*/7", "30", "15,45", "5-9", "59")),
    "hour": st.sampled_from(("*", "2", "3", "*/3", "0", "1-3", "23", "0,2")),
    "day": st.sampled_from(("*", "*", "1", "15-31", "*/5", "29")),
    "month": st.sampled_from(("*", "*", "mar", "10,11", "feb")),
    "weekday": st.sampled_from(("*", "*", "sun", "1-5", "7", "sat,sun")),
}
# Around every change of a clock, and anywhere.
STARTS = st.one_of(
    st.sampled_from(
        [
            minute(f"{day}T00:00:00+00:00")
            for day in (
                "2026-03-28",
                "2026-10-24",
                "2026-03-07",
                "2026-10-31",
                "2018-11-03",
                "2018-02-17",
                "2026-04-04",
                "2026-10-03",
                "2024-02-28",
            )
        ]
    ),
    st.integers(minute("2000-01-01T00:00:00+00:00"), minute("2035-01-01T00:00:00+00:00")),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.tuples(*FIELD.values()).map(" ".join), st.sampled_from(ZONES), STARTS, st.integers(1, 3 * DAY))
def test_a_schedule_equals_a_scan_of_every_minute(text: str, name: str, after: int, length: int) -> None:
    assert between(parse(text), zone(name), after, after + length) == walked(
        text, name, after, after + length
    )


@settings(max_examples=100, deadline=None)
@given(st.tuples(*FIELD.values()).map(" ".join), st.sampled_from(ZONES), STARTS)
def test_the_next_instant_is_the_first_of_all_later_ones(text: str, name: str, after: int) -> None:
    found = next_after(parse(text), zone(name), after)

    assert found is not None
    assert found > after
    span = min(found, after + 40 * DAY)
    assert between(parse(text), zone(name), after, span) == ([found] if found <= span else [])


@given(st.integers(0, 100_000), st.integers(0, 1439))
def test_a_schedule_for_a_date_or_weekday_matches_that_minute(days: int, of_day: int) -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days, minutes=of_day)
    by_date = parse(f"{at.minute} {at.hour} {at.day} {at.month} *")
    by_weekday = parse(f"{at.minute} {at.hour} * {at.month} {at.isoweekday() % 7}")

    for schedule in (by_date, by_weekday):
        assert next_after(schedule, zone("UTC"), days * DAY + of_day - 1) == days * DAY + of_day


def test_runs_in_a_skipped_hour_happen_once_right_after_it() -> None:
    """In Zurich 02:00 to 03:00 does not exist on 29 March 2026."""
    after, until = minute("2026-03-28T12:00:00+00:00"), minute("2026-03-29T12:00:00+00:00")
    zurich = zone("Europe/Zurich")

    assert [format_utc(at * MINUTE_MS) for at in between(parse("0,30 2 * * *"), zurich, after, until)] == [
        "2026-03-29T01:00:00Z"
    ]
    assert len(between(parse("*/30 * * * *"), zurich, after, until)) == 48


def test_runs_in_a_repeated_hour_happen_the_first_time() -> None:
    after, until = minute("2026-10-24T12:00:00+00:00"), minute("2026-10-25T12:00:00+00:00")
    zurich = zone("Europe/Zurich")

    assert [format_utc(at * MINUTE_MS) for at in between(parse("30 2 * * *"), zurich, after, until)] == [
        "2026-10-25T00:30:00Z"
    ]
    assert len(between(parse("30 * * * *"), zurich, after, until)) == 24


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not a schedule"),
        ("* * * *", "'* * * *' is not a schedule"),
        ("@reboot", "'@reboot' is not a schedule"),
        ("60 * * * *", "'60' is no minute"),
        ("* 24 * * *", "'24' is no hour"),
        ("* * 0 * *", "'0' is no day"),
        ("* * * 13 *", "'13' is no month"),
        ("* * * * 8", "'8' is no weekday"),
        ("*/0 * * * *", "'*/0' is no minute"),
        ("5-1 * * * *", "'5-1' is no minute"),
        ("1, * * * *", "'' is no minute"),
        ("-1 * * * *", "'-1' is no minute"),
        ("* * * * monday", "'monday' is no weekday"),
        ("٣ * * * *", "'٣' is no minute"),
        ("0 0 30 2 *", "'0 0 30 2 *' names a day that never comes"),
    ],
)
def test_an_invalid_schedule_is_refused_with_its_field(text: str, problem: str) -> None:
    with pytest.raises(BadField) as refused:
        parse(text)

    assert refused.value.detail == f"schedule: {problem}"
    assert refused.value.hint


@pytest.mark.parametrize(
    ("short", "long"), [("@hourly", "0 * * * *"), ("@Weekly", "0 0 * * sun"), ("@yearly", "0 0 1 jan *")]
)
def test_shorthands_stand_for_schedules(short: str, long: str) -> None:
    assert parse(short) == parse(long)


def test_the_next_29th_of_february_is_found() -> None:
    found = next_after(parse("0 12 29 2 *"), zone("UTC"), minute("2096-03-01T00:00:00+00:00"))

    assert found is not None
    assert format_utc(found * MINUTE_MS) == "2104-02-29T12:00:00Z"


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime", "\0", "Europe"])
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(BadField, match="time zone"):
        zone(name)
