"""Why tasks of a job wait: every reason, counted over nodes, and the smallest change that would help."""

import msgspec


class WaitReason(msgspec.Struct, frozen=True):
    kind: str  # the resource, or constraint, taint, near, quota, promised, refused, full, closed, ...
    count: int
    of: int
    text: str


class NearMiss(msgspec.Struct, frozen=True):
    """A node that lacks little, and what it lacks."""

    node: str
    lacks: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    waits: bool
    sentence: str
    reasons: tuple[WaitReason, ...] = ()
    changes: tuple[str, ...] = ()
    position: int | None = None
    misses: tuple[NearMiss, ...] = ()  # those that lack least first
    starts_at_ms: int | None = None  # wall clock, about; none: nobody knows

    def with_text(self, *more: str) -> "Explanation":
        return msgspec.structs.replace(self, sentence="; ".join((self.sentence, *more)))
