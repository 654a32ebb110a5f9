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
    """The death of a keeper. Node and wall clock name it: they are the same for every task that was there."""

    node: NodeId
    ended_at_ms: int  # wall clock, as the next keeper on that node noted it
    ms: int  # cluster time at which the task's loss was entered


class TaskBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by controllers, from a task's first end or unwanting on. No record means: all wanted, try 0."""

    COLUMNS: ClassVar[Mapping[str, str]] = {
        "state": "u1",
        "wanted": "u2",
        "failures": "u2",
        "not_before": "i8",
    }

    job: JobId
    block: int
    state: bytes  # TaskState
    wanted: bytes  # number of the wanted try
    failures: bytes  # tries that count against the job's retries
    not_before: bytes  # cluster time from which the wanted try may be placed; of a held one, given up
    reasons: dict[int, str] = {}  # position in the block -> sentence
    downed: dict[int, tuple[NodeId, ...]] = {}  # position -> nodes that were lost while it ran there
    downed_ms: dict[int, tuple[int, ...]] = {}  # the same: in cluster time, when that was
    deaths: dict[int, tuple[KeeperDeath, ...]] = {}  # position -> deaths of keepers it ran under
    faults: dict[int, int] = {}  # position -> faults of the cluster in a row, where there are any
    losses: dict[int, Loss] = {}  # position -> what its controller is to decide
    renew: dict[int, int] = {}  # position -> the attempt that makes way for one of the newest version
    proofs: dict[
        int, HealthySince
    ] = {}  # position -> since when that is well, while it takes the others' place

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
    """Written by scheduler. An index is given once to a node and never to another; blocks only grow.

    Of an adopted job an index may be of a node that is not known: then `unknown_node` stands for it.
    """

    job: JobId
    block: int
    nodes: tuple[NodeId, ...]  # by position in the block

    @property
    def key(self) -> Key:
        return Key(f"pin/{self.job}/{self.block}")


def unknown_node(index: int) -> NodeId:
    """A name that no node has, another one for each index."""
    return NodeId(f"?{index}")


def begun(spec: JobSpec) -> JobSpec:
    """Its tasks come with its nodes: as many are counted as there are pins."""
    return msgspec.structs.replace(spec, count=0) if spec.kind is JobKind.SYSTEM else spec


def grown(spec: JobSpec, more: int) -> JobSpec:
    return msgspec.structs.replace(spec, count=spec.count + more)
