"""The kernel's run and wait times of the calling thread -> the part of a core that it can have. [I/O]

A thread that waits for a core beside other processes can do less, and its clients wait although it seems idle
by its CPU time. The kernel counts both times for each thread.
"""

from pathlib import Path
from typing import NamedTuple

_COUNTED = Path("/proc/thread-self/schedstat")
_LEAST = 0.01


class Counted(NamedTuple):
    """Nanoseconds since the start of the thread."""

    ran: int
    waited: int


def counted() -> Counted | None:
    """The times of the calling thread; None if the kernel does not count them."""
    try:
        ran, waited, _ = _COUNTED.read_text().split()
    except (OSError, ValueError):
        return None
    return Counted(int(ran), int(waited))


def capacity(before: Counted | None, after: Counted | None) -> float:
    """The part of a core between two samples; 1 if the thread never waited for one, or if that is unknown."""
    if before is None or after is None or after.ran <= before.ran:
        return 1.0
    ran, waited = after.ran - before.ran, max(0, after.waited - before.waited)
    return max(_LEAST, ran / (ran + waited))
