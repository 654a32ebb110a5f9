"""HTTP responses (JSON, problems, streams), and the parts of a request that routes read. [I/O]"""

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
    "rate_limited": "1",  # by then the bucket has a second's worth of requests again
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
    """The body of a request exceeds its limit."""

    code = "too_large"


def route(method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    """A route of one method. Starlette adds HEAD to GET; on a stream it would wait for the stream's end."""
    route = Route(path, endpoint, methods=[method])
    route.methods = {method}
    return route


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, COMMON_HEADERS, "application/json")


def no_content() -> Response:
    return Response(status_code=204, headers=COMMON_HEADERS)


def problem_response(error: RotaError) -> Response:
    """The error as a problem; of a bug the client learns no details."""
    status = STATUS_OF_CODE.get(error.code, 500)
    detail = "internal error; the server's log has the details" if status == 500 else str(error)
    field, hint = getattr(error, "field", None), getattr(error, "hint", None)
    return make_problem(status, error.code, detail, field, hint)


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
    """A response whose body is written as it is produced, until it ends or the client disconnects.

    What `body` returns is sent last. With a `prefix`, which may be empty, the head is sent immediately;
    without one, together with the first bytes, so that an error before them still becomes a problem.
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
        """`file_name`: a browser saves the body under this name instead of showing it."""
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

        # Sent immediately, so that the client of a stream that stays quiet knows that it is connected.
        if self._prefix is not None:
            await write(self._prefix)
        end = await run_until_disconnect(self._body(write), receive)
        if end is not None:
            await send_head()
            await send({"type": "http.response.body", "body": end, "more_body": False})


class _ClientDisconnected(Exception):
    """Ends the task group of a response whose client has disconnected."""


async def run_until_disconnect(running: Awaitable[bytes], receive: Receive) -> bytes | None:
    """The result of `running`, or None if the client disconnected first; raises what `running` raises."""
    end = None
    raised: RotaError | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            # A disconnect raises in this task, and the group then cancels `running`.
            watching = tasks.create_task(_wait_for_disconnect(receive))
            end = await running
            watching.cancel()
    except* _ClientDisconnected:
        pass
    except* RotaError as group:
        raised = _first_error(group)
    if raised is not None:
        raise raised
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
    """Whether the client asks for a stream of changes instead of the current state."""
    return EVENT_STREAM in request.headers.get("accept", "")


def api_of(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def set_audit_target(request: Request, target: str) -> None:
    """Name what the audit log says the request was about. A GET is audited only if this was called."""
    setattr(request.state, AUDIT_TARGET, target)


def audit_foreign_read(request: Request, job: JobSpec) -> None:
    """Have the audit log record that the caller reads output of another user's job."""
    if job.user != caller_of(request).name:
        set_audit_target(request, f"job {job.id} of {job.user}")


async def json_body(request: Request) -> Any:
    """The body as JSON; an empty body is {}."""
    raw = await request.body()
    return fields.decode_json(raw) if raw else {}


def limit_body(receive: Receive, most: int = BODY_BYTES_MAX) -> Receive:
    """`receive`, but raising TooLarge once the body exceeds `most` bytes: Content-Length may be absent."""
    size = 0

    async def receive_limited() -> Any:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise body_too_large(most)
        return message

    return receive_limited


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
        raise BadField(field, f"'{given[:20]}' is not a boolean", "write true or false")
    return given in ("true", "1")
