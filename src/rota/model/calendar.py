"""Days since 1970 <-> year, month and day, by the rule of 400 years that repeat."""

from typing import NamedTuple

DAY_MINUTES = 24 * 60
MINUTE_MS = 60_000

_ERA_DAYS = 146_097  # of 400 years
_BEFORE_1970 = 719_468  # days from 1 March of the year 0


class Date(NamedTuple):
    year: int
    month: int  # from 1
    day: int  # from 1


def date_of(days: int) -> Date:
    """Years begin in March here, so that the odd day is their last."""
    era, day_of_era = divmod(days + _BEFORE_1970, _ERA_DAYS)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    from_march = (5 * day_of_year + 2) // 153
    month = from_march + 3 if from_march < 10 else from_march - 9
    return Date(year + era * 400 + (month <= 2), month, day_of_year - (153 * from_march + 2) // 5 + 1)


def weekday_of(days: int) -> int:
    """0 is Sunday; the first day of 1970 was a Thursday."""
    return (days + 4) % 7


def stamp(minutes: int) -> str:
    """20261116T0200Z: minutes since 1970 as they stand in a name."""
    days, of_day = divmod(minutes, DAY_MINUTES)
    date = date_of(days)
    return f"{date.year:04}{date.month:02}{date.day:02}T{of_day // 60:02}{of_day % 60:02}Z"


def written(minutes: int, seconds: int = 0) -> str:
    """2026-11-16T02:00:00Z"""
    days, of_day = divmod(minutes, DAY_MINUTES)
    date = date_of(days)
    clock = f"{of_day // 60:02}:{of_day % 60:02}:{seconds:02}"
    return f"{date.year:04}-{date.month:02}-{date.day:02}T{clock}Z"
