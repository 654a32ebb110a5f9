"""Outlook: what would become of a job, were it submitted now; WhatIf: how the cluster is thought of then."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId, NodeId
from rota.model.why import Why


class Outcome(StrEnum):
    NOW = "now"  # some of its tasks start at once
    WAIT = "wait"
    NEVER = "never"  # no node could run it, even empty; or it does not wait; or it is too late


class NewNode(msgspec.Struct, frozen=True):
    """Machines of one kind that are thought of as having joined."""

    capacity: dict[str, int]
    labels: dict[str, str] = {}
    count: int = 1


class WhatIf(msgspec.Struct, frozen=True):
    """What is thought of as changed."""

    add_nodes: tuple[NewNode, ...] = ()
    without: tuple[NodeId, ...] = ()


class Place(msgspec.Struct, frozen=True):
    """So many tasks would start on a node."""

    node: str
    tasks: int
    new: bool = False  # one of those that are only thought of


class Evicted(msgspec.Struct, frozen=True):
    """Tasks of another job that would have to give way."""

    job: JobId
    namespace: str
    indices: tuple[tuple[int, int], ...]


class Outlook(msgspec.Struct, frozen=True):
    outcome: Outcome
    sentence: str
    starts: int = 0  # tasks that would start now, some perhaps as soon as others have given way
    places: tuple[Place, ...] = ()
    evicts: tuple[Evicted, ...] = ()
    why: Why | None = None  # of the tasks that would wait


class Fate(StrEnum):
    """What becomes of work whose node is drained."""

    MOVES = "moves"
    STAYS = "stays"  # it is started once, ever: it may end there
    ENDS = "ends"  # the same, but everything has to go: it is stopped, and not started again


class Displaced(msgspec.Struct, frozen=True):
    """Tasks of one job that would have to leave nodes, or may stay; where those that move would run."""

    job: JobId
    namespace: str
    fate: Fate
    indices: tuple[tuple[int, int], ...]
    places: tuple[Place, ...] = ()
    waits: int = 0  # of those that move: tasks without room elsewhere
    why: Why | None = None  # they wait
