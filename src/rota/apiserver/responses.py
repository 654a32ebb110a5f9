"""What goes over HTTP: JSON, problems, streams; and what a request says. [I/O]"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rota.apiserver.access import Caller
from rota.apiserver.api import Api
from rota.apiserver.spec import fields
from rota.model.amounts import parse_count
from rota.model.errors import BadField, Rejected, RotaError
from rota.model.job import JobSpec
from rota.model.limits import BODY_BYTES_MAX

STATUS_OF_CODE = {
    "bad_request": 400,
    "bad_field": 400,
    "unauthenticated": 401,
    "not_allowed": 403,
    "not_found": 404,
    "conflict": 409,
    "gone": 410,
    "too_large": 413,
    "queue_full": 429,
    "rate_limited": 429,
    "internal": 500,
    "unavailable": 503,
    "store_damaged": 503,
    "store_full": 507,
}
RETRY_AFTER_SECONDS = {
    "queue_full": "5",
    "rate_limited": "1",  # by then a second's worth of requests is free again
    "unavailable": "1",
    "store_full": "10",
    "store_damaged": "10",
}
AUDIT_TARGET = "target"  # in a request's state: what the audit log names
EVENT_STREAM = "text/event-stream"
KEEP_ALIVE = b": still here\n\n"
_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
# No answer may be shown as a page, framed or cached by a browser.
COMMON_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": _POLICY,
}

Write = Callable[[bytes], Awaitable[None]]
StreamBody = Callable[[Write], Awaitable[bytes]]


class TooLarge(Rejected):
    code = "too_large"


def route(method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    """No HEAD beside GET: on a stream it would wait for the end of what nobody reads."""
    made = Route(path, endpoint, methods=[method])
    made.methods = {method}
    return made


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, COMMON_HEADERS, "application/json")


def no_content() -> Response:
    return Response(status_code=204, headers=COMMON_HEADERS)


def problem_response(error: RotaError) -> Response:
    """The user's errors in full; of our own only that there was one."""
    status = STATUS_OF_CODE.get(error.code, 500)
    detail = "something went wrong inside; the server's log says what" if status == 500 else str(error)
    said = {"field": getattr(error, "field", None), "hint": getattr(error, "hint", None)}
    return make_problem(status, error.code, detail, **said)


def make_problem(
    status: int, code: str, detail: str, field: str | None = None, hint: str | None = None
) -> Response:
    body = {
        "type": "about:blank",
        "status": status,
        "code": code,
        "title": HTTPStatus(status).phrase,
        "detail": detail,
        "field": field,
        "hint": hint,
    }
    headers = dict(COMMON_HEADERS)
    if code in RETRY_AFTER_SECONDS:
        headers["Retry-After"] = RETRY_AFTER_SECONDS[code]
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(body), status, headers, "application/problem+json")


class StreamingResponse(Response):
    """A body that is written while it comes to be, until it ends or the reader goes away.

    What `run` returns is its end. Without a `beginning`, which may be empty, nothing is sent before the first
    byte, so that an error can still be told as a problem.
    """

    def __init__(
        self,
        body: StreamBody,
        media_type: str,
        *,
        status: int = 200,
        prefix: bytes | None = None,
        file_name: str | None = None,
    ) -> None:
        """`file_name`: a browser is to keep it as a file of that name, not to show it."""
        saved = {} if file_name is None else {"Content-Disposition": f'attachment; filename="{file_name}"'}
        super().__init__(status_code=status, headers={**COMMON_HEADERS, **saved}, media_type=media_type)
        del self.headers["content-length"]
        self._body = body
        self._prefix = prefix
        self.has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope

        async def send_head() -> None:
            if not self.has_started:
                self.has_started = True
                head = {"status": self.status_code, "headers": self.raw_headers}
                await send({"type": "http.response.start", **head})

        async def write(data: bytes) -> None:
            await send_head()
            await send({"type": "http.response.body", "body": data, "more_body": True})

        if self._prefix is not None:
            await write(self._prefix)
        end = await run_until_disconnect(self._body(write), receive)
        if end is not None:
            await send_head()
            await send({"type": "http.response.body", "body": end, "more_body": False})


class _ClientDisconnected(Exception):
    """Nobody reads any more."""


async def run_until_disconnect(running: Awaitable[bytes], receive: Receive) -> bytes | None:
    """What it returned, if it came to its end; what it raises is raised."""
    end = None
    refused: RotaError | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_wait_for_disconnect(receive))
            end = await running
            watching.cancel()
    except* _ClientDisconnected:
        pass
    except* RotaError as group:
        refused = _first_error(group)
    if refused is not None:
        raise refused
    return end


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _ClientDisconnected


def _first_error(group: BaseExceptionGroup[RotaError]) -> RotaError:
    error = group.exceptions[0]
    return _first_error(error) if isinstance(error, BaseExceptionGroup) else error


def sse_event(kind: str, value: Any, sequence: str | None = None) -> bytes:
    head = b"" if sequence is None else f"id: {sequence}\n".encode()
    return head + f"event: {kind}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"


def accepts_event_stream(request: Request) -> bool:
    """As they happen, rather than what there is now."""
    return EVENT_STREAM in request.headers.get("accept", "")


def api_of(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def set_audit_target(request: Request, target: str) -> None:
    """Whom or what the audit log shall name; a GET is written down only if this was called."""
    setattr(request.state, AUDIT_TARGET, target)


def audit_foreign_read(request: Request, job: JobSpec) -> None:
    """Have the audit log name who reads what another user's job left."""
    if job.user != caller_of(request).name:
        set_audit_target(request, f"job {job.id} of {job.user}")


async def json_body(request: Request) -> Any:
    """The body as JSON; nothing at all counts as {}."""
    raw = await request.body()
    return fields.decode_json(raw) if raw else {}


def limit_body(receive: Receive, most: int = BODY_BYTES_MAX) -> Receive:
    """Count the body while it comes in, and stop reading where it is too large."""
    size = 0

    async def receive_some() -> Any:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise body_too_large(most)
        return message

    return receive_some


def body_too_large(most: int = BODY_BYTES_MAX) -> TooLarge:
    return TooLarge("the body is too large", hint=f"send at most {most} bytes")


def int_parameter(query: Mapping[str, str], field: str, default: int, low: int, high: int) -> int:
    given = query.get(field)
    if given is None:
        return default
    return fields.number(field, parse_count, given, low, high)


def bool_parameter(query: Mapping[str, str], field: str) -> bool:
    given = query.get(field, "false").lower()
    if given not in ("true", "1", "false", "0"):
        raise BadField(field, f"'{given[:20]}' is neither yes nor no", "write true or false")
    return given in ("true", "1")
