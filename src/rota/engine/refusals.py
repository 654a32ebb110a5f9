"""Which nodes refused which shapes lately, and why."""

from collections.abc import Mapping
from typing import Self

from rota.model.ids import NodeId
from rota.model.limits import REFUSAL_MS
from rota.model.shape import Shape


class Refusals:
    def __init__(self) -> None:
        self._by_shape: dict[Shape, dict[NodeId, tuple[int, str]]] = {}

    def of(self, shape: Shape) -> Mapping[NodeId, tuple[int, str]]:
        """By node: until when it counts, and the reason."""
        return self._by_shape.get(shape, {})

    def note(self, shape: Shape, node: NodeId, reason: str, now_ms: int) -> None:
        self._by_shape.setdefault(shape, {})[node] = (now_ms + REFUSAL_MS, reason)

    def forget(self, node: NodeId) -> None:
        """Something is new about it."""
        for nodes in self._by_shape.values():
            nodes.pop(node, None)

    def copy(self) -> Self:
        copied = type(self)()
        copied._by_shape = {shape: dict(nodes) for shape, nodes in self._by_shape.items()}
        return copied
