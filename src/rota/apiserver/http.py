"""The HTTP API as an ASGI application: middleware, routes, and errors as problems. [I/O]

Every request passes ApiMiddleware: Host and Origin are checked against DNS rebinding and foreign pages, the
size of the body is bounded, the caller is authenticated and charged for the time it uses, and changes and
refusals are written to the audit log.
"""

import errno
import time
from collections.abc import Collection, Sequence
from functools import partial, wraps
from http import HTTPStatus

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.apiserver import etags, leader_proxy, responses
from rota.apiserver.access import Caller
from rota.apiserver.api import CALLER, Api, host_of, wall_ms
from rota.apiserver.authentication import (
    Unauthenticated,
    authenticate_task,
    authenticate_token,
    verify_signed_request,
    while_token_valid,
)
from rota.apiserver.openapi.document import PUBLIC_PATHS, find_operation
from rota.apiserver.openapi.jobs import EmptyBody
from rota.apiserver.rate_limits import STRANGERS, RateLimited
from rota.apiserver.responses import (
    AUDIT_TARGET,
    STATUS_OF_CODE,
    body_too_large,
    limit_body,
    make_problem,
    problem_response,
)
from rota.apiserver.routes import (
    actions,
    ca,
    clusters,
    crons,
    events,
    gateway,
    jobs,
    join,
    logs,
    namespaces,
    nodes,
    outputs,
    plan,
    results,
    server,
    store,
    tasks,
    tokens,
)
from rota.apiserver.spec import fields
from rota.engine.meter import Meter
from rota.identity.audit import AuditEntry
from rota.identity.tokens import Role
from rota.model.errors import Bug, NotAllowed, RotaError, StoreFull
from rota.model.ids import NodeId
from rota.model.limits import BODY_BYTES_MAX, OPEN_BODY_BYTES_MAX
from rota.model.names import is_loopback

ROUTES = [
    *jobs.ROUTES,
    *tasks.ROUTES,
    *results.ROUTES,
    *actions.ROUTES,
    *logs.ROUTES,
    *outputs.ROUTES,
    *plan.ROUTES,
    *nodes.ROUTES,
    *join.ROUTES,
    *ca.ROUTES,
    *tokens.ROUTES,
    *namespaces.ROUTES,
    *clusters.ROUTES,
    *crons.ROUTES,
    *events.ROUTES,
    *server.ROUTES,
    *store.ROUTES,
]
# Browsers apply it only if they trust the certificate; it holds for the host, on every port.
HSTS = (b"strict-transport-security", b"max-age=2592000")
REVISION_HEADER = b"rota-revision"  # the last commit: the answer shows nothing older
log = structlog.get_logger("rota.apiserver")


def make_app(api: Api) -> Starlette:
    app = Starlette(
        routes=[_with_parameter_check(route) for route in routes_of(api)],
        middleware=[Middleware(ApiMiddleware, api=api)],
        exception_handlers={HTTPException: _no_route},
    )
    app.state.api = api
    app.router.redirect_slashes = False
    return app


def routes_of(api: Api) -> list[Route]:
    return [*ROUTES, *gateway.ROUTES] if api.workers is not None else ROUTES


def _with_parameter_check(route: Route) -> Route:
    """The route, but refusing unknown query parameters: a misspelt filter would show everything."""
    (method,) = route.methods or ("",)
    operation, endpoint = find_operation(method, route.path), route.endpoint
    if operation is None:
        return route
    known = [parameter.name for parameter in operation.query]

    @wraps(endpoint)
    async def checked(request: Request) -> Response:
        fields.known_parameters(request.query_params, known)
        if operation.body is EmptyBody:
            fields.known_fields(await responses.json_body(request), ())
        response: Response = await endpoint(request)
        return etags.not_modified_if_known(request, response) if method == "GET" else response

    return responses.route(method, route.path, checked)


