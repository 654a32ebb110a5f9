"""NodeSpec, who a node is; NodeWish, what an operator wants of it; NodeStatus, how it fares."""

from enum import StrEnum
from typing import Self

import msgspec

from rota.model.ids import Key, NodeId
from rota.model.lifecycle import NodeState


class Eligibility(StrEnum):
    OPEN = "open"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"  # derived: draining, and nothing is left


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who it is, from its join record. Written by apiserver."""

    id: NodeId
    name: str
    cluster: str = "default"
    labels: dict[str, str] = {}
    joined_at_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(f"node/{self.id}/spec")


class NodeWish(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator wants of it. Written by apiserver."""

    id: NodeId
    eligibility: Eligibility = Eligibility.OPEN
    taints: tuple[str, ...] = ()  # `key` or `key=value`: only work that tolerates them all is placed there

    @property
    def key(self) -> Key:
        return Key(f"node/{self.id}/wish")


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it said of itself, and whether it is there. Written by watcher."""

    id: NodeId
    state: NodeState
    machine_id: str
    boot_id: str
    version: str
    capacity: dict[str, int]
    labels: dict[str, str] = {}  # self-declared: arch, os, kernel, ...
    reason: str | None = None
    since_ms: int = 0
    shortage: str | None = None  # why it takes nothing new, by its own word

    @property
    def key(self) -> Key:
        return Key(f"node/{self.id}/status")

    def turned(self, state: NodeState, reason: str | None, since_ms: int) -> Self:
        return msgspec.structs.replace(self, state=state, reason=reason, since_ms=since_ms)

    def news(self, now: Self) -> bool:
        """Whether what it refused before may be welcome now."""
        then = (self.boot_id, self.capacity, self.shortage)
        return then != (now.boot_id, now.capacity, now.shortage)

    def short_of(self, shortage: str | None) -> Self:
        return msgspec.structs.replace(self, shortage=shortage)


class Link(StrEnum):
    """The node's connection, as seen by this process: an observation, never stored."""

    UNKNOWN = "unknown"  # it has not called since we started
    UP = "up"
    DOWN = "down"


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node measured just now: an observation, never stored."""

    cpu_milli: int = 0  # in use
    memory_free: int | None = None
    disk_free: int | None = None
    shortage: str | None = None  # why it takes nothing new
