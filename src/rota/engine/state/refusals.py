"""Recent refusals by nodes, keyed by queue class and working directory, with the reason."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Self

from rota.model.ids import NodeId
from rota.model.limits import REFUSAL_MS
from rota.model.shape import QueueKey


class _Expiry(NamedTuple):
    """When a refusal expires."""

    at_ms: int
    refusal_key: QueueKey
    node: NodeId


class Refusals:
    """By refusal key: a queue class with its working directory. Jobs with other keys are not affected."""

    def __init__(self) -> None:
        self._by_refusal_key: dict[QueueKey, dict[NodeId, tuple[int, str]]] = {}
        self._by_node: dict[NodeId, dict[QueueKey, None]] = {}
        self._expiries: deque[_Expiry] = deque()  # in the order of time

    def by_node(self, refusal_key: QueueKey) -> Mapping[NodeId, tuple[int, str]]:
        """By node: the cluster time until which it counts, and the reason."""
        return self._by_refusal_key.get(refusal_key, {})

    def refusal_keys(self) -> list[QueueKey]:
        """Refusal keys with at least one recent refusal."""
        return list(self._by_refusal_key)

    def record(self, refusal_key: QueueKey, node: NodeId, reason: str, now_ms: int) -> None:
        # Expired entries are dropped on writes, so the size is bounded by the refusals of one REFUSAL_MS.
        self._drop_expired(now_ms)
        until_ms = now_ms + REFUSAL_MS
        self._by_refusal_key.setdefault(refusal_key, {})[node] = (until_ms, reason)
        self._by_node.setdefault(node, {})[refusal_key] = None
        self._expiries.append(_Expiry(until_ms, refusal_key, node))

    def forget(self, node: NodeId) -> None:
        """Drop a node's refusals: it reported a change and may accept now what it refused before."""
        for refusal_key in list(self._by_node.get(node, ())):
            self._drop(refusal_key, node)

    def copy(self) -> Self:
        copied = type(self)()
        copied.adopt(self)
        return copied

    def adopt(self, other: "Refusals") -> None:
        """Replace the content by a copy of the other's."""
        self._by_refusal_key = {key: dict(nodes) for key, nodes in other._by_refusal_key.items()}
        self._by_node = {node: dict(keys) for node, keys in other._by_node.items()}
        self._expiries = deque(other._expiries)

    def _drop_expired(self, now_ms: int) -> None:
        while self._expiries and self._expiries[0].at_ms <= now_ms:
            _, refusal_key, node = self._expiries.popleft()
            known = self._by_refusal_key.get(refusal_key, {}).get(node)
            if known is not None and known[0] <= now_ms:  # else refused again since: a later entry expires it
                self._drop(refusal_key, node)

    def _drop(self, refusal_key: QueueKey, node: NodeId) -> None:
        nodes, refusal_keys = self._by_refusal_key.get(refusal_key, {}), self._by_node.get(node, {})
        nodes.pop(node, None)
        refusal_keys.pop(refusal_key, None)
        if not nodes:
            self._by_refusal_key.pop(refusal_key, None)
        if not refusal_keys:
            self._by_node.pop(node, None)