class ApiMiddleware:
    """Checks host, origin, size and token of every request; audits every change and refusal."""

    def __init__(self, app: ASGIApp, api: Api) -> None:
        self._app = app
        self._api = api
        self._hosts = api.addresses.hosts
        self._tokens = api.authority.task_tokens()
        self._is_open_gateway = api.workers is not None and is_loopback(host_of(api.addresses.http))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The meter runs before the caller is known: authentication is charged to it as well.
        meter = Meter()
        await meter.run(self._serve(scope, receive, send, meter))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, meter: Meter) -> None:
        status = 0
        is_audited = False
        started = time.monotonic()

        async def send_and_audit(message: Message) -> None:
            nonlocal status, is_audited
            await send(_with_revision(message, self._api.engine.revision, scope["scheme"]))
            if message["type"] == "http.response.start":
                status = message["status"]
                self._api.counters.count_response(
                    _route_name(scope, status), status, time.monotonic() - started
                )
            elif not is_audited:  # at the first bytes, not the end: a stream may last for days
                is_audited = True
                self._audit(scope, status)

        state = scope.setdefault("state", {})
        try:
            most = OPEN_BODY_BYTES_MAX if scope["path"] in PUBLIC_PATHS else BODY_BYTES_MAX
            await self._check_request(scope, Headers(scope=scope), most, meter)
            # Around every route: a stream that was opened with a token ends when the token does.
            async with while_token_valid(self._api.vault, state.get(CALLER)):
                await self._app(scope, limit_body(receive, most), send_and_audit)
        except ClientDisconnect:
            return
        except Exception as error:
            refusal = _to_rota_error(error, scope)
            state["code"] = refusal.code
            # Once the head is sent, no problem can be sent any more: the client sees a truncated stream.
            if not status:
                await problem_response(refusal)(scope, receive, send_and_audit)
            else:
                self._audit_cut_stream(scope, refusal)

    async def _check_request(self, scope: Scope, headers: Headers, most: int, meter: Meter) -> None:
        check_host(headers.get("host", ""), self._hosts, scope.get("server"))
        check_origin(headers)
        # The number of digits is checked first: int() of a very long number is slow, or raises.
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 18 or int(length) > most:
            raise body_too_large(most)
        if scope["path"] in PUBLIC_PATHS:
            return
        rates = self._api.rates
        try:
            caller = self._authenticate(scope, headers.get("authorization", ""))
        except (Unauthenticated, RateLimited):
            # A refusal takes time as well: one account pays for all, so that guesses delay only guesses.
            meter.bill(partial(rates.charge, STRANGERS))
            await rates.enter(STRANGERS)
            raise
        scope["state"][CALLER] = caller
        meter.bill(partial(rates.charge, caller))
        await rates.enter(caller)

    def _authenticate(self, scope: Scope, authorization: str) -> Caller:
        if not authorization and self._is_open_gateway and scope["path"] in gateway.PATHS:
            return gateway.ANONYMOUS_CALLER
        reporter = authenticate_task(self._tokens, authorization) or self._authenticate_node(
            scope, authorization
        )
        if reporter is None:
            return self._authenticate_token(scope, authorization)
        # By path, as no route is known yet. Routes under other paths stay closed to tasks and nodes, even if
        # they forget to check their caller.
        if scope["method"] != "POST" or not scope["path"].endswith("/result"):
            raise NotAllowed("tasks and nodes may report results, and nothing else")
        return reporter

    def _authenticate_token(self, scope: Scope, authorization: str) -> Caller:
        try:
            return authenticate_token(self._api.vault, authorization)
        except Unauthenticated:
            # A request without a token is no guess: health checks and forgotten headers are not limited.
            if authorization:
                self._api.guesses.acquire(leader_proxy.origin_of(self._api.authority, scope))
            raise

    def _authenticate_node(self, scope: Scope, authorization: str) -> Caller | None:
        """The node that signed the request. Whether it signed this body is checked once the body is read."""
        signed = verify_signed_request(self._api.authority, authorization, scope["method"], scope["path"])
        if signed is None:
            return None
        scope["state"]["signed"] = signed
        return Caller(f"node {signed.node}", Role.VIEWER, (), node=NodeId(signed.node))

    def _audit_cut_stream(self, scope: Scope, error: RotaError) -> None:
        """Audit that a stream was cut because its token became invalid."""
        if isinstance(error, Unauthenticated):
            self._audit(scope, STATUS_OF_CODE[error.code])

    def _audit(self, scope: Scope, status: int) -> None:
        state = scope["state"]
        caller: Caller | None = state.get(CALLER)
        is_guess = caller is None and status == HTTPStatus.TOO_MANY_REQUESTS
        is_refusal = is_guess or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        if scope["method"] == "GET" and not is_refusal and AUDIT_TARGET not in state:
            return
        entry = AuditEntry(
            at_ms=wall_ms(),
            who=caller.name if caller else "",
            token=caller.token if caller else "",
            action=_route_name(scope, status) or scope["method"],
            target=state.get(AUDIT_TARGET, scope["path"]),
            outcome=f"{status} {state.get('code', '')}".rstrip(),
            origin=leader_proxy.origin_of(self._api.authority, scope),
        )
        # Refusals and reads are counted instead of written one by one: otherwise a caller without a token,
        # or one that polls, could fill the disk with lines.
        if scope["method"] == "GET" and not is_refusal:
            self._api.audit.write_counted(entry, by_target=True)
        elif is_refusal or (caller is None and status >= HTTPStatus.BAD_REQUEST):
            self._api.audit.write_counted(entry)
        else:
            self._api.audit.write(entry)


