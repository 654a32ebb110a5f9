"""Route of the OpenAPI document, by which the server describes its own API. [I/O]"""

from functools import cache

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.openapi.document import build_document
from rota.apiserver.openapi.fields import Schema
from rota.apiserver.responses import api_of, json_response


async def show_document(request: Request) -> Response:
    return json_response(_document(api_of(request).version))


@cache  # building it blocks the event loop long enough for other requests to notice
def _document(version: str) -> Schema:
    return build_document(version)


ROUTES = [responses.route("GET", "/v1/openapi.json", show_document)]
