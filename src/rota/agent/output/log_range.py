"""A log request by lines or by time -> the byte range to send. [I/O]

`--tail N` over both streams counts lines in the order of arrival, by the marks of `time_index`. Only line
ends are looked at, and only as far back as necessary.
"""

import asyncio
from itertools import groupby
from typing import NamedTuple

from rota.agent.output.log_files import AttemptOutput
from rota.wire.generated import agent_pb2 as pb

_STREAMS = ("stdout", "stderr")
_BLOCK_BYTES = 1 << 20
_LAST_MS = 1 << 62


class LogRange(NamedTuple):
    start: int
    end: int | None  # None: to the end of the output


class _Span(NamedTuple):
    """Bytes that arrived between two time marks."""

    at_ms: int
    stream: str
    start: int
    end: int


async def log_range(output: AttemptOutput, request: pb.OpenLog, now_ms: int) -> LogRange:
    bounds = _by_time(output, request, request.stream, now_ms)
    if not request.HasField("tail_lines"):
        return bounds
    streams = _STREAMS if request.tail_of_both else (request.stream,)
    among = {name: _closed(output, name, _by_time(output, request, name, now_ms)) for name in streams}
    starts = await _last_lines(output, among, request.tail_lines)
    return LogRange(starts[request.stream], bounds.end)


def _by_time(output: AttemptOutput, request: pb.OpenLog, name: str, now_ms: int) -> LogRange:
    start = request.offset if name == request.stream else 0
    if request.since_ms:
        start = max(start, output.arrived_by(name, request.since_ms))
    is_over = 0 < request.until_ms < now_ms
    return LogRange(start, output.arrived_by(name, request.until_ms) if is_over else None)


def _closed(output: AttemptOutput, name: str, bounds: LogRange) -> LogRange:
    """The range with an end; that of a live attempt is its current size."""
    written_bytes = output.end(name)
    available = output.stream(name).size() if written_bytes is None else written_bytes
    end = available if bounds.end is None else min(available, bounds.end)
    return LogRange(min(bounds.start, end), end)


async def _last_lines(output: AttemptOutput, among: dict[str, LogRange], count: int) -> dict[str, int]:
    """Where the last `count` lines of all streams together start, in order of arrival."""
    if not count:
        return {name: bounds.end or 0 for name, bounds in among.items()}
    starts = {name: bounds.start for name, bounds in among.items()}
    left = max(0, count - sum(_is_open(output, name, bounds) for name, bounds in among.items()))
    done: set[str] = set()
    for span in reversed(_spans(output, among)):
        if span.stream not in done:
            found, left = await _search_back(output, span, left)
            if found is not None:
                starts[span.stream] = found
                done.add(span.stream)
    return starts


def _spans(output: AttemptOutput, among: dict[str, LogRange]) -> list[_Span]:
    """Spans of all streams in order of arrival; neighbours of one stream are joined, holes are left out."""
    spans: list[_Span] = []
    for name, (start, end) in among.items():
        assert end is not None
        at = output.stream(name).kept_from(start)
        for until, at_ms in (*output.stream(name).times_between(at, end), (end, _LAST_MS)):
            if until > at:
                spans.append(_Span(at_ms, name, at, until))
                at = until
    spans.sort(key=lambda span: span.at_ms)  # stable: at equal times stdout comes first
    grouped = [list(group) for _, group in groupby(spans, key=lambda span: span.stream)]
    return [group[-1]._replace(start=group[0].start) for group in grouped]


async def _search_back(output: AttemptOutput, span: _Span, left: int) -> tuple[int | None, int]:
    """Search a span backwards for the start of the last `left` lines.

    Returns the offset, or None and how many lines are still to be found in earlier spans.
    """
    stream, end = output.stream(span.stream), span.end
    while end > span.start:
        start = max(span.start, end - _BLOCK_BYTES)
        data = stream.bytes_at(start, end - start)
        lines = data.count(b"\n")
        if lines > left:
            at = len(data)
            for _ in range(left + 1):
                at = data.rfind(b"\n", 0, at)
            return start + at + 1, 0
        left, end = left - lines, start
        await asyncio.sleep(0)  # a log may be long: let other tasks of the agent run
    return None, left


def _is_open(output: AttemptOutput, name: str, bounds: LogRange) -> bool:
    """Whether the range ends within a line: then that partial line counts as one."""
    if bounds.end is None or bounds.end <= bounds.start:
        return False
    return output.stream(name).bytes_at(bounds.end - 1, 1) not in (b"\n", b"")
