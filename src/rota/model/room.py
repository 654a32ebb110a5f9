"""Room: the nodes as columns, what each has, what is reserved on it, and whether it may take work."""

from collections.abc import Iterable, Mapping

import numpy as np

from rota.model.columns import Array
from rota.model.ids import NodeId

_GROW = 64


class Room:
    """Struct of arrays, one column per node, one row per resource. Written only by the mirror.

    `grown` counts the changes after which something that did not fit might fit.
    """

    def __init__(self) -> None:
        self.ids: list[NodeId] = []  # by slot
        self.slot: dict[NodeId, int] = {}
        self.rows: dict[str, int] = {}  # resource -> row
        self.capacity: Array = np.zeros((0, 0), np.int64)
        self.reserved: Array = np.zeros((0, 0), np.int64)
        self.measured: Array = np.zeros(
            (0, 0), np.int64
        )  # free as the node measured it; the maximum where it did not
        self.load: Array = np.zeros(0, np.float64)  # share of its cpu in use, as measured
        self.open: Array = np.zeros(0, np.bool_)
        self.queued: Array = np.zeros(0, np.int64)  # lookahead attempts waiting there
        self.held: Array = np.zeros(0, np.int64)  # live attempts there, waiting ones too
        self.labels: list[Mapping[str, str]] = []
        self.labels_version = 0
        self.grown = 0

    @property
    def size(self) -> int:
        return len(self.ids)

    def add(self, node: NodeId) -> int:
        slot = self.slot.get(node)
        if slot is None:
            slot = self.slot[node] = len(self.ids)
            self.ids.append(node)
            self.labels.append({})
            if slot >= self.open.shape[0]:
                self._widen(slot + max(_GROW, slot))
        return slot

    def row(self, resource: str) -> int:
        row = self.rows.get(resource)
        if row is None:
            row = self.rows[resource] = len(self.rows)
            width = self.open.shape[0]
            self.capacity = np.vstack([self.capacity.reshape(row, width), np.zeros((1, width), np.int64)])
            self.reserved = np.vstack([self.reserved.reshape(row, width), np.zeros((1, width), np.int64)])
            full = np.full((1, width), np.iinfo(np.int64).max)
            self.measured = np.vstack([self.measured.reshape(row, width), full])
        return row

    def set_capacity(self, slot: int, capacity: Mapping[str, int]) -> None:
        for resource in capacity:
            self.row(resource)
        for resource, row in self.rows.items():
            self.capacity[row, slot] = capacity.get(resource, 0)
        self.grown += 1

    def set_measured(self, slot: int, free: Mapping[str, int], load: float) -> None:
        for resource, amount in free.items():
            row = self.row(resource)
            self.grown += amount > self.measured[row, slot]
            self.measured[row, slot] = amount
        self.load[slot] = load

    def set_labels(self, slot: int, labels: Mapping[str, str]) -> None:
        if self.labels[slot] != labels:
            self.labels[slot] = labels
            self.labels_version += 1
            self.grown += 1

    def set_open(self, slot: int, value: bool) -> None:
        if bool(self.open[slot]) != value:
            self.open[slot] = value
            self.grown += 1

    def reserve(self, slot: int, needs: Iterable[tuple[str, int]], times: int) -> None:
        """Take (a negative number: give back) room for so many tasks; `grown` is the caller's to count."""
        if times:
            for resource, amount in needs:
                row = self.row(resource)  # first: a new row makes new arrays
                self.reserved[row, slot] += amount * times

    def free(self) -> Array:
        """min(measured free, capacity - reserved); of cpu no free amount is measured, only a load."""
        width = self.size
        free: Array = self.capacity[:, :width] - self.reserved[:, :width]
        np.minimum(free, self.measured[:, :width], out=free)
        return free

    def _widen(self, width: int) -> None:
        rows = len(self.rows)
        old = self.open.shape[0]
        more = width - old

        def wider(array: Array, fill: int) -> Array:
            return np.hstack([array.reshape(rows, old), np.full((rows, more), fill, np.int64)])

        self.capacity = wider(self.capacity, 0)
        self.reserved = wider(self.reserved, 0)
        self.measured = wider(self.measured, np.iinfo(np.int64).max)
        self.load = np.concatenate([self.load, np.zeros(more)])
        self.open = np.concatenate([self.open, np.zeros(more, np.bool_)])
        self.queued = np.concatenate([self.queued, np.zeros(more, np.int64)])
        self.held = np.concatenate([self.held, np.zeros(more, np.int64)])
