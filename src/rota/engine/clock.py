"""Cluster time: milliseconds that continue from the last committed value by the boot-time clock. [I/O]"""

import time

from rota.model.plan import Instant


class Clock:
    def __init__(self, last_ms: int) -> None:
        # Cluster time continues from the stored time. CLOCK_BOOTTIME
        # neither jumps with the wall clock nor stops in suspend.
        self._offset_ms = last_ms - self._boot_ms()

    def now(self) -> Instant:
        return Instant(self._offset_ms + self._boot_ms(), time.time_ns() // 1_000_000)

    @staticmethod
    def _boot_ms() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
