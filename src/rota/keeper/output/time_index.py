"""Arrival times of a stream's bytes: marks in a file beside it, denser for recent bytes."""

import os
import struct
from bisect import bisect_right
from dataclasses import dataclass, field

SUFFIX = b".times"  # appended to the name of the stream's file
MARK = struct.Struct("<QQ")  # a size of the file, and when it had that size (milliseconds, wall clock)
MARKS_MOST = 8192  # per file, 128 KiB; beyond that older marks are thinned out
AGE_SHARE = 256  # thinning leaves gaps of at most age / AGE_SHARE between old marks, where it had them
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """The marks of a stream's file in their order; both columns are non-decreasing."""

    positions: list[int] = field(default_factory=list)
    at_ms: list[int] = field(default_factory=list)

    def position_at(self, at_ms: int) -> int:
        """How many bytes are known to have arrived by `at_ms`."""
        found = bisect_right(self.at_ms, at_ms)
        return self.positions[found - 1] if found else 0

    def marks_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Marks at positions above `start`, up to `end`."""
        first, last = bisect_right(self.positions, start), bisect_right(self.positions, end)
        return list(zip(self.positions[first:last], self.at_ms[first:last], strict=True))


def parse_marks(data: bytes) -> TimeIndex:
    """Parse marks up to the first partial or out-of-order one, as a crash may leave at the end."""
    complete_bytes = len(data) // MARK.size * MARK.size
    times = TimeIndex()
    for position, at_ms in MARK.iter_unpack(data[:complete_bytes]):
        if times.positions and (position < times.positions[-1] or at_ms < times.at_ms[-1]):
            break
        times.positions.append(position)
        times.at_ms.append(at_ms)
    return times


def append_mark(path: bytes, position: int, at_ms: int) -> int:
    """Append a mark; return the number of marks in the file. OSError: it cannot be written."""
    fd = os.open(path, APPEND, 0o600)
    try:
        size = os.fstat(fd).st_size
        if size % MARK.size:
            os.ftruncate(fd, size - size % MARK.size)
        os.write(fd, MARK.pack(position, at_ms))
        count = size // MARK.size + 1
    finally:
        os.close(fd)
    return _thin(path, at_ms) if count > MARKS_MOST else count


def _thin(path: bytes, now_ms: int) -> int:
    with open(path, "rb") as file:
        times = parse_marks(file.read())
    kept = thinned(list(zip(times.positions, times.at_ms, strict=True)), now_ms)
    beside = path + b".new"
    with open(beside, "wb") as file:
        file.write(b"".join(MARK.pack(*mark) for mark in kept))
    os.replace(beside, path)
    return len(kept)


def thinned(marks: list[tuple[int, int]], now_ms: int) -> list[tuple[int, int]]:
    """Drop marks whose neighbours are close together for their age; the first and the last stay."""
    kept = marks[-1:]
    for mark, older in zip(marks[-2:0:-1], marks[-3::-1], strict=True):
        if kept[-1][1] - older[1] > (now_ms - older[1]) // AGE_SHARE:
            kept.append(mark)
    return [*marks[:1], *kept[::-1]] if len(marks) > 1 else kept
