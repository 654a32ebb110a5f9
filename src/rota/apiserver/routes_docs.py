"""The API described by the server itself: for programs and for people. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import answers
from rota.apiserver.answers import answer, api_of
from rota.apiserver.openapi.document import document
from rota.apiserver.openapi.page import page

_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


async def show_document(request: Request) -> Response:
    return answer(document(api_of(request).version))


async def show_page(request: Request) -> Response:
    html = page(document(api_of(request).version))
    return Response(html, headers={**answers.COMMON_HEADERS, **_POLICY}, media_type="text/html")


ROUTES = [
    answers.route("GET", "/v1/openapi.json", show_document),
    answers.route("GET", "/v1/docs", show_page),
]