def _with_revision(message: Message, revision: int, scheme: str) -> Message:
    if message["type"] != "http.response.start":
        return message
    own = [(REVISION_HEADER, b"%d" % revision), *([HSTS] if scheme == "https" else [])]
    return {**message, "headers": [*message["headers"], *own]}


def _route_name(scope: Scope, status: int) -> str:
    """The name of the function that answered; empty if no route matched."""
    endpoint = scope.get("endpoint") if status != HTTPStatus.METHOD_NOT_ALLOWED else None
    return endpoint.__name__ if endpoint else ""


def check_host(host: str, accepted: Collection[str], reached: Sequence[object] | None = None) -> None:
    """Refuse a Host that is not one of the server's names, against DNS rebinding by foreign pages.

    `reached` is the local address and port of the connection. A server that listens on all addresses may be
    called by any of them; a literal address is safe, as no DNS record can make it point elsewhere.
    """
    name = host_of(host)
    own = str(reached[0]).removeprefix("::ffff:") if reached else ""
    if name not in accepted and (not name or name != own):
        hint = "add it to http_server.names in the server's settings"
        raise NotAllowed(f"this server does not answer to the name '{host[:60]}'", hint=hint)


def check_origin(headers: Headers) -> None:
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    own = headers.get("host", "")
    # A page of another origin could make the browser of an operator send requests to a server on localhost.
    if origin is not None and origin.lower() not in (f"http://{own.lower()}", f"https://{own.lower()}"):
        raise NotAllowed("requests from pages of other origins are refused")
    if site is not None and site not in ("same-origin", "none"):
        raise NotAllowed("requests from pages of other origins are refused")


def _to_rota_error(error: Exception, scope: Scope) -> RotaError:
    """The error as one of ours; an unexpected exception is logged, and becomes a Bug that says no more."""
    if isinstance(error, RotaError) and not isinstance(error, Bug):
        return error
    # Not a bug: the client is told to retry later, and the log is not filled with tracebacks on a full disk.
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull("the server's disk is full")
    log.error("request failed", method=scope["method"], path=scope["path"], exc_info=error)
    return Bug("unforeseen")


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = "not_found" if status == HTTPStatus.NOT_FOUND else "bad_request"
    request.state.code = code
    response = make_problem(status, code, f"there is no {request.method} {request.url.path[:200]}")
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(_allowed_methods(request.url.path))
    return response


def _allowed_methods(path: str) -> list[str]:
    """The methods of all routes that match a path: each route has one method."""
    return sorted(
        method for route in ROUTES if route.path_regex.match(path) for method in route.methods or ()
    )
