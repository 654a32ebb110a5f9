"""Streams of statuses, output and events; an interrupted stream resumes where it stopped."""

import json
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, TypeVar

from rota.client.backoff import RetryBackoff
from rota.client.errors import Broken, TimedOut, Unavailable
from rota.client.sse import ACCEPT, messages
from rota.client.transport import ApiRequest, Transport, segment
from rota.client.views import Change, Chunk, Event, JobStatus, Task, read

# The server sends at least a keepalive every 10 s on event streams.
SILENCE_SECONDS = 35.0
# A client that waits hours for a job can also wait for the upgrade of a server.
REATTACH_SECONDS = 300.0

# Positions sent when output is resumed: all of them must fit into one URL.
POSITIONS_MAX = 100

GONE = "gone"

Item = TypeVar("Item")
View = TypeVar("View")
Key = tuple[int, int, str]


class LogPart(TypedDict, total=False):
    """Part of the output: the last `tail` lines, or from `since` to `until` (`10m` ago, or time and zone)."""

    since: str
    until: str
    tail: int


@dataclass(frozen=True)
class LogQuery:
    """Selects output: of one task or all, of one attempt or each, of one stream or both; or a part of it."""

    job_id: str
    index: int | None = None
    attempt: int | str | None = None  # `all`: each attempt
    stream: str | None = None
    since: str | None = None  # `10m` ago, or a time with zone
    until: str | None = None
    tail: int | None = None  # the last lines of each attempt
    offset: int | None = None  # first byte; only with one task and one stream

    def fields(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "job_id"}


@dataclass
class LogCursor:
    """How far each stream has been read; bytes received twice are dropped."""

    next_offsets: dict[Key, int] = field(default_factory=dict)
    reported_gaps: set[Key] = field(default_factory=set)  # streams with a gap of unknown size

    def positions(self) -> list[str]:
        """Where to resume each stream; empty if there are too many, and then the overlap is dropped."""
        # Without positions the server sends everything again, and `unread` drops what was received.
        if len(self.next_offsets) > POSITIONS_MAX:
            return []
        return [
            f"{index}.{attempt}.{stream}:{at}" for (index, attempt, stream), at in self.next_offsets.items()
        ]

    def unread(self, chunk: Chunk) -> Chunk | None:
        """The part of a chunk that was not read before, or None; advances the cursor."""
        key = (chunk.index, chunk.attempt, chunk.stream)
        # A gap of unknown size has no offset to compare, so it is reported once per stream.
        if chunk.is_gap and not chunk.missing:
            is_known = key in self.reported_gaps
            self.reported_gaps.add(key)
            return None if is_known else chunk
        seen = self.next_offsets.get(key, 0)
        end = chunk.offset + chunk.missing + len(chunk.data)
        if end <= seen:
            return None
        self.next_offsets[key] = end
        skip = max(0, seen - chunk.offset)
        if chunk.missing:
            return replace(chunk, offset=chunk.offset + skip, missing=chunk.missing - skip)
        return replace(chunk, offset=chunk.offset + skip, data=chunk.data[skip:]) if skip else chunk


def follow_job(transport: Transport, job_id: str, deadline: float | None = None) -> Iterator[JobStatus]:
    """The status of a job now and after each change; the last one is final. `deadline`: monotonic clock."""
    return _follow(transport, _follow_request(job_id), deadline)


def submit_job(transport: Transport, spec: Mapping[str, Any], key: str) -> Iterator[JobStatus]:
    """Submit a job and follow it as `follow_job` does, in one request unless the stream is interrupted."""
    headers = {**ACCEPT, "Idempotency-Key": key}
    return _follow(transport, ApiRequest("POST", "/v1/jobs", body=spec, headers=headers))


def _follow(transport: Transport, request: ApiRequest, deadline: float | None = None) -> Iterator[JobStatus]:
    ended = False

    def attach(backoff: RetryBackoff) -> Iterator[JobStatus]:
        nonlocal ended, request
        with transport.stream(request, SILENCE_SECONDS, deadline) as lines:
            # The server has accepted the stream: later failures are interruptions, which are retried for
            # longer.
            backoff.attached(REATTACH_SECONDS)
            for message in messages(lines):
                if message.kind in ("job", "status"):
                    status = read(JobStatus, message.value())
                    request = _follow_request(status.id)  # the submit is durable: resume by following the job
                    ended = status.is_final
                    yield status
                    if ended:
                        return
                _check_deadline(deadline)

    return _resuming(attach, lambda: ended, transport, deadline)


def _follow_request(job_id: str) -> ApiRequest:
    return ApiRequest("GET", f"/v1/jobs/{segment(job_id)}/follow", headers=ACCEPT)


