"""The HTTP face of a server that does not lead: it is well, and says who does. [I/O]"""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rota.apiserver.answers import answer, problem_of
from rota.model.errors import Unavailable

LEADER = "Rota-Leader"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
WhoLeads = Callable[[], Awaitable[str | None]]


def make_standby_app(who_leads: WhoLeads) -> Starlette:
    async def refuse(request: Request) -> Response:
        del request
        return _pointing(await _leader(who_leads))

    return Starlette(
        routes=[
            Route("/healthz", _show_health, methods=["GET"]),
            Route("/{path:path}", refuse, methods=_METHODS),
        ]
    )


async def _show_health(_: Request) -> Response:
    return answer({"alive": True})


async def _leader(who_leads: WhoLeads) -> str | None:
    try:
        return await who_leads()
    except Unavailable:
        return None


def _pointing(leader: str | None) -> Response:
    detail = "this server stands by, and nobody leads now"
    if leader is not None:
        detail = f"this server stands by; {leader} leads"
    refusal = problem_of(
        503, "unavailable", detail, hint="name all servers in ROTA_ADDR, with commas between"
    )
    if leader is not None:
        refusal.headers[LEADER] = leader
    return refusal
