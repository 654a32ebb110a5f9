"""Many equal faults of clients -> one log line per reason and interval, with a count. [I/O]"""

import asyncio

import structlog

from rota.model.limits import TALLY_KINDS_MAX, TALLY_SECONDS

log = structlog.get_logger("rota.server")


class LogThrottle:
    """Logs the first fault of an interval immediately, and the others as counts when it ends."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._counts: dict[str, int] = {}
        self._last_from: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, address: str, reason: str) -> None:
        if self._timer is None:
            log.warning(self._event, reason=reason, count=1, last_from=address)
            self._timer = asyncio.get_running_loop().call_later(TALLY_SECONDS, self._log_counts)
            return
        if reason not in self._counts and len(self._counts) >= TALLY_KINDS_MAX:
            reason = "others"
        self._counts[reason] = self._counts.get(reason, 0) + 1
        self._last_from[reason] = address

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._log_counts()

    def _log_counts(self) -> None:
        self._timer = None
        for reason, count in self._counts.items():
            log.warning(self._event, reason=reason, count=count, last_from=self._last_from[reason])
        self._counts.clear()
        self._last_from.clear()
