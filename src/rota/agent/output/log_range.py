"""The last lines, or what arrived since a time and until another -> from which byte to which. [I/O]

Of the bytes nothing is read but where lines end.
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
    end: int | None  # None: as far as there is something


class _Span(NamedTuple):
    """Bytes that arrived between two marks."""

    at_ms: int
    stream: str
    start: int
    end: int


async def log_range(written: AttemptOutput, request: pb.OpenLog, now_ms: int) -> LogRange:
    asked = _by_time(written, request, request.stream, now_ms)
    if not request.HasField("tail_lines"):
        return asked
    streams = _STREAMS if request.tail_of_both else (request.stream,)
    among = {name: _closed(written, name, _by_time(written, request, name, now_ms)) for name in streams}
    starts = await _last_lines(written, among, request.tail_lines)
    return LogRange(starts[request.stream], asked.end)


def _by_time(written: AttemptOutput, request: pb.OpenLog, name: str, now_ms: int) -> LogRange:
    start = request.offset if name == request.stream else 0
    if request.since_ms:
        start = max(start, written.arrived_by(name, request.since_ms))
    is_over = 0 < request.until_ms < now_ms
    return LogRange(start, written.arrived_by(name, request.until_ms) if is_over else None)


def _closed(written: AttemptOutput, name: str, asked: LogRange) -> LogRange:
    """With an end, which for a live attempt is where it is now."""
    written_bytes = written.end(name)
    there = written.stream(name).size() if written_bytes is None else written_bytes
    end = there if asked.end is None else min(there, asked.end)
    return LogRange(min(asked.start, end), end)


async def _last_lines(written: AttemptOutput, among: dict[str, LogRange], count: int) -> dict[str, int]:
    """Where the last lines begin, of all streams together by the time they arrived."""
    if not count:
        return {name: asked.end or 0 for name, asked in among.items()}
    starts = {name: asked.start for name, asked in among.items()}
    left = max(0, count - sum(_is_open(written, name, asked) for name, asked in among.items()))
    done: set[str] = set()
    for span in reversed(_spans(written, among)):
        if span.stream not in done:
            found, left = await _search_back(written, span, left)
            if found is not None:
                starts[span.stream] = found
                done.add(span.stream)
    return starts


def _spans(written: AttemptOutput, among: dict[str, LogRange]) -> list[_Span]:
    """In the order in which they arrived; what is gone is left out."""
    spans: list[_Span] = []
    for name, (start, end) in among.items():
        assert end is not None
        at = written.stream(name).kept_from(start)
        for until, at_ms in (*written.stream(name).times_between(at, end), (end, _LAST_MS)):
            if until > at:
                spans.append(_Span(at_ms, name, at, until))
                at = until
    spans.sort(key=lambda span: span.at_ms)  # and of one time stdout comes first
    grouped = [list(group) for _, group in groupby(spans, key=lambda span: span.stream)]
    return [group[-1]._replace(start=group[0].start) for group in grouped]


async def _search_back(written: AttemptOutput, span: _Span, left: int) -> tuple[int | None, int]:
    """Behind the line end after which there are `left` more; None: and how many are still to be found."""
    stream, end = written.stream(span.stream), span.end
    while end > span.start:
        begin = max(span.start, end - _BLOCK_BYTES)
        data = stream.bytes_at(begin, end - begin)
        lines = data.count(b"\n")
        if lines > left:
            at = len(data)
            for _ in range(left + 1):
                at = data.rfind(b"\n", 0, at)
            return begin + at + 1, 0
        left, end = left - lines, begin
        await asyncio.sleep(0)  # it may be much, and others want to go on
    return None, left


def _is_open(written: AttemptOutput, name: str, asked: LogRange) -> bool:
    """Whether the last line has no end."""
    if asked.end is None or asked.end <= asked.start:
        return False
    return written.stream(name).bytes_at(asked.end - 1, 1) not in (b"\n", b"")
