"""Recent refusals by nodes, keyed by line and working directory, with the reason."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Self

from rota.model.ids import NodeId
from rota.model.limits import REFUSAL_MS
from rota.model.shape import QueueKey


class _Expiry(NamedTuple):
    """A refusal counts no longer from this time on."""

    at_ms: int
    errand: QueueKey
    node: NodeId


class Refusals:
    """By errand, a line with its working directory: jobs of other owners or directories are not affected."""

    def __init__(self) -> None:
        self._by_errand: dict[QueueKey, dict[NodeId, tuple[int, str]]] = {}
        self._by_node: dict[NodeId, dict[QueueKey, None]] = {}
        self._expiries: deque[_Expiry] = deque()  # in the order of time

    def by_node(self, errand: QueueKey) -> Mapping[NodeId, tuple[int, str]]:
        """By node: the cluster time until which it counts, and the reason."""
        return self._by_errand.get(errand, {})

    def errands(self) -> list[QueueKey]:
        """Those that any node refused lately."""
        return list(self._by_errand)

    def record(self, errand: QueueKey, node: NodeId, reason: str, now_ms: int) -> None:
        self._drop_expired(now_ms)
        until_ms = now_ms + REFUSAL_MS
        self._by_errand.setdefault(errand, {})[node] = (until_ms, reason)
        self._by_node.setdefault(node, {})[errand] = None
        self._expiries.append(_Expiry(until_ms, errand, node))

    def forget(self, node: NodeId) -> None:
        """The node has reported a change: what it refused it may accept now."""
        for errand in list(self._by_node.get(node, ())):
            self._drop(errand, node)

    def copy(self) -> Self:
        copied = type(self)()
        copied.adopt(self)
        return copied

    def adopt(self, other: "Refusals") -> None:
        """Take over what the other one knows."""
        self._by_errand = {errand: dict(nodes) for errand, nodes in other._by_errand.items()}
        self._by_node = {node: dict(errands) for node, errands in other._by_node.items()}
        self._expiries = deque(other._expiries)

    def _drop_expired(self, now_ms: int) -> None:
        while self._expiries and self._expiries[0].at_ms <= now_ms:
            _, errand, node = self._expiries.popleft()
            known = self._by_errand.get(errand, {}).get(node)
            if known is not None and known[0] <= now_ms:  # it may have been refused again since
                self._drop(errand, node)

    def _drop(self, errand: QueueKey, node: NodeId) -> None:
        nodes, errands = self._by_errand.get(errand, {}), self._by_node.get(node, {})
        nodes.pop(node, None)
        errands.pop(errand, None)
        if not nodes:
            self._by_errand.pop(errand, None)
        if not errands:
            self._by_node.pop(node, None)
