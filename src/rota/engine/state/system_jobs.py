"""Index of a system job's pins: which task index belongs to which node, and so how many tasks it has."""

from rota.model.ids import NodeId
from rota.model.limits import BLOCK_TASKS
from rota.model.task import PinBlock
from rota.rules.phases import Phase

_PENDING = int(Phase.PENDING)


class SystemJobIndex:
    """Empty for every other kind of job."""

    def __init__(self) -> None:
        self.blocks: dict[int, PinBlock] = {}
        self.index: dict[NodeId, int] = {}
        self.nodes: list[NodeId] = []  # by index

    def apply(self, record: PinBlock) -> int:
        """Apply a pin block; return the number of tasks added. For an adopted job it may name a node."""
        self.blocks[record.block] = record
        first, before = record.block * BLOCK_TASKS, len(self.nodes)
        is_named = list(record.nodes[: before - first]) != self.nodes[first : first + len(record.nodes)]
        self.nodes[first : first + len(record.nodes)] = record.nodes
        # A node named later may change earlier positions, so the index is built again; else it only grows.
        if is_named:
            self.index = {node: index for index, node in enumerate(self.nodes)}
        else:
            self.index.update({self.nodes[index]: index for index in range(before, len(self.nodes))})
        return len(self.nodes) - before

    def pending(
        self, phases: dict[int, bytes], retry_at_ms: dict[int, dict[int, int]], now_ms: int
    ) -> list[int]:
        """Indices of pending tasks whose backoff is over."""
        found: list[int] = []
        for block, record in self.blocks.items():
            known, backoffs, first = phases.get(block), retry_at_ms.get(block, {}), block * BLOCK_TASKS
            found += [
                first + at
                for at in range(len(record.nodes))
                if (known is None or known[at] == _PENDING) and backoffs.get(first + at, 0) <= now_ms
            ]
        return found
