"""Plan: what to write, what happened, why, and when to look again. Knows nothing of stores."""

from typing import Any, NamedTuple, Self

import msgspec

from rota.model.adoption import JobAdoption
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import Cluster, ClusterWish, Machine
from rota.model.cron import Cron, CronStatus
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import (
    Counters,
    JobCluster,
    JobGone,
    JobSpec,
    JobStatus,
    JobVerdict,
    JobWish,
    SubmitKey,
    Unplaceable,
)
from rota.model.namespace import Namespace
from rota.model.node import NodeSpec, NodeStatus, NodeWish
from rota.model.pace import ReportPace
from rota.model.pins import PinBlock
from rota.model.recovery import JobAnswers
from rota.model.restored import Restored
from rota.model.result import Result
from rota.model.rollout import JobFormer, JobRollout
from rota.model.subscriber import Subscriber
from rota.model.task import TaskBlock

Record = (
    JobSpec
    | JobWish
    | JobCluster
    | JobStatus
    | JobVerdict
    | Unplaceable
    | JobAnswers
    | JobFormer
    | JobRollout
    | JobAdoption
    | SubmitKey
    | JobGone
    | Counters
    | ReportPace
    | Restored
    | Result
    | TaskBlock
    | PinBlock
    | AttemptBlock
    | StatusBlock
    | NodeSpec
    | NodeWish
    | NodeStatus
    | Cluster
    | ClusterWish
    | Machine
    | Namespace
    | Subscriber
    | Cron
    | CronStatus
)

OWNERS: dict[type, str] = {  # the only component that may write records of this kind
    JobSpec: "apiserver",
    JobWish: "apiserver",
    JobAnswers: "apiserver",
    JobFormer: "apiserver",
    SubmitKey: "apiserver",
    Counters: "apiserver",
    ReportPace: "apiserver",
    Restored: "apiserver",
    Result: "apiserver",
    NodeSpec: "apiserver",
    NodeWish: "apiserver",
    Subscriber: "apiserver",
    ClusterWish: "apiserver",
    Namespace: "apiserver",
    Cron: "apiserver",
    CronStatus: "apiserver",
    JobCluster: "clusters",
    Cluster: "clusters",
    Machine: "clusters",
    JobStatus: "controllers",
    JobRollout: "controllers",
    JobGone: "controllers",
    JobAdoption: "controllers",
    TaskBlock: "controllers",
    AttemptBlock: "scheduler",
    JobVerdict: "scheduler",
    Unplaceable: "scheduler",
    PinBlock: "scheduler",
    StatusBlock: "watcher",
    NodeStatus: "watcher",
}


# An adoption writes again what several components had written before the server was started without records.
ADOPTION = "adoption"
_ADOPTED = (JobSpec, JobCluster, JobStatus, JobAdoption, TaskBlock, PinBlock, AttemptBlock, StatusBlock)


def may_write(owner: str, kind: type) -> bool:
    return OWNERS[kind] == owner or (owner == ADOPTION and kind in _ADOPTED)


class Instant(NamedTuple):
    """Cluster time, which never jumps, for deciding; the wall clock, for showing."""

    ms: int
    wall_ms: int


PROVIDER_SAID = "cluster.provider_said"  # of an event that quotes a provider, which operators alone hear


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened, as a sentence and as data. Tasks of one plan share one event."""

    kind: str
    why: str
    job: JobId | None = None
    node: NodeId | None = None
    indices: tuple[tuple[int, int], ...] = ()
    attempt: int | None = None  # where all have the same
    exit_code: int | None = None  # where all have the same
    state: str | None = None
    step: int | None = None  # of the task's steps, from 1
    cluster: str | None = None
    result: str | None = None  # what an attempt reported, as JSON
    counts: dict[str, int] = {}  # numbers that the kind is about, by name
    namespace: str | None = None  # of what is no job and belongs to one: tokens of others do not hear it


class Plan(msgspec.Struct, frozen=True):
    """One decision."""

    puts: tuple[Record, ...] = ()
    deletes: tuple[Key, ...] = ()
    events: tuple[Event, ...] = ()
    why: str = ""
    wake_at_ms: int | None = None  # cluster time at which to look at the same key again
    answer: Any = None  # for whoever asked, once it is on disk
    fenced: bool = False  # even without a write, its answer holds only if a commit shows that we still lead

    def but(self, **changes: Any) -> Self:
        """The same decision with something else about it."""
        return msgspec.structs.replace(self, **changes)


NOTHING = Plan()


def look_again(at_ms: int) -> Plan:
    return Plan(wake_at_ms=at_ms)
