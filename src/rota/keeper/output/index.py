"""The index of a job's segments: one line at each attempt's start, one at its end, and time lines.

A time line holds for the lines that follow it. The format is described in `segments`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_START = re.compile(rb"S \d+ \d+ (\d{1,18}) (\d{1,18}) (\d{1,18})\n")
_END = re.compile(rb"E \d+ \d+ (\d{1,18}) (\d{1,18})\n")

_TIME = re.compile(rb"T (\d{1,18})\n")
_EITHER = re.compile(rb"([SE]) (\d{1,18}) (\d{1,18}) (\d{1,18}) (\d{1,18})(?: (\d{1,18}))?\n")


@dataclass(frozen=True, slots=True)
class Extent:
    """An offset in each of the two files of a segment."""

    out_bytes: int
    err_bytes: int


@dataclass(frozen=True, slots=True)
class AttemptStart:
    segment: int
    at: Extent


def start_line(index: int, attempt: int, segment: int, at: Extent) -> bytes:
    return b"S %d %d %d %d %d\n" % (index, attempt, segment, at.out_bytes, at.err_bytes)


def end_line(index: int, attempt: int, at: Extent) -> bytes:
    return b"E %d %d %d %d\n" % (index, attempt, at.out_bytes, at.err_bytes)


def time_line(at_ms: int) -> bytes:
    return b"T %d\n" % at_ms


def find_start(lines: bytes, index: int, attempt: int) -> AttemptStart | None:
    """Where the attempt's output starts. Letters occur at line starts only, so a plain search suffices."""
    found = _START.match(lines, _position(lines, b"S %d %d " % (index, attempt)))
    return AttemptStart(int(found[1]), Extent(int(found[2]), int(found[3]))) if found else None


def find_end(lines: bytes, index: int, attempt: int) -> Extent | None:
    found = _END.match(lines, _position(lines, b"E %d %d " % (index, attempt)))
    return Extent(int(found[1]), int(found[2])) if found else None


def start_ms(lines: bytes, index: int, attempt: int) -> int | None:
    """When the attempt started, by the last time line before its start; None: there is none."""
    return last_ms(lines[: max(0, lines.find(b"S %d %d " % (index, attempt)))])


def end_ms(lines: bytes, index: int, attempt: int) -> int | None:
    return last_ms(lines[: max(0, lines.find(b"E %d %d " % (index, attempt)))])


def last_ms(lines: bytes) -> int | None:
    found = _TIME.match(lines, max(0, lines.rfind(b"T ")))
    return int(found[1]) if found else None


def read_all(lines: bytes) -> Iterator[tuple[int, int, AttemptStart | Extent]]:
    """Starts and ends in their order, each with its task index and attempt number."""
    for found in _EITHER.finditer(lines):
        kind, index, attempt, *numbers = found.groups()
        if kind == b"E":
            yield int(index), int(attempt), Extent(int(numbers[0]), int(numbers[1]))
        elif numbers[2]:
            yield (
                int(index),
                int(attempt),
                AttemptStart(int(numbers[0]), Extent(int(numbers[1]), int(numbers[2]))),
            )


def segments(lines: bytes) -> set[int]:
    """The numbers of all segments that attempts were ever given."""
    return {int(found[1]) for found in _START.finditer(lines)}


def _position(lines: bytes, prefix: bytes) -> int:
    position = lines.find(prefix)
    return position if position >= 0 else len(lines)
