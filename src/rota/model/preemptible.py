"""Lent: room held by work that would have to give way to a higher priority, and by work that is leaving."""

from collections.abc import Iterable

import numpy as np

from rota.model.columns import Array

Needs = Iterable[tuple[str, int]]
_GROW = 64


class PreemptibleUsage:
    """Per priority and resource one column over the nodes. Written only by the mirror."""

    def __init__(self) -> None:
        self.by_priority: dict[int, dict[str, Array]] = {}
        self.leaving: dict[str, Array] = {}  # of evicted attempts that have not ended

    def add(self, priority: int, slot: int, needs: Needs, tasks: int) -> None:
        """So many tasks more (a negative number: fewer) would have to give way."""
        _add(self.by_priority.setdefault(priority, {}), slot, needs, tasks)

    def add_leaving(self, slot: int, needs: Needs, tasks: int) -> None:
        _add(self.leaving, slot, needs, tasks)

    def below(self, priority: int, resource: str, size: int) -> Array:
        """What work of a lower priority holds, and what is leaving anyway."""
        found = _fitted(self.leaving.get(resource), size)
        for level, columns in self.by_priority.items():
            if level < priority:
                found += _fitted(columns.get(resource), size)
        return found


def _add(columns: dict[str, Array], slot: int, needs: Needs, tasks: int) -> None:
    for resource, amount in needs:
        known = columns.get(resource)
        if known is None or known.size <= slot:
            known = columns[resource] = _fitted(known, 2 * slot + _GROW)
        known[slot] += amount * tasks


def _fitted(column: Array | None, size: int) -> Array:
    """A copy of that length; what it did not know of is nothing."""
    found = np.zeros(size, np.int64)
    if column is not None:
        length = min(size, column.size)
        found[:length] = column[:length]
    return found
