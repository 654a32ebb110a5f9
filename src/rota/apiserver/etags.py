"""Which version of a wish a request is about: ETag says it, If-Match asks for it, nothing else is changed."""

import hashlib
import re
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rota.engine.reconciler import Command
from rota.model.errors import BadField, Conflict
from rota.model.plan import Instant, Plan
from rota.model.view import View

MATCHES_MAX = 16  # in one header
_TAG = re.compile(r'"[!#-~]{1,64}"|[0-9a-f]{1,64}')  # by hand the quotes are easily forgotten


def tag_of(record: object) -> str:
    """Of what users wish, as a digest; what becomes of it changes no tag."""
    return f'"{hashlib.sha256(msgspec.json.encode(record)).hexdigest()[:16]}"'


def numbered(version: int) -> str:
    """Of what counts its versions itself."""
    return f'"{version}"'


def tagged(response: Response, tag: str) -> Response:
    response.headers["ETag"] = tag
    return response


def expected(request: Request) -> tuple[str, ...] | None:
    """The tags in If-Match; None: whatever there is."""
    said = request.headers.get("if-match", "*").strip()
    if said == "*":
        return None
    tags = [tag.strip() for tag in said.split(",", MATCHES_MAX)]
    if any(_TAG.fullmatch(tag) is None for tag in tags):
        raise BadField("If-Match", "is not a tag", 'write it as it came in ETag, with its quotes: "3"')
    return tuple(f'"{tag.strip(chr(34))}"' for tag in tags)


def expected_version(request: Request) -> int | None:
    """The same of what counts its versions itself."""
    tags = expected(request)
    if tags is None:
        return None
    said = tags[0].strip('"')
    if len(tags) > 1 or not said.isdecimal() or len(said) > 9:
        raise BadField("If-Match", "is not a version of a spec", 'write it as "3"')
    return int(said)


def only_if(request: Request, tag: Callable[[View], str], command: Command) -> Command:
    """The command, once it is certain that nobody has changed what it is about; checked in the same step."""
    tags = expected(request)

    def guarded(view: View, now: Instant) -> Plan:
        if tags is not None:
            check(tag(view), tags)
        return command(view, now)

    return guarded


def check(there: str, tags: tuple[str, ...]) -> None:
    if there not in tags:
        hint = "read it again, then send what is to change with its new ETag"
        raise Conflict(f"it is at {there} now, not at {tags[0]}", field="If-Match", hint=hint)
