"""PinBlock: which node each of up to 256 consecutive tasks of a system job is for."""

import msgspec

from rota.model.ids import JobId, Key, NodeId
from rota.model.job import JobKind, JobSpec


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