def read_logs(transport: Transport, query: LogQuery, cursor: LogCursor) -> Iterator[Chunk]:
    """The output so far."""
    return _resuming(lambda _: _chunks(transport, query, cursor, None), lambda: True, transport)


def follow_logs(
    transport: Transport, query: LogQuery, cursor: LogCursor, has_ended: Callable[[], bool] | None = None
) -> Iterator[Chunk]:
    """The output as it is written, until the task, or every task, has ended."""
    return _resuming(
        lambda backoff: _chunks(transport, query, cursor, backoff),
        has_ended or (lambda: _has_ended(transport, query)),
        transport,
    )


def follow_events(transport: Transport, since: str | None, **query: str | None) -> Iterator[Event]:
    """Events as they happen, without end."""
    last = since

    def attach(backoff: RetryBackoff) -> Iterator[Event]:
        nonlocal last
        # Resumes after the last event received, also at another server: cursors are valid on every server.
        headers = ACCEPT | ({"Last-Event-ID": last} if last else {})
        request = ApiRequest("GET", "/v1/events", {**query, "since": last}, headers=headers)
        with transport.stream(request, SILENCE_SECONDS) as lines:
            backoff.attached(REATTACH_SECONDS)
            for message in messages(lines):
                event = read(Event, message.value())
                last = event.seq
                yield event

    return _resuming(attach, lambda: False, transport)


def follow_entries(
    transport: Transport, path: str, view: type[View], since: str | None, query: Mapping[str, Any]
) -> Iterator[Change[View]]:
    """Changes of the entries of a list, without end; a change that was cut off is sent again."""
    last = since

    def attach(backoff: RetryBackoff) -> Iterator[Change[View]]:
        nonlocal last
        headers = ACCEPT | ({"Last-Event-ID": last} if last else {})
        request = ApiRequest("GET", path, {**query, "since": last}, headers=headers)
        with transport.stream(request, SILENCE_SECONDS) as lines:
            backoff.attached(REATTACH_SECONDS)
            for message in messages(lines):
                # Only the last of several entries of one event carries an id, so that a
                # resume never skips the others.
                last = message.id or last
                value = message.value()
                if message.kind == GONE:
                    yield Change(None, value, last)
                else:
                    yield Change(read(view, value), {}, last)

    return _resuming(attach, lambda: False, transport)


def _resuming(
    attach: Callable[[RetryBackoff], Iterator[Item]],
    has_ended: Callable[[], bool],
    transport: Transport,
    deadline: float | None = None,
) -> Iterator[Item]:
    backoff = RetryBackoff(transport.patience_seconds, transport.on_wait)
    while True:
        # A stream that ends without its final status is no success: a server that stops
        # ends all its streams normally.
        problem = Unavailable("unavailable", "the server ended the stream early")
        try:
            yield from attach(backoff)
            if has_ended():
                return
        except Unavailable as error:
            problem = error
        _check_deadline(deadline)
        backoff.wait(problem)


def _chunks(
    transport: Transport, query: LogQuery, cursor: LogCursor, backoff: RetryBackoff | None
) -> Iterator[Chunk]:
    """One request for output: followed if `backoff` is given, else the output so far."""
    follow = backoff is not None
    options = {**query.fields(), "follow": follow or None, "from": cursor.positions()}
    request = ApiRequest("GET", f"/v1/jobs/{segment(query.job_id)}/logs", {"format": "chunks", **options})
    # A task may print nothing for hours; TCP keepalive detects dead peers.
    with transport.stream(request, None if follow else SILENCE_SECONDS) as lines:
        if backoff is not None:
            backoff.attached(REATTACH_SECONDS)
        for line in lines:
            if line.strip():
                chunk = cursor.unread(_chunk(line))
                if chunk is not None:
                    yield chunk


def _chunk(line: bytes) -> Chunk:
    try:
        fields_sent = json.loads(line)
        return Chunk(
            index=fields_sent["index"],
            attempt=fields_sent["attempt"],
            stream=fields_sent["stream"],
            offset=fields_sent.get("offset", 0),
            data=b64decode(fields_sent.get("data", "")),
            missing=fields_sent.get("missing", 0),
            reason=fields_sent.get("reason"),
            at_ms=fields_sent.get("at_ms", 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Broken(
            "internal", "the server sent output in a format that this client does not know"
        ) from None


def _has_ended(transport: Transport, query: LogQuery) -> bool:
    """Whether the task or job has ended: a server that shuts down also ends its streams normally."""
    path = f"/v1/jobs/{segment(query.job_id)}"
    if query.index is not None:
        return read(Task, transport.call(ApiRequest("GET", f"{path}/tasks/{query.index}"))).is_final
    return read(JobStatus, transport.call(ApiRequest("GET", path))).is_final


def _check_deadline(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise TimedOut("timed_out", "the job has not ended within the timeout; it keeps running")
