"""A node's loads, as they come -> those of which a watcher tells the leader. [I/O]"""

from rota.model.limits import REPORT_MOST_MS, REPORT_POINTS
from rota.wire.generated import agent_pb2 as pb

_FREE = (("memory_free", "memory_total"), ("swap_free", "swap_total"))


class LoadFilter:
    """Keeps the last load of one node, and the last that was lifted to the leader."""

    def __init__(self) -> None:
        self.last: pb.Load | None = None
        self._relayed: pb.Load | None = None
        self._relayed_at_ms = 0

    def should_relay(self, load: pb.Load, now_ms: int) -> bool:
        """Whether the leader is to be told: it was told of another one, or of none for a while."""
        self.last = load
        before = self._relayed
        is_old = now_ms - self._relayed_at_ms >= REPORT_MOST_MS
        if before is not None and not is_old and not differs(load, before):
            return False
        self._relayed, self._relayed_at_ms = load, now_ms
        return True


def differs(load: pb.Load, other: pb.Load) -> bool:
    """By so many points of cpu, memory or a disk that an agent would tell it at once, or in a sentence."""
    if load.shortage != other.shortage or len(load.disks) != len(other.disks) or load.gpus != other.gpus:
        return True
    pairs = [(load.cpu_milli, other.cpu_milli, max(load.cores, 1) * 1000)]
    pairs += [(getattr(load, free), getattr(other, free), getattr(load, total)) for free, total in _FREE]
    pairs += [
        (disk.free, before.free, disk.total) for disk, before in zip(load.disks, other.disks, strict=True)
    ]
    return any(abs(now - before) * 100 >= REPORT_POINTS * max(total, 1) for now, before, total in pairs)
