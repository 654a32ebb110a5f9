"""The name of a time zone -> its UTC offset over time, from the tz database of this machine. [I/O]"""

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from rota.model.amounts import MINUTE_MS
from rota.model.errors import BadField
from rota.rules.cron_schedule import Offset

_UTC = ("UTC", "Etc/UTC")
_NO_DATABASE = "this server has no tz database: install the package tzdata there (also: pip install tzdata)"


@lru_cache(maxsize=1024)
def zone(name: str) -> Offset:
    if name in _UTC:
        return lambda _: 0
    try:
        found = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = "write one as Europe/Zurich, or UTC" if available_timezones() else _NO_DATABASE
        raise BadField("zone", f"'{name[:60]}' is not a time zone known here", hint) from None

    @lru_cache(maxsize=4096)
    def offset(minute: int) -> int:
        ahead = datetime.fromtimestamp(minute * MINUTE_MS // 1000, UTC).astimezone(found).utcoffset()
        return 0 if ahead is None else int(ahead.total_seconds()) // 60

    return offset
