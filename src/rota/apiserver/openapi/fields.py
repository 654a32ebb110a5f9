"""Building blocks of the API description: operations, parameters, and base classes of models.

A model is a struct whose fields are annotated with descriptions. The document is generated from the models.
"""

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
    """A response body. Newer servers may add fields: clients must ignore those that they do not know."""


class RequestModel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request body. Unknown fields are refused."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    description: str
    schema: Schema = field(default_factory=lambda: TEXT)
    where: str = "query"
    many: bool = False  # it may be repeated


@dataclass(frozen=True, slots=True)
class Operation:
    """One route. `answer` is a model, or the media type of a stream; None: the response has no body."""

    method: str
    path: str
    summary: str
    answer: Any = None
    status: int = 200
    also: tuple[int, ...] = ()  # other status codes of success
    body: Any = None
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    events: str | None = None  # the events of a watch, with Accept: text/event-stream
    tag: str | None = None  # what its ETag identifies


def bounded(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def choice(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


def fields_parameter() -> Parameter:
    return Parameter("fields", "only these fields, separated by commas: `id,state`")


def list_parameters(order: str, most: int, default: str) -> tuple[Parameter, ...]:
    return (
        Parameter("limit", f"most entries of one page; default: {default}", bounded(1, most)),
        Parameter("after", "`next` of the previous page"),
        Parameter(
            "sort",
            "the order; with a minus it is reversed",
            choice(order, order.removeprefix("-")) if order.startswith("-") else choice(order, f"-{order}"),
        ),
        fields_parameter(),
    )


SINCE = Parameter("since", "a sequence number: `seq` of a list, or of the last event that was read")
IF_MATCH = Parameter(
    "If-Match", "only if this is still its ETag; otherwise 409, without any change", where="header"
)
IF_NONE_MATCH = Parameter(
    "If-None-Match", "304 without a body if the ETag of the response would be this", where="header"
)
LAST_EVENT_ID = Parameter(
    "Last-Event-ID",
    "for a stream that reconnects: continue after this event instead of `since`",
    where="header",
)
NAMESPACE = Parameter("namespace", "the namespace; default: `default`")
