"""Statuses, output and events as they come; a cut stream is taken up again where it stopped."""

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

# The server speaks at least every 10 s on event streams.
SILENCE_SECONDS = 35.0
# A server may be upgraded meanwhile; whoever waits for a job of hours can wait for that too.
REATTACH_SECONDS = 300.0

# Streams named when output is read on: all of them must fit into one address.
MOST_PLACES = 100

GONE = "gone"

Item = TypeVar("Item")
View = TypeVar("View")
Key = tuple[int, int, str]


class LogPart(TypedDict, total=False):
    """Of what was written the last lines, or what came after or before: `10m` ago, or a time and zone."""

    since: str
    until: str
    tail: int


@dataclass(frozen=True)
class LogQuery:
    """Which output: of one task or all, of one attempt or each, of one stream or both; or a part of it."""

    job_id: str
    index: int | None = None
    attempt: int | str | None = None  # `all`: each
    stream: str | None = None
    since: str | None = None  # `10m` before now, or a time with its zone
    until: str | None = None
    tail: int | None = None  # the last lines of each attempt
    offset: int | None = None  # of the one stream of the one task that is asked for

    def fields(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "job_id"}


@dataclass
class LogCursor:
    """How far each stream has been read; what was seen before is passed over."""

    next_offsets: dict[Key, int] = field(default_factory=dict)
    told: set[Key] = field(default_factory=set)  # that nobody knows how much of it is missing

    def places(self) -> list[str]:
        """Where to go on; of very many streams none, and what comes again is passed over."""
        if len(self.next_offsets) > MOST_PLACES:
            return []
        return [
            f"{index}.{attempt}.{stream}:{at}" for (index, attempt, stream), at in self.next_offsets.items()
        ]

    def unread(self, chunk: Chunk) -> Chunk | None:
        key = (chunk.index, chunk.attempt, chunk.stream)
        if chunk.is_gap and not chunk.missing:
            told = key in self.told
            self.told.add(key)
            return None if told else chunk
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
    """Each change of a job, the last one final; `deadline` is an instant of the monotonic clock."""
    return _follow(transport, _following(job_id), deadline)


def submit_job(transport: Transport, spec: Mapping[str, Any], key: str) -> Iterator[JobStatus]:
    """The job as it was taken, then as `follow_job`: all in one request, unless the stream is cut."""
    headers = {**ACCEPT, "Idempotency-Key": key}
    return _follow(transport, ApiRequest("POST", "/v1/jobs", body=spec, headers=headers))


def _follow(transport: Transport, request: ApiRequest, deadline: float | None = None) -> Iterator[JobStatus]:
    ended = False

    def attach(pauses: RetryBackoff) -> Iterator[JobStatus]:
        nonlocal ended, request
        with transport.stream(request, SILENCE_SECONDS, deadline) as lines:
            pauses.attached(REATTACH_SECONDS)
            for message in messages(lines):
                if message.kind in ("job", "status"):
                    status = read(JobStatus, message.value())
                    request = _following(status.id)  # from here on: it is known to be submitted
                    ended = status.is_final
                    yield status
                    if ended:
                        return
                _check(deadline)

    return _again(attach, lambda: ended, transport, deadline)


def _following(job_id: str) -> ApiRequest:
    return ApiRequest("GET", f"/v1/jobs/{segment(job_id)}/follow", headers=ACCEPT)


def read_logs(transport: Transport, query: LogQuery, cursor: LogCursor) -> Iterator[Chunk]:
    """The output there is now."""
    return _again(lambda _: _chunks(transport, query, cursor, None), lambda: True, transport)


def follow_logs(
    transport: Transport, query: LogQuery, cursor: LogCursor, has_ended: Callable[[], bool] | None = None
) -> Iterator[Chunk]:
    """The output until the task, or all tasks, have ended and all of it was read."""
    return _again(
        lambda pauses: _chunks(transport, query, cursor, pauses),
        has_ended or (lambda: _has_ended(transport, query)),
        transport,
    )


