"""The route of logs: parses which output is asked for, and streams it as text or as chunks. [I/O]"""

import re

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.api import wall_ms
from rota.apiserver.lookup import find_job, task_index
from rota.apiserver.responses import api_of, caller_of
from rota.apiserver.spec.fields import parse_past_time
from rota.apiserver.streams.log_selection import STREAMS, LogSelection, StreamKey, require_attempt
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.errors import BadField
from rota.model.messages import LogWindow

RESUME_POINTS_MAX = 1000  # streams to resume: more do not fit into one URL
TAIL_LINES_MAX = 10**9
_RESUME_POINT = re.compile(r"(\d{1,8})\.(\d{1,10})\.(stdout|stderr):(\d{1,18})", re.ASCII)
_FROM_HINT = "write INDEX.ATTEMPT.STREAM:OFFSET, as 0.1.stdout:4096"


async def read_logs(request: Request) -> Response:
    api, query = api_of(request), request.query_params
    form = query.get("format", "text")
    if form not in ("text", "chunks"):
        raise BadField("format", f"'{form[:20]}' is not a format", "write chunks, or leave it out")

    def read(mirror: Mirror) -> LogSelection:
        job = find_job(mirror, request.path_params["ref"], caller_of(request)).spec
        responses.audit_foreign_read(request, job)
        return _parse_selection(mirror.jobs[job.id], request, is_text=form == "text")

    selection = await api.engine.read(read)

    async def run_text(write: responses.Write) -> bytes:
        await api.logs.copy_text(selection, write)
        return b""

    async def run_chunks(write: responses.Write) -> bytes:
        await api.logs.copy_lines(selection, write)
        return b""

    prefix = b"" if selection.follow else None  # a follower gets the head now, not with the first output
    if form == "chunks":
        return responses.StreamingResponse(run_chunks, "application/x-ndjson", prefix=prefix)
    return responses.StreamingResponse(run_text, "text/plain; charset=utf-8", prefix=prefix)


def _parse_selection(entry: JobEntry, request: Request, *, is_text: bool) -> LogSelection:
    """As text, one stream of one task; as chunks, both streams of all tasks by default."""
    query, follow = request.query_params, responses.bool_parameter(request.query_params, "follow")
    index = task_index(entry, query["index"]) if "index" in query else 0 if is_text else None
    attempt, is_each = _parse_attempt(request, entry, index, follow=follow)
    stream = query.get("stream", "stdout" if is_text else None)
    if stream not in (*STREAMS, None):
        raise BadField("stream", f"'{stream[:20]}' is not a stream", "write stdout or stderr")
    offset = responses.int_parameter(query, "offset", 0, 0, 2**62)
    if offset and stream is None:
        raise BadField(
            "offset", "needs one stream", "name the stream, or write from=INDEX.ATTEMPT.STREAM:OFFSET"
        )
    return LogSelection(
        entry.spec.id,
        index,
        attempt,
        from_first=is_each or (follow and not is_text),
        streams=STREAMS if stream is None else (stream,),
        offset=offset,
        follow=follow,
        window=_parse_window(request, both=stream is None, follow=follow),
        resume=_parse_resume(request),
    )


def _parse_attempt(
    request: Request, entry: JobEntry, index: int | None, *, follow: bool
) -> tuple[int | None, bool]:
    """The number of an attempt, or None and whether all attempts are wanted instead of the newest."""
    given = request.query_params.get("attempt")
    if given == "all":
        return None, True
    try:
        attempt = responses.int_parameter(request.query_params, "attempt", 0, 1, 2**32) or None
    except BadField as error:
        raise BadField(
            "attempt", error.detail.partition(": ")[2], "write a number from 1 on, or all"
        ) from None
    if entry.spec.count == 1:
        index = 0
    if index is not None and attempt is not None and not follow:
        require_attempt(entry, index, attempt)
    return attempt, False


def _parse_window(request: Request, *, both: bool, follow: bool) -> LogWindow:
    query, now_ms = request.query_params, wall_ms()
    since_ms = parse_past_time("since", query["since"], now_ms) if "since" in query else 0
    until_ms = parse_past_time("until", query["until"], now_ms) if "until" in query else 0
    if until_ms and follow:
        raise BadField("until", "cannot be followed", "leave out follow, or until")
    if until_ms and since_ms > until_ms:
        raise BadField("until", "is before since", "write a later time")
    lines = responses.int_parameter(query, "tail", 0, 0, TAIL_LINES_MAX) if "tail" in query else None
    return LogWindow(since_ms, until_ms, lines, tail_of_both=both and lines is not None)


def _parse_resume(request: Request) -> dict[StreamKey, int]:
    given = request.query_params.getlist("from")
    if len(given) > RESUME_POINTS_MAX:
        raise BadField("from", "is given too often", f"write it at most {RESUME_POINTS_MAX} times")
    resume: dict[StreamKey, int] = {}
    for text in given:
        found = _RESUME_POINT.fullmatch(text)
        if found is None:
            raise BadField("from", f"'{text[:40]}' is not an offset of a stream", _FROM_HINT)
        index, attempt, stream, offset = found.groups()
        resume[int(index), int(attempt), stream] = int(offset)
    return resume


ROUTES = [responses.route("GET", "/v1/jobs/{ref}/logs", read_logs)]
