"""Plan: what one decision writes, what happened, why, and when to decide again."""

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

WRITERS: dict[type, str] = {  # the only component that may write records of this type
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


# An adoption writes records of several components again, after a server was started without its records.
ADOPTION = "adoption"
_ADOPTED = (JobSpec, JobCluster, JobStatus, JobAdoption, TaskBlock, PinBlock, AttemptBlock, StatusBlock)


def may_write(owner: str, kind: type) -> bool:
    return WRITERS[kind] == owner or (owner == ADOPTION and kind in _ADOPTED)


class Instant(NamedTuple):
    """Cluster time, which never goes back, for decisions; the wall clock, for display and deadlines."""

    ms: int
    wall_ms: int


PROVIDER_SAID = "cluster.provider_said"  # kind of events that quote a provider; only operators see them


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened, as a sentence and as data. Tasks of one plan share one event."""

    kind: str
    why: str
    job: JobId | None = None
    node: NodeId | None = None
    indices: tuple[tuple[int, int], ...] = ()
    attempt: int | None = None  # if it is the same for all indices
    exit_code: int | None = None  # if it is the same for all indices
    state: str | None = None
    step: int | None = None  # of the task's steps, from 1
    cluster: str | None = None
    result: str | None = None  # what an attempt reported, as JSON
    counts: dict[str, int] = {}  # numbers that the kind is about, by name
    namespace: str | None = None  # of an event without a job: tokens of other namespaces do not see it


class Plan(msgspec.Struct, Generic[Answer_co], frozen=True):
    """One decision. The loop applies it to the mirror at once; nothing of it is visible before it is durable.

    The type parameter is the type of `answer`: `Plan[JobId]` for a command that answers with a job's id. A
    reconciler has no caller, so its plans are `Plan`, which is `Plan[None]`.
    """

    # Records to write. Applied in order before the next decision of the batch; the last write of a key
    # counts. All of them are of the component that decided, or the plan is refused (see WRITERS).
    puts: tuple[Record, ...] = ()
    # Keys to delete, after `puts`, in the same transaction.
    deletes: tuple[Key, ...] = ()
    # What happened. Stored with the transaction and published after it, never before.
    events: tuple[EventRecord, ...] = ()
    # The reason as one sentence, for the log.
    why: str = ""
    # Cluster time at which to decide the same key again, if nothing wakes it earlier. Not stored: after a
    # restart every key is decided once, and sets its timer again.
    wake_at_ms: int | None = None
    # Given to the caller of a command once the transaction is durable; None by default, as is its type.
    answer: Answer_co = None  # type: ignore[assignment]
    # The answer holds only if this server still leads: commit even without a write, to prove that.
    fenced: bool = False

    def but(self, **changes: Any) -> Self:
        """The plan with some fields replaced."""
        return msgspec.structs.replace(self, **changes)

    def answering(self, answer: Answer) -> "Plan[Answer]":
        """The same plan with an answer for the caller."""
        return Plan(self.puts, self.deletes, self.events, self.why, self.wake_at_ms, answer, self.fenced)


NO_CHANGE = Plan()


def wake_at(at_ms: int) -> Plan:
    return Plan(wake_at_ms=at_ms)
