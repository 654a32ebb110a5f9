"""Plan: what to write, what happened, why, and when to look again. Knows nothing of stores."""

from typing import Any, Generic, NamedTuple, Self

import msgspec
from typing_extensions import TypeVar

from rota.model.adoption import JobAdoption, Restored
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.cron import CronRecord, CronStatus
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import (
    Counters,
    JobCluster,
    JobIntent,
    JobSpec,
    JobStatus,
    JobTombstone,
    SchedulerVerdict,
    SubmitKey,
    Unplaceable,
)
from rota.model.namespace import NamespaceRecord
from rota.model.node import NodeIntent, NodeSpec, NodeStatus, ReportInterval
from rota.model.recovery import RecoveryAnswers
from rota.model.result import ResultRecord
from rota.model.rollout import JobPreviousVersion, JobRollout
from rota.model.subscriber import Subscriber
from rota.model.task import PinBlock, TaskBlock

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True, default=None)

Record = (
    JobSpec
    | JobIntent
    | JobCluster
    | JobStatus
    | SchedulerVerdict
    | Unplaceable
    | RecoveryAnswers
    | JobPreviousVersion
    | JobRollout
    | JobAdoption
    | SubmitKey
    | JobTombstone
    | Counters
    | ReportInterval
    | Restored
    | ResultRecord
    | TaskBlock
    | PinBlock
    | AttemptBlock
    | StatusBlock
    | NodeSpec
    | NodeIntent
    | NodeStatus
    | ClusterRecord
    | ClusterIntent
    | Machine
    | NamespaceRecord
    | Subscriber
    | CronRecord
    | CronStatus
)

WRITERS: dict[type, str] = {  # the only component that may write records of this kind
    JobSpec: "apiserver",
    JobIntent: "apiserver",
    RecoveryAnswers: "apiserver",
    JobPreviousVersion: "apiserver",
    SubmitKey: "apiserver",
    Counters: "apiserver",
    ReportInterval: "apiserver",
    Restored: "apiserver",
    ResultRecord: "apiserver",
    NodeSpec: "apiserver",
    NodeIntent: "apiserver",
    Subscriber: "apiserver",
    ClusterIntent: "apiserver",
    NamespaceRecord: "apiserver",
    CronRecord: "apiserver",
    CronStatus: "apiserver",
    JobCluster: "clusters",
    ClusterRecord: "clusters",
    Machine: "clusters",
    JobStatus: "controllers",
    JobRollout: "controllers",
    JobTombstone: "controllers",
    JobAdoption: "controllers",
    TaskBlock: "controllers",
    AttemptBlock: "scheduler",
    SchedulerVerdict: "scheduler",
    Unplaceable: "scheduler",
    PinBlock: "scheduler",
    StatusBlock: "watcher",
    NodeStatus: "watcher",
}


# An adoption writes again what several components had written before the server was started without records.
ADOPTION = "adoption"
_ADOPTED = (JobSpec, JobCluster, JobStatus, JobAdoption, TaskBlock, PinBlock, AttemptBlock, StatusBlock)


def may_write(owner: str, kind: type) -> bool:
    return WRITERS[kind] == owner or (owner == ADOPTION and kind in _ADOPTED)


class Instant(NamedTuple):
    """Cluster time, which never jumps, for deciding; the wall clock, for showing."""

    ms: int
    wall_ms: int


PROVIDER_SAID = "cluster.provider_said"  # of an event that quotes a provider, which operators alone hear


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
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


class Plan(msgspec.Struct, Generic[Answer_co], frozen=True):
    """One decision."""

    puts: tuple[Record, ...] = ()
    deletes: tuple[Key, ...] = ()
    events: tuple[EventRecord, ...] = ()
    why: str = ""
    wake_at_ms: int | None = None  # cluster time at which to look at the same key again
    answer: Answer_co = None  # type: ignore[assignment]  # as the type variable: None unless it is given
    fenced: bool = False  # even without a write, its answer holds only if a commit shows that we still lead

    def but(self, **changes: Any) -> Self:
        """The same decision with something else about it."""
        return msgspec.structs.replace(self, **changes)

    def answering(self, answer: Answer) -> "Plan[Answer]":
        """The same plan with an answer for the caller."""
        return Plan(self.puts, self.deletes, self.events, self.why, self.wake_at_ms, answer, self.fenced)


NO_CHANGE = Plan()


def wake_at(at_ms: int) -> Plan:
    return Plan(wake_at_ms=at_ms)
