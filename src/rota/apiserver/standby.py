"""The HTTP face of a server that does not lead: what it knows it tells, all else it hands on. [I/O]"""

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
from rota.apiserver.responses import make_problem
from rota.apiserver.responses import problem_response as told
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.model.errors import Rejected, Unavailable
from rota.model.limits import STANDBY_AGE_MAX_MS, STANDBY_AGE_MS

LEADER_HEADER, AGE_HEADER, REVISION_HEADER = "Rota-Leader", "Rota-Age-Ms", "Rota-Revision"
KNOWN_TO_LEADER = "known_to_leader"  # in a request's state: the leader let the caller in
READ_SECONDS = 2.0  # for the leader to begin an answer that could be given here as well
ANSWER_SECONDS = 15.0
REACH_SECONDS = 2.0  # for what somebody has seen elsewhere to be heard of here


class ServedBy(Enum):
    """Who answers."""

    LOCAL = auto()  # it is about this server itself
    MIRROR = auto()  # it is about records, and all of them are known here
    LEADER_FIRST = auto()  # some of it is never stored: without it where nobody leads
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
    """By its route; what has none is for the leader to refuse, HEAD is refused everywhere."""
    if method == "HEAD":
        return ServedBy.LOCAL  # its answer says how long a body would be that never comes
    if method == "GET":
        route = next((one.path for one in ROUTES if "GET" in one.methods and one.path_regex.match(path)), "")  # type: ignore[operator]
        for answered, routes in (
            (ServedBy.LOCAL, _LOCAL_ROUTES),
            (ServedBy.MIRROR, _MIRROR_ROUTES),
            (ServedBy.LEADER_FIRST, _LEADER_FIRST_ROUTES),
        ):
            if route in routes:
                return answered
    return ServedBy.LEADER


class StandbyApp:
    """An application in front of the one that a leader has, over a mirror of what others decide."""

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
            await told(refusal)(scope, receive, send)
        except Unavailable:
            return  # the answer has begun: being cut off is how the reader learns of it

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
        """Where records tell all, but not those known here, the leader is asked first, or alone."""
        found = served_by(scope["method"], scope["path"])
        if found in (ServedBy.LOCAL, ServedBy.LEADER):
            return found
        age_ms = self._role.age_ms()
        if age_ms is None or age_ms > STANDBY_AGE_MAX_MS or not await self._is_caught_up(scope, headers):
            return ServedBy.LEADER
        return ServedBy.LEADER_FIRST if age_ms > STANDBY_AGE_MS else found

    async def _is_caught_up(self, scope: Scope, headers: Headers) -> bool:
        """Whether who asks is known here, and what it saw elsewhere: a leader may just have told both."""
        if scope["path"] not in PUBLIC_PATHS:
            try:
                authenticate_token(self._vault, headers.get("authorization", ""))
            except Unauthenticated:
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
        """None: it is answered. Else why the leader has not; nothing was sent back."""
        headers, leader = Headers(scope=scope), self._role.leader()
        check_host(headers.get("host", ""), self._hosts, scope.get("server"))
        check_origin(headers)
        if leader is None or leader_proxy.FORWARDED_HEADER in headers:
            return Unavailable("it is not handed on")
        body = await leader_proxy.read_body(receive) if scope["method"] != "GET" else b""
        has_begun = False
        try:
            async with self._leader_proxy.open_call(leader) as call:
                request = leader_proxy.encode_request(
                    scope, leader, body, leader_proxy.marked_origin(self._authority, scope)
                )
                head = await call.send(request, timeout_seconds)
                if scope["method"] != "GET":
                    await self._wait_for_revision(head)
                elif head.status == HTTPStatus.SERVICE_UNAVAILABLE:
                    return Unavailable("it cannot answer now")
                if head.status < HTTPStatus.BAD_REQUEST:
                    scope.setdefault("state", {})[KNOWN_TO_LEADER] = True
                head.headers.append((LEADER_HEADER.lower().encode(), leader.encode()))
                has_begun = True
                await leader_proxy.send_response(call, head, receive, send)
        except Unavailable as problem:
            if has_begun:
                raise
            return problem
        return None

    async def _wait_for_revision(self, head: leader_proxy.ResponseHead) -> None:
        """Who changed something here is to see it here."""
        said = head.header(REVISION_HEADER.lower().encode()) or b""
        if said.isdigit():
            try:
                async with asyncio.timeout(REACH_SECONDS):
                    await self._role.wait_for_revision(int(said))
            except TimeoutError:
                pass  # the client says what it has seen, and is not shown less

    def _with_standby_headers(self, send: Send) -> Send:
        said = [(AGE_HEADER, str(self._role.age_ms() or 0)), (LEADER_HEADER, self._role.leader() or "")]
        marks = [(name.lower().encode(), value.encode()) for name, value in said if value]

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *marks]}
            await send(message)

        return send_marked


def _seen_revisions(scope: Scope, headers: Headers) -> Iterator[int]:
    """Revisions that the one who asks has seen, as far as it says so."""
    query = dict(part.split(b"=", 1) for part in scope["query_string"].split(b"&") if b"=" in part)
    since = query.get(b"since", b"").decode("latin-1")
    for said in (headers.get(REVISION_HEADER, ""), headers.get("last-event-id", ""), since):
        number = said.partition(".")[0]
        if number.isascii() and number.isdigit() and len(number) < 19:
            yield int(number)


def _no_answer_response(leader: str | None, problem: Unavailable) -> Response:
    detail = "this server stands by, and nobody leads now"
    if leader is not None:
        detail = f"this server stands by; {leader} leads: {problem}"
    refusal = make_problem(
        503, "unavailable", detail, hint="name all servers in ROTA_ADDR, with commas between"
    )
    if leader is not None:
        refusal.headers[LEADER_HEADER] = leader
    return refusal
