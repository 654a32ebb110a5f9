"""ETags for If-Match and If-None-Match: `"VERSION.DIGEST"`. [I/O]

VERSION names the desired state of an object, by a counter or a digest of its records: If-Match compares this
part alone, so that a change of status does not refuse a client's change. DIGEST is of the whole body, and is
added to answers of GET: If-None-Match compares both.
"""

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
MATCHES_MAX = 16  # tags in one header
_TAG = re.compile(r'"[!#-~]{1,64}"|[0-9a-f]{1,64}')  # quotes are optional: they are easily lost in a shell


def tag_of(record: object) -> str:
    """The tag of an object whose desired state is this record, as a digest."""
    return f'"{hashlib.sha256(msgspec.json.encode(record)).hexdigest()[:16]}"'


def version_tag(version: int) -> str:
    """The tag of an object that counts its versions."""
    return f'"{version}"'


def with_tag(response: Response, tag: str) -> Response:
    response.headers["ETag"] = tag
    return response


def not_modified_if_known(request: Request, response: Response) -> Response:
    """The response with its digest in the ETag, or 304 if the client has it already."""
    if response.status_code != HTTPStatus.OK or not response.body:  # the body of a stream is not known yet
        return response
    digest = hashlib.blake2b(response.body, digest_size=8).hexdigest()
    version = response.headers.get("etag", "").strip('"')
    tag = f'"{version}.{digest}"' if version else f'"{digest}"'
    known = [text.strip().removeprefix("W/") for text in request.headers.get("if-none-match", "").split(",")]
    # The body is rendered all the same: this saves the transfer, not the work.
    if tag in known or "*" in known:
        return with_tag(Response(status_code=HTTPStatus.NOT_MODIFIED, headers=COMMON_HEADERS), tag)
    return with_tag(response, tag)


def expected_tags(request: Request) -> tuple[str, ...] | None:
    """The tags in If-Match without their digests; None: any version."""
    header = request.headers.get("if-match", "*").strip()
    if header == "*":
        return None
    tags = [tag.strip() for tag in header.split(",", MATCHES_MAX)]
    if any(_TAG.fullmatch(tag) is None for tag in tags):
        raise BadField("If-Match", "is not a tag", 'write it as it came in ETag, with its quotes: "3"')
    return tuple(f'"{tag.strip(chr(34)).partition(".")[0]}"' for tag in tags)


def expected_version(request: Request) -> int | None:
    """The version in If-Match, for an object that counts its versions; None: any version."""
    tags = expected_tags(request)
    if tags is None:
        return None
    version = tags[0].strip('"')
    if len(tags) > 1 or not version.isdecimal() or len(version) > 9:
        raise BadField("If-Match", "is not a version of a spec", 'write it as "3"')
    return int(version)


def require_match(request: Request, tag: Callable[[View], str], command: Command[T]) -> Command[T]:
    """The command, refused with Conflict unless the object's tag is among those in If-Match."""
    tags = expected_tags(request)

    # The tag is compared inside the command, on the state that it is decided on: a check before the command
    # would race with changes of other clients.

    def guarded(view: View, now: Instant) -> Plan[T]:
        if tags is not None:
            _check_tag(tag(view), tags)
        return command(view, now)

    return guarded


def _check_tag(current: str, tags: tuple[str, ...]) -> None:
    if current not in tags:
        hint = "read it again, then send what is to change with its new ETag"
        raise Conflict(f"it is at {current} now, not at {tags[0]}", field="If-Match", hint=hint)
