"""ETag: which version of a wish an answer shows, and a digest of how it fares; If-Match, If-None-Match."""

import hashlib
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver.responses import COMMON_HEADERS
from rota.engine.reconciler import Command
from rota.model.errors import BadField, Conflict
from rota.model.plan import Instant, Plan
from rota.model.view import View

T = TypeVar("T")
MATCHES_MAX = 16  # in one header
_TAG = re.compile(r'"[!#-~]{1,64}"|[0-9a-f]{1,64}')  # by hand the quotes are easily forgotten


def tag_of(record: object) -> str:
    """Of what users wish, as a digest; what becomes of it changes no tag."""
    return f'"{hashlib.sha256(msgspec.json.encode(record)).hexdigest()[:16]}"'


def version_tag(version: int) -> str:
    """Of what counts its versions itself."""
    return f'"{version}"'


def with_tag(response: Response, tag: str) -> Response:
    response.headers["ETag"] = tag
    return response


def not_modified_if_known(request: Request, response: Response) -> Response:
    """The same, or 304 for whoever has it. Behind a dot the tag names the whole answer, not only the wish."""
    if response.status_code != HTTPStatus.OK or not response.body:  # a stream has none yet
        return response
    digest = hashlib.blake2b(response.body, digest_size=8).hexdigest()
    wished = response.headers.get("etag", "").strip('"')
    tag = f'"{wished}.{digest}"' if wished else f'"{digest}"'
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return with_tag(Response(status_code=HTTPStatus.NOT_MODIFIED, headers=COMMON_HEADERS), tag)
    return with_tag(response, tag)


def expected_tags(request: Request) -> tuple[str, ...] | None:
    """The tags in If-Match, as far as they name a wish; None: whatever there is."""
    said = request.headers.get("if-match", "*").strip()
    if said == "*":
        return None
    tags = [tag.strip() for tag in said.split(",", MATCHES_MAX)]
    if any(_TAG.fullmatch(tag) is None for tag in tags):
        raise BadField("If-Match", "is not a tag", 'write it as it came in ETag, with its quotes: "3"')
    return tuple(f'"{tag.strip(chr(34)).partition(".")[0]}"' for tag in tags)


def expected_version(request: Request) -> int | None:
    """The same of what counts its versions itself."""
    tags = expected_tags(request)
    if tags is None:
        return None
    said = tags[0].strip('"')
    if len(tags) > 1 or not said.isdecimal() or len(said) > 9:
        raise BadField("If-Match", "is not a version of a spec", 'write it as "3"')
    return int(said)


def require_match(request: Request, tag: Callable[[View], str], command: Command[T]) -> Command[T]:
    """The command, once it is certain that nobody has changed what it is about; checked in the same step."""
    tags = expected_tags(request)

    def guarded(view: View, now: Instant) -> Plan[T]:
        if tags is not None:
            check_tag(tag(view), tags)
        return command(view, now)

    return guarded


def check_tag(there: str, tags: tuple[str, ...]) -> None:
    if there not in tags:
        hint = "read it again, then send what is to change with its new ETag"
        raise Conflict(f"it is at {there} now, not at {tags[0]}", field="If-Match", hint=hint)
