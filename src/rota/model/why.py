"""Why tasks of a job wait: every reason, counted over nodes, and the smallest change that would help."""

import msgspec


class Reason(msgspec.Struct, frozen=True):
    kind: str  # the resource, or constraint, refused, full, closed
    count: int
    of: int
    text: str


class Why(msgspec.Struct, frozen=True):
    waits: bool
    sentence: str
    reasons: tuple[Reason, ...] = ()
    changes: tuple[str, ...] = ()
    position: int | None = None
