"""The API described by the server itself: for programs and for people. [I/O]"""

from functools import cache

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.openapi.document import build_document
from rota.apiserver.openapi.fields import Schema
from rota.apiserver.openapi.html import render_html
from rota.apiserver.responses import api_of, json_response

_POLICY = {"Content-Security-Policy": f"{responses.POLICY}; style-src 'unsafe-inline'"}


async def show_document(request: Request) -> Response:
    return json_response(_document(api_of(request).version))


async def show_page(request: Request) -> Response:
    html = _page(api_of(request).version)
    return Response(html, headers={**responses.COMMON_HEADERS, **_POLICY}, media_type="text/html")


@cache  # made once: it takes long enough for others to notice
def _document(version: str) -> Schema:
    return build_document(version)


@cache
def _page(version: str) -> str:
    return render_html(_document(version))


ROUTES = [
    responses.route("GET", "/v1/openapi.json", show_document),
    responses.route("GET", "/v1/docs", show_page),
]
