"""The HTTP API of a standby: serves reads from its mirror, forwards everything else to the leader. [I/O]

A read is answered here only if the mirror is recent enough and has reached the revision that the client has
seen (read-your-writes); otherwise the leader answers. Which route is served by whom is in the tables below; a
route that is not listed goes to the leader.
"""

import asyncio
from collections.abc import Iterator
from enum import Enum, auto
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.apiserver import leader_proxy
from rota.apiserver.api import Addresses, ServerRole
from rota.apiserver.authentication import Unauthenticated, authenticate_token
from rota.apiserver.http import ROUTES, check_host, check_origin
from rota.apiserver.openapi.document import PUBLIC_PATHS
from rota.apiserver.responses import make_problem, problem_response
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.model.errors import Rejected, Unavailable
from rota.model.limits import STANDBY_AGE_MAX_MS, STANDBY_AGE_MS

LEADER_HEADER, AGE_HEADER, REVISION_HEADER = "Rota-Leader", "Rota-Age-Ms", "Rota-Revision"
KNOWN_TO_LEADER = "known_to_leader"  # in a request's state: the leader authenticated the caller
READ_SECONDS = 2.0  # for the leader to start a response that could be given here as well
ANSWER_SECONDS = 15.0
REACH_SECONDS = 2.0  # for the mirror to reach a revision that a client has seen elsewhere


class ServedBy(Enum):
    """Which server answers a request to a standby."""

    LOCAL = auto()  # this server: the request is about it
    MIRROR = auto()  # this server, from records that it has replayed
    LEADER_FIRST = auto()  # the leader, since part of the answer is never stored; this server if none leads
    LEADER = auto()


_LOCAL_ROUTES = ("/healthz", "/readyz", "/metrics", "/v1/server", "/v1/ca", "/v1/openapi.json")
_MIRROR_ROUTES = (
    "/v1/jobs",
    "/v1/jobs/{ref}",
    "/v1/jobs/{ref}/follow",
    "/v1/jobs/{ref}/tasks",
    "/v1/jobs/{ref}/tasks/{index}",
    "/v1/jobs/{ref}/tasks/{index}/attempts",
    "/v1/jobs/{ref}/tasks/{index}/attempts/{attempt}",
    "/v1/events",
    "/v1/crons",
    "/v1/crons/{ref}",
    "/v1/namespaces",
    "/v1/namespaces/{ref}",
)
_LEADER_FIRST_ROUTES = (
    "/v1/nodes",
    "/v1/nodes/{ref}",
    "/v1/brake",
    "/v1/clusters",
    "/v1/clusters/{ref}",
    "/v1/jobs/{ref}/why",
)


def served_by(method: str, path: str) -> ServedBy:
    """The server for a route; a path without a route is left to the leader to refuse."""
    if method == "HEAD":
        # Refused everywhere. Forwarded, its response would announce a body that never arrives.
        return ServedBy.LOCAL
    if method == "GET":
        matching = (
            route.path for route in ROUTES if route.methods == {"GET"} and route.path_regex.match(path)
        )
        found = next(matching, "")
        for served, routes in (
            (ServedBy.LOCAL, _LOCAL_ROUTES),
            (ServedBy.MIRROR, _MIRROR_ROUTES),
            (ServedBy.LEADER_FIRST, _LEADER_FIRST_ROUTES),
        ):
            if found in routes:
                return served
    return ServedBy.LEADER


