"""Operation: one route as others read it; models are structs whose every field says what it is."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}


def doc(description: str, **bounds: Any) -> msgspec.Meta:
    return msgspec.Meta(description=description, **bounds)


class ResponseModel(msgspec.Struct, kw_only=True):
    """What comes back. Newer servers may add fields, and nobody should mind."""


class RequestModel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is sent. A field that is not known is refused."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    description: str
    schema: Schema = field(default_factory=lambda: TEXT)
    where: str = "query"
    many: bool = False  # it may stand there several times


@dataclass(frozen=True, slots=True)
class Operation:
    """`answer` is a model, or the media type of a stream; None: there is no body."""

    method: str
    path: str
    summary: str
    answer: Any = None
    status: int = 200
    also: tuple[int, ...] = ()  # other statuses of success
    body: Any = None
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    events: str | None = None  # with Accept: text/event-stream it goes on, and this is what its events are
    tag: str | None = None  # what its ETag is about


def bounded(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def choice(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


def fields_parameter() -> Parameter:
    return Parameter("fields", "only these fields, by their names with commas between: `id,state`")


def list_parameters(order: str, most: int, default: str) -> tuple[Parameter, ...]:
    return (
        Parameter("limit", f"how many at most on one page; without it {default}", bounded(1, most)),
        Parameter("after", "the `next` of the page before"),
        Parameter(
            "sort",
            "the order, backwards with a minus",
            choice(order, order.removeprefix("-")) if order.startswith("-") else choice(order, f"-{order}"),
        ),
        fields_parameter(),
    )


SINCE = Parameter("since", "a sequence number: `seq` of a list, or that of the last event that was read")
IF_MATCH = Parameter(
    "If-Match", "only if its ETag is still this; otherwise nothing happens, and 409", where="header"
)
IF_NONE_MATCH = Parameter(
    "If-None-Match", "nothing is sent, and 304, if the answer's ETag would be this", where="header"
)
LAST_EVENT_ID = Parameter(
    "Last-Event-ID", "of a stream: go on behind this event, where `since` would be too old", where="header"
)
NAMESPACE = Parameter("namespace", "of which namespace; without it `default`")
