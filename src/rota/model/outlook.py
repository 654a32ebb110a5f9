"""Answers of `rota why` and `rota plan`: why tasks wait, and what would happen to a job submitted now."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId, NodeId


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


class PlanOutcome(StrEnum):
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
    scale: bool = False  # clusters may grow by themselves


class PlannedPlacement(msgspec.Struct, frozen=True):
    """So many tasks would start on a node."""

    node: str
    tasks: int
    new: bool = False  # one of those that are only thought of


class PlannedEviction(msgspec.Struct, frozen=True):
    """Tasks of another job that would have to give way."""

    job: JobId
    namespace: str
    indices: tuple[tuple[int, int], ...]


class PlannedScaling(msgspec.Struct, frozen=True):
    """By how much a cluster would grow for a job, and what would come of it."""

    cluster: str
    nodes: int  # more than it has
    has: int
    limit: int
    waiting: int  # tasks without room there, of this job and of others
    starts: int  # those of them that would start with the new nodes


class PlanResult(msgspec.Struct, frozen=True):
    outcome: PlanOutcome
    sentence: str
    starts: int = 0  # tasks that would start now, some perhaps as soon as others have given way
    places: tuple[PlannedPlacement, ...] = ()
    evicts: tuple[PlannedEviction, ...] = ()
    why: Explanation | None = None  # of the tasks that would wait
    grows: PlannedScaling | None = None

    def grown(self, grows: PlannedScaling) -> "PlanResult":
        """What no node could run, as things are, waits for the new ones."""
        if self.outcome is not PlanOutcome.NEVER or self.why is None:
            return msgspec.structs.replace(self, grows=grows)
        told = f"would wait until cluster {grows.cluster} has grown"
        return msgspec.structs.replace(self, outcome=PlanOutcome.WAIT, sentence=told, grows=grows)


class DrainOutcome(StrEnum):
    """What becomes of work whose node is drained."""

    MOVES = "moves"
    STAYS = "stays"  # it is started once, ever: it may end there
    ENDS = "ends"  # it is stopped and not started again: everything has to go, or its recovery says so
    CONTROLLER_DECIDES = "asks"  # it is stopped, and its controller says what becomes of it


class DisplacedTasks(msgspec.Struct, frozen=True):
    """Tasks of one job that would have to leave nodes, or may stay; where those that move would run."""

    job: JobId
    namespace: str
    fate: DrainOutcome
    indices: tuple[tuple[int, int], ...]
    places: tuple[PlannedPlacement, ...] = ()
    waits: int = 0  # of those that move: tasks without room elsewhere
    why: Explanation | None = None  # they wait