class StandbyApp:
    """Wraps the application that a leader serves; here its mirror replays the leader's commits."""

    def __init__(
        self,
        app: ASGIApp,
        role: ServerRole,
        vault: Vault,
        addresses: Addresses,
        authority: CertificateAuthority,
    ) -> None:
        self._app = app
        self._role = role
        self._vault = vault
        self._hosts = addresses.hosts
        self._authority = authority
        self._leader_proxy = leader_proxy.LeaderClient(lambda: authority.bundle.roots_pem)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        except Rejected as refusal:
            await problem_response(refusal)(scope, receive, send)
        except Unavailable:
            return  # the head is sent: the client sees a truncated response

    def close(self) -> None:
        self._leader_proxy.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        match await self._served_by(scope, headers):
            case ServedBy.LOCAL | ServedBy.MIRROR:
                await self._app(scope, receive, self._with_standby_headers(send))
            case ServedBy.LEADER_FIRST:
                if await self._forward(scope, receive, send, READ_SECONDS) is not None:
                    await self._app(scope, receive, self._with_standby_headers(send))
            case ServedBy.LEADER:
                problem = await self._forward(scope, receive, send, ANSWER_SECONDS)
                if problem is not None:
                    await _no_answer_response(self._role.leader(), problem)(scope, receive, send)

    async def _served_by(self, scope: Scope, headers: Headers) -> ServedBy:
        """As `served_by` says, or by the leader if the mirror is too old for this client."""
        found = served_by(scope["method"], scope["path"])
        if found in (ServedBy.LOCAL, ServedBy.LEADER):
            return found
        age_ms = self._role.age_ms()
        # A standby that is cut off cannot learn that a token was revoked, so it
        # answers nothing once it is too old.
        if age_ms is None or age_ms > STANDBY_AGE_MAX_MS or not await self._is_caught_up(scope, headers):
            return ServedBy.LEADER
        # Between the two bounds an old answer is better than none, but only if the leader does not answer.
        return ServedBy.LEADER_FIRST if age_ms > STANDBY_AGE_MS else found

    async def _is_caught_up(self, scope: Scope, headers: Headers) -> bool:
        """Whether the mirror has the client's token and the revision that the client has seen.

        The leader may have just made both, so that this server has not replayed them yet.
        """
        if scope["path"] not in PUBLIC_PATHS:
            try:
                authenticate_token(self._vault, headers.get("authorization", ""))
            except Unauthenticated:
                # Without a leader there is none to ask: the request is refused here.
                return self._role.leader() is None
        try:
            async with asyncio.timeout(REACH_SECONDS):
                await self._role.wait_for_revision(max(_seen_revisions(scope, headers), default=0))
        except TimeoutError:
            return False
        return True

    async def _forward(
        self, scope: Scope, receive: Receive, send: Send, timeout_seconds: float
    ) -> Unavailable | None:
        """Forward the request; None if it is answered, else why not, and nothing was sent to the client."""
        headers, leader = Headers(scope=scope), self._role.leader()
        check_host(headers.get("host", ""), self._hosts, scope.get("server"))
        check_origin(headers)
        # Forwarded once at most: during a change of the leader two standbys may each
        # take the other for the leader.
        if leader is None or leader_proxy.FORWARDED_HEADER in headers:
            return Unavailable("the request was not forwarded")
        # Read in full before the leader is called: a slow client must not hold a connection to it.
        body = await leader_proxy.read_body(receive) if scope["method"] != "GET" else b""
        has_started = False
        try:
            async with self._leader_proxy.open_call(leader) as call:
                request = leader_proxy.encode_request(
                    scope, leader, body, leader_proxy.signed_origin(self._authority, scope)
                )
                head = await call.send(request, timeout_seconds)
                # Ordering: before the client gets its answer, as it may read from this server next.
                if scope["method"] != "GET":
                    await self._wait_for_revision(head)
                elif head.status == HTTPStatus.SERVICE_UNAVAILABLE:
                    return Unavailable("the leader cannot answer now")
                # The leader has accepted a token that this server may not have replayed yet.
                if head.status < HTTPStatus.BAD_REQUEST:
                    scope.setdefault("state", {})[KNOWN_TO_LEADER] = True
                head.headers.append((LEADER_HEADER.lower().encode(), leader.encode()))
                has_started = True
                await leader_proxy.send_response(call, head, receive, send)
        except Unavailable as problem:
            # The head is sent, so the answer cannot be replaced: the connection is
            # cut, and the client sees that.
            if has_started:
                raise
            return problem
        return None

    async def _wait_for_revision(self, head: leader_proxy.ResponseHead) -> None:
        """Wait until a change that went through this server is visible on it: read-your-writes."""
        revision = head.header(REVISION_HEADER.lower().encode()) or b""
        if revision.isdigit():
            try:
                async with asyncio.timeout(REACH_SECONDS):
                    await self._role.wait_for_revision(int(revision))
            except TimeoutError:
                pass  # a client that sends Rota-Revision is not shown less, here or elsewhere

    def _with_standby_headers(self, send: Send) -> Send:
        own = [(AGE_HEADER, str(self._role.age_ms() or 0)), (LEADER_HEADER, self._role.leader() or "")]
        encoded = [(name.lower().encode(), value.encode()) for name, value in own if value]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *encoded]}
            await send(message)

        return send_with_headers


def _seen_revisions(scope: Scope, headers: Headers) -> Iterator[int]:
    """The revisions that the client has seen, as its headers and cursor say."""
    query = dict(part.split(b"=", 1) for part in scope["query_string"].split(b"&") if b"=" in part)
    since = query.get(b"since", b"").decode("latin-1")
    for cursor in (headers.get(REVISION_HEADER, ""), headers.get("last-event-id", ""), since):
        number = cursor.partition(".")[0]
        if number.isascii() and number.isdigit() and len(number) < 19:
            yield int(number)


def _no_answer_response(leader: str | None, problem: Unavailable) -> Response:
    detail = "this server is a standby, and no server leads now"
    if leader is not None:
        detail = f"this server is a standby; {leader} leads: {problem}"
    refusal = make_problem(
        503, "unavailable", detail, hint="name all servers in ROTA_ADDR, with commas between"
    )
    if leader is not None:
        refusal.headers[LEADER_HEADER] = leader
    return refusal