def follow_events(transport: Transport, since: str | None, **query: str | None) -> Iterator[Event]:
    """Events as they happen, for ever."""
    last = since

    def attach(pauses: RetryBackoff) -> Iterator[Event]:
        nonlocal last
        headers = ACCEPT | ({"Last-Event-ID": last} if last else {})
        request = ApiRequest("GET", "/v1/events", {**query, "since": last}, headers=headers)
        with transport.stream(request, SILENCE_SECONDS) as lines:
            pauses.attached(REATTACH_SECONDS)
            for message in messages(lines):
                event = read(Event, message.value())
                last = event.seq
                yield event

    return _again(attach, lambda: False, transport)


def follow_entries(
    transport: Transport, path: str, view: type[View], since: str | None, query: Mapping[str, Any]
) -> Iterator[Change[View]]:
    """Entries of a list as they change, for ever; an entry whose telling was cut off is told once more."""
    last = since

    def attach(pauses: RetryBackoff) -> Iterator[Change[View]]:
        nonlocal last
        headers = ACCEPT | ({"Last-Event-ID": last} if last else {})
        request = ApiRequest("GET", path, {**query, "since": last}, headers=headers)
        with transport.stream(request, SILENCE_SECONDS) as lines:
            pauses.attached(REATTACH_SECONDS)
            for message in messages(lines):
                last = message.id or last
                said = message.value()
                yield Change(None, said, last) if message.kind == GONE else Change(read(view, said), {}, last)

    return _again(attach, lambda: False, transport)


def _again(
    attach: Callable[[RetryBackoff], Iterator[Item]],
    has_ended: Callable[[], bool],
    transport: Transport,
    deadline: float | None = None,
) -> Iterator[Item]:
    pauses = RetryBackoff(transport.patience_seconds, transport.on_wait)
    while True:
        problem = Unavailable("unavailable", "the server ended the stream early")
        try:
            yield from attach(pauses)
            if has_ended():
                return
        except Unavailable as error:
            problem = error
        _check(deadline)
        pauses.wait(problem)


def _chunks(
    transport: Transport, query: LogQuery, cursor: LogCursor, pauses: RetryBackoff | None
) -> Iterator[Chunk]:
    """With `pauses` the output is followed, without it is what there is now."""
    follow = pauses is not None
    asked = {**query.fields(), "follow": follow or None, "from": cursor.places()}
    request = ApiRequest("GET", f"/v1/jobs/{segment(query.job_id)}/logs", {"format": "chunks", **asked})
    # Work may be silent for hours; dead peers are noticed by the kernel.
    with transport.stream(request, None if follow else SILENCE_SECONDS) as lines:
        if pauses is not None:
            pauses.attached(REATTACH_SECONDS)
        for line in lines:
            if line.strip():
                chunk = cursor.unread(_chunk(line))
                if chunk is not None:
                    yield chunk


def _chunk(line: bytes) -> Chunk:
    try:
        said = json.loads(line)
        return Chunk(
            index=said["index"],
            attempt=said["attempt"],
            stream=said["stream"],
            offset=said.get("offset", 0),
            data=b64decode(said.get("data", "")),
            missing=said.get("missing", 0),
            reason=said.get("reason"),
            at_ms=said.get("at_ms", 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Broken("internal", "the server sent output in a form this client does not know") from None


def _has_ended(transport: Transport, query: LogQuery) -> bool:
    """A server that shuts down ends its streams politely, too: ask whether the work has ended."""
    path = f"/v1/jobs/{segment(query.job_id)}"
    if query.index is not None:
        return read(Task, transport.call(ApiRequest("GET", f"{path}/tasks/{query.index}"))).is_final
    return read(JobStatus, transport.call(ApiRequest("GET", path))).is_final


def _check(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise TimedOut("timed_out", "the job has not ended in the time given; it goes on")
