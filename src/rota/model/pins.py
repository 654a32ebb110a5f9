"""PinBlock: which node each of up to 256 consecutive tasks of a system job is for."""

import msgspec

from rota.model.ids import JobId, Key, NodeId


class PinBlock(msgspec.Struct, frozen=True):
    """Written by scheduler. An index is given once to a node and never to another; blocks only grow."""

    job: JobId
    block: int
    nodes: tuple[NodeId, ...]  # by position in the block

    @property
    def key(self) -> Key:
        return Key(f"pin/{self.job}/{self.block}")
