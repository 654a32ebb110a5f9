"""Task records: the desired attempt of each task (TaskBlock), the node of a system job's task (PinBlock)."""

from collections.abc import Mapping
from typing import ClassVar, Self

import msgspec

from rota.model.columns import zeros
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import JobKind, JobSpec
from rota.model.recovery import Loss
from rota.model.service import HealthySince


class KeeperDeath(msgspec.Struct, frozen=True, array_like=True):
    """The death of a keeper. Node and wall clock identify it: they are equal for all tasks that it ran."""

    node: NodeId
    ended_at_ms: int  # wall clock, as the next keeper on that node recorded it
    ms: int  # cluster time at which the loss of the task was recorded


class TaskBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """States and desired attempt numbers of up to 256 consecutive tasks. Written by controllers.

    It is written with the first end or cancellation of a task; no record means all desired, attempt 0.
    """

    COLUMNS: ClassVar[Mapping[str, str]] = {
        "state": "u1",
        "wanted": "u2",
        "failures": "u2",
        "not_before": "i8",
    }

    job: JobId
    block: int
    state: bytes  # TaskState
    wanted: bytes  # the desired attempt number, see rota.model.attempt
    failures: bytes  # attempts that count against the job's retries
    not_before: bytes  # cluster time from which it may be placed; of a held task, at which it is failed
    reasons: dict[int, str] = {}  # position in the block -> sentence
    downed: dict[int, tuple[NodeId, ...]] = {}  # position -> nodes that were lost while it ran there
    downed_ms: dict[int, tuple[int, ...]] = {}  # position -> cluster times of these losses
    deaths: dict[int, tuple[KeeperDeath, ...]] = {}  # position -> deaths of keepers it ran under
    faults: dict[int, int] = {}  # position -> cluster faults in a row, if there are any
    losses: dict[int, Loss] = {}  # position -> a loss that its recovery controller has to decide about
    renew: dict[int, int] = {}  # position -> the attempt that a rollout replaces
    proofs: dict[int, HealthySince] = {}  # position -> since when its new attempt is healthy, in a rollout

    @property
    def key(self) -> Key:
        return Key(f"task/{self.job}/{self.block}")

    @property
    def size(self) -> int:
        return len(self.state)

    def with_replacements(self, renew: dict[int, int], proofs: dict[int, HealthySince] | None = None) -> Self:
        return msgspec.structs.replace(self, renew=renew, proofs=proofs or {})

    @classmethod
    def new(cls, job: JobId, block: int, size: int) -> Self:
        return cls(job, block, **zeros(cls, size))


class PinBlock(msgspec.Struct, frozen=True):
    """The node of each of up to 256 consecutive tasks of a system job. Written by scheduler.

    An index belongs to one node forever; blocks only grow. In an adopted job the node of an index may be
    unknown: then `unknown_node` stands for it.
    """

    job: JobId
    block: int
    nodes: tuple[NodeId, ...]  # by position in the block

    @property
    def key(self) -> Key:
        return Key(f"pin/{self.job}/{self.block}")


def unknown_node(index: int) -> NodeId:
    """A placeholder id that no node has, a different one for each index."""
    return NodeId(f"?{index}")


def begun(spec: JobSpec) -> JobSpec:
    """The spec of a new job: a system job starts without tasks, and its count grows with its pins."""
    return msgspec.structs.replace(spec, count=0) if spec.kind is JobKind.SYSTEM else spec


def grown(spec: JobSpec, more: int) -> JobSpec:
    return msgspec.structs.replace(spec, count=spec.count + more)
