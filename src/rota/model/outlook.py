"""Answers of `rota why` and `rota plan`: why tasks wait, and what would happen to a job submitted now."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId, NodeId


class WaitReason(msgspec.Struct, frozen=True):
    """One reason why tasks wait, and the number of nodes that it applies to."""

    kind: str  # the resource, or constraint, taint, near, quota, promised, refused, full, closed, ...
    count: int
    of: int
    text: str


class NearMiss(msgspec.Struct, frozen=True):
    """A node on which the task nearly fits, and what is missing there."""

    node: str
    lacks: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    waits: bool
    sentence: str
    reasons: tuple[WaitReason, ...] = ()
    changes: tuple[str, ...] = ()
    position: int | None = None
    misses: tuple[NearMiss, ...] = ()  # the nearest first
    starts_at_ms: int | None = None  # estimated wall clock of its start; None: unknown

    def with_text(self, *more: str) -> "Explanation":
        return msgspec.structs.replace(self, sentence="; ".join((self.sentence, *more)))


class PlanOutcome(StrEnum):
    """Whether a planned job would start."""

    NOW = "now"  # some of its tasks start immediately
    WAIT = "wait"
    NEVER = "never"  # it is infeasible, or would not wait, or is too late


class NewNode(msgspec.Struct, frozen=True):
    """Hypothetical nodes of one kind."""

    capacity: dict[str, int]
    labels: dict[str, str] = {}
    count: int = 1


class WhatIf(msgspec.Struct, frozen=True):
    """Hypothetical changes of the cluster."""

    add_nodes: tuple[NewNode, ...] = ()
    without: tuple[NodeId, ...] = ()
    scale: bool = False  # elastic clusters may scale up


class PlannedPlacement(msgspec.Struct, frozen=True):
    """A number of tasks that would start on a node."""

    node: str
    tasks: int
    new: bool = False  # a hypothetical node


class PlannedEviction(msgspec.Struct, frozen=True):
    """Tasks of another job that would be preempted."""

    job: JobId
    namespace: str
    indices: tuple[tuple[int, int], ...]


class PlannedScaling(msgspec.Struct, frozen=True):
    """How much a cluster would grow for a job, and with what effect."""

    cluster: str
    nodes: int  # nodes that would be added
    has: int
    limit: int
    waiting: int  # tasks that do not fit there, of this job and of others
    starts: int  # those of them that would start with the new nodes


class PlanResult(msgspec.Struct, frozen=True):
    outcome: PlanOutcome
    sentence: str
    starts: int = 0  # tasks that would start now, or as soon as preempted tasks have stopped
    places: tuple[PlannedPlacement, ...] = ()
    evicts: tuple[PlannedEviction, ...] = ()
    why: Explanation | None = None  # of the tasks that would wait
    grows: PlannedScaling | None = None

    def grown(self, grows: PlannedScaling) -> "PlanResult":
        """The result with a scale-up; a job that no existing node could run waits for the new nodes."""
        if self.outcome is not PlanOutcome.NEVER or self.why is None:
            return msgspec.structs.replace(self, grows=grows)
        sentence = f"would wait until cluster {grows.cluster} has grown"
        return msgspec.structs.replace(self, outcome=PlanOutcome.WAIT, sentence=sentence, grows=grows)


class DrainOutcome(StrEnum):
    """What happens to tasks whose node is drained."""

    MOVES = "moves"
    STAYS = "stays"  # an at_most_once task may end there
    ENDS = "ends"  # stopped and not placed again: the node must be empty, or its recovery rule says so
    CONTROLLER_DECIDES = "asks"  # stopped, and its recovery controller decides


class DisplacedTasks(msgspec.Struct, frozen=True):
    """Tasks of one job on drained nodes: what happens to them, and where those that move would run."""

    job: JobId
    namespace: str
    fate: DrainOutcome
    indices: tuple[tuple[int, int], ...]
    places: tuple[PlannedPlacement, ...] = ()
    waits: int = 0  # tasks that move and do not fit elsewhere now
    why: Explanation | None = None  # why they wait
