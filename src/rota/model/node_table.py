"""The nodes as columns: capacity, reservations, measured load, labels, and whether each takes tasks."""

from collections.abc import Iterable, Mapping

import numpy as np

from rota.model.amounts import CPU, GPU, WHOLE_GPU
from rota.model.columns import Array
from rota.model.ids import NodeId
from rota.model.limits import GPUS_MAX

Needs = Iterable[tuple[str, int]]
_GROW = 64


class PreemptibleUsage:
    """What preemptible attempts hold: one column over the nodes per priority and resource."""

    def __init__(self) -> None:
        self.by_priority: dict[int, dict[str, Array]] = {}
        self.leaving: dict[str, Array] = {}  # of evicted attempts that have not ended

    def add(self, priority: int, slot: int, needs: Needs, tasks: int) -> None:
        """Count attempts that could be preempted; a negative number removes them."""
        _add(self.by_priority.setdefault(priority, {}), slot, needs, tasks)

    def add_leaving(self, slot: int, needs: Needs, tasks: int) -> None:
        _add(self.leaving, slot, needs, tasks)

    def below(self, priority: int, resource: str, size: int) -> Array:
        """What attempts of lower priority hold, and those that are leaving anyway."""
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
    """A copy of the column with that length, padded with zeros."""
    found = np.zeros(size, np.int64)
    if column is not None:
        length = min(size, column.size)
        found[:length] = column[:length]
    return found


UNMEASURED = np.iinfo(np.int64).max
_DEFAULT = "default"  # cluster
_LOG_MIN = 1024
# The share of reserved cpu that counts as part of a measured load. Below one, so that among nodes under the
# same load the one with less reserved is idler, even where tasks do nothing.
OWN_LOAD_SHARE = 0.9


class NodeTable:
    """Struct of arrays, one column per node (its slot), one row per resource. Written only by the mirror.

    `capacity_version` counts the changes after which a task that did not fit might fit. `changed` lists the
    slots that changed in any way, so that caches per node recompute only those.
    """

    def __init__(self) -> None:
        self.ids: list[NodeId] = []  # by slot; empty where the node was removed
        self.slot: dict[NodeId, int] = {}
        self._removed: dict[int, None] = {}  # slots of nodes that were removed while they held attempts
        self._unused: list[int] = []  # free slots, for the next nodes
        self.rows: dict[str, int] = {}  # resource -> row
        self.width = 0  # of the arrays: more than there are nodes, so that they grow rarely
        self.capacity: Array = np.zeros((0, 0), np.int64)
        self.reserved: Array = np.zeros((0, 0), np.int64)
        self.measured: Array = np.zeros((0, 0), np.int64)  # free as the node measured it, or UNMEASURED
        self.settled: Array = np.zeros((0, 0), np.int64)  # what was reserved when the node measured that
        self.devices: Array = np.zeros((0, 0), np.int64)  # reserved thousandths of each GPU: [slot, device]
        self.load: Array = np.zeros(0, np.float64)  # share of its cpu in use, as measured
        self.open: Array = np.zeros(0, np.bool_)
        self.expected: Array = np.zeros(0, np.bool_)  # open, or would be if its connection were up
        # Counts, per node, changes after which it may accept tasks that it refused.
        self.acceptance_version: Array = np.zeros(0, np.int64)
        self.queued: Array = np.zeros(0, np.int64)  # lookahead attempts on the node
        self.held: Array = np.zeros(0, np.int64)  # live attempts on the node, lookahead included
        self.preemptible = PreemptibleUsage()
        self.noise: dict[str, Array] = {}  # kind of interference -> live attempts that cause it
        self.labels: list[Mapping[str, str]] = []
        self.taints: list[tuple[str, ...]] = []
        self.cluster: Array = np.zeros(0, np.int64)  # the number of its cluster
        self.clusters: dict[str, int] = {}  # name -> number
        self.labels_version = 0
        self.capacity_version = 0
        self.eligibility_version = 0  # counts changes after which a node may suit other jobs than before
        self.feasibility_version = 0  # the same, without connects and disconnects of nodes
        self.changed: list[int] = []
        self.forgotten = 0  # changes no longer listed: a reader that is further behind starts over

    @property
    def size(self) -> int:
        return len(self.ids)

    def add(self, node: NodeId) -> int:
        slot = self.slot.get(node)
        if slot is None:
            slot = self.slot[node] = self._unused.pop() if self._unused else self._append()
            self.ids[slot] = node
            # Logged even for a reused slot: caches per slot still hold the values of the
            # node that was there before.
            self._touch(slot)
        self._removed.pop(slot, None)
        return slot

    def remove(self, node: NodeId) -> None:
        """Remove a node; its slot is reused as soon as no attempt holds anything there."""
        slot = self.slot[node]
        self.set_open(slot, value=False)
        self.set_expected(slot, value=False)
        # Attempts on the node end one by one, and each subtracts what it held. If the slot were reused before
        # the last, they would be subtracted from another node.
        self._removed[slot] = None
        self._release(slot)

    def bump_acceptance(self, slot: int) -> None:
        """Record that a node may accept now what it refused before."""
        self.acceptance_version[slot] += 1
        self._touch(slot)

    def row(self, resource: str) -> int:
        row = self.rows.get(resource)
        if row is None:
            row = self.rows[resource] = len(self.rows)
            self.capacity = np.vstack([self.capacity.reshape(row, self.width), self._zeros(1)])
            self.reserved = np.vstack([self.reserved.reshape(row, self.width), self._zeros(1)])
            self.settled = np.vstack([self.settled.reshape(row, self.width), self._zeros(1)])
            full = np.full((1, self.width), UNMEASURED)
            self.measured = np.vstack([self.measured.reshape(row, self.width), full])
        return row

    def set_capacity(self, slot: int, capacity: Mapping[str, int]) -> None:
        for resource in capacity:
            self.row(resource)
        for resource, row in self.rows.items():
            self.capacity[row, slot] = capacity.get(resource, 0)
        self._ensure_gpus(capacity.get(GPU, 0) // WHOLE_GPU)
        self.capacity_version += 1
        self.eligibility_version += 1
        self.feasibility_version += 1
        self._touch(slot)

    def set_measured(
        self, slot: int, free: Mapping[str, int], load: float, settled: Mapping[str, int] | None = None
    ) -> None:
        """Set a measurement; `settled` is what was reserved when it was made, None: what is reserved now."""
        rows = [self.row(resource) for resource in free]
        settled_rows = {self.row(resource): amount for resource, amount in (settled or {}).items()}
        before = self.free_at(slot)
        self.measured[rows, slot] = list(free.values())
        self.settled[:, slot] = self.reserved[:, slot]
        for row, amount in settled_rows.items():
            self.settled[row, slot] = amount
        # Only growth counts: a measurement of less lets no further task fit.
        self.capacity_version += bool((self.free_at(slot) > before).any())
        self.load[slot] = load
        self._touch(slot)

    def settled_at(self, slot: int) -> dict[str, int]:
        return {resource: int(self.settled[row, slot]) for resource, row in self.rows.items()}

    def set_labels(self, slot: int, labels: Mapping[str, str], taints: tuple[str, ...]) -> None:
        if self.labels[slot] != labels or self.taints[slot] != taints:
            self.labels[slot], self.taints[slot] = labels, taints
            self.cluster[slot] = self.clusters.setdefault(labels.get("cluster", _DEFAULT), len(self.clusters))
            self.labels_version += 1
            self.capacity_version += 1
            self.eligibility_version += 1
            self.feasibility_version += 1
            self.bump_acceptance(slot)

    def set_expected(self, slot: int, value: bool) -> None:
        if bool(self.expected[slot]) != value:
            self.expected[slot] = value
            self.feasibility_version += 1

    def set_open(self, slot: int, value: bool) -> None:
        if bool(self.open[slot]) != value:
            self.open[slot] = value
            self.capacity_version += 1
            self.eligibility_version += 1
            self._touch(slot)

    def other_clusters(self, cluster: str) -> Array | None:
        """Mask of the nodes of other clusters; None: there are no other clusters."""
        if self.clusters.keys() <= {cluster}:
            return None
        others: Array = self.cluster[: self.size] != self.clusters.get(cluster, -1)
        return others

    def reserve(self, slot: int, needs: Iterable[tuple[str, int]], tasks: int, lookahead: int) -> None:
        """Reserve resources for some tasks and lookahead slots for others; negative numbers release.

        `capacity_version` is counted by the caller.
        """
        if tasks:
            for resource, amount in needs:
                row = self.rows[resource] if resource in self.rows else self.row(resource)
                self.reserved[row, slot] += amount * tasks
        if lookahead:
            self.queued[slot] += lookahead
        self.held[slot] += tasks + lookahead
        self._touch(slot)
        if self._removed:
            self._release(slot)

    def reserve_gpus(self, slot: int, amount: int, devices: int, times: int) -> None:
        """Allocate (times -1: release) the devices whose bits are set: a part of one, or all of each."""
        self._ensure_gpus(devices.bit_length())
        for device in bits(devices)[:GPUS_MAX]:
            self.devices[slot, device] += min(amount, WHOLE_GPU) * times

    def count_noise(self, slot: int, kind: str, times: int) -> None:
        column = self.noise.get(kind)
        if column is None:
            column = self.noise[kind] = np.zeros(self.width, np.int64)
        column[slot] += times

    def free(self) -> Array:
        return self.free_at(slice(self.size))

    def free_at(self, slots: Array | slice | int) -> Array:
        """min(measured free - reserved since, capacity - reserved), by resource, of some nodes.

        Attempts placed after the last measurement are in no measurement, and count fully. Attempts that ended
        since may still be in the measured amount, so what they held is not free before the next measurement.
        For cpu no free amount is measured, only a load.
        """
        reserved = self.reserved[:, slots]
        # Not below zero: resources released since the measurement may still be in use in it.
        since = np.maximum(0, reserved - self.settled[:, slots])
        free: Array = np.minimum(self.measured[:, slots] - since, self.capacity[:, slots] - reserved)
        return free

    def outside_load(self, slots: Array | slice) -> Array:
        """The share of cpu that processes other than reserved tasks used at the last measurement."""
        row = self.rows.get(CPU)
        if row is None:
            unknown: Array = self.load[slots].copy()
            return unknown
        own = self.settled[row, slots] * OWN_LOAD_SHARE / np.maximum(1, self.capacity[row, slots])
        outside: Array = np.maximum(0.0, self.load[slots] - own)
        return outside

    def free_gpus(self) -> Array:
        """Free thousandths of each GPU: [slot, device]; 0 for devices that a node does not have."""
        row = self.rows.get(GPU)
        count = self.devices.shape[1]
        if row is None or count == 0:
            return np.zeros((self.size, 0), np.int64)
        exists = self.capacity[row, : self.size, None] // WHOLE_GPU > np.arange(count)
        free: Array = np.where(exists, WHOLE_GPU - self.devices[: self.size], 0)
        return free

    def _append(self) -> int:
        slot = len(self.ids)
        self.ids.append(NodeId(""))
        self.labels.append({})
        self.taints.append(())
        if slot >= self.width:
            self._widen(slot + max(_GROW, slot))
        return slot

    def _release(self, slot: int) -> None:
        """Free the slot of a removed node once it holds no attempts: sums over attempts are zero by then."""
        if slot not in self._removed or self.held[slot]:
            return
        del self._removed[slot], self.slot[self.ids[slot]]
        self.ids[slot] = NodeId("")
        self.set_labels(slot, {}, ())
        self.capacity[:, slot] = 0
        self.measured[:, slot] = UNMEASURED
        self.settled[:, slot] = 0
        self.load[slot] = 0.0
        self._unused.append(slot)
        self._touch(slot)

    def _touch(self, slot: int) -> None:
        self.changed.append(slot)
        # Dropped as a whole: a reader that is behind copies all nodes, which is
        # cheaper than reading this log.
        if len(self.changed) > max(_LOG_MIN, 4 * len(self.ids)):
            self.forgotten += len(self.changed)
            self.changed.clear()

    def _zeros(self, rows: int) -> Array:
        return np.zeros((rows, self.width), np.int64)

    def _ensure_gpus(self, count: int) -> None:
        more = min(count, GPUS_MAX) - self.devices.shape[1]
        if more > 0:
            self.devices = np.hstack([self.devices, np.zeros((self.devices.shape[0], more), np.int64)])

    def _widen(self, width: int) -> None:
        rows, old = len(self.rows), self.width
        more = width - old
        self.width = width

        def wider(array: Array, fill: int) -> Array:
            return np.hstack([array.reshape(rows, old), np.full((rows, more), fill, np.int64)])

        def longer(array: Array) -> Array:
            return np.concatenate([array, np.zeros(more, array.dtype)])

        self.capacity = wider(self.capacity, 0)
        self.reserved = wider(self.reserved, 0)
        self.settled = wider(self.settled, 0)
        self.measured = wider(self.measured, UNMEASURED)
        self.devices = np.vstack([self.devices, np.zeros((more, self.devices.shape[1]), np.int64)])
        self.load = longer(self.load)
        self.open = longer(self.open)
        self.expected = longer(self.expected)
        self.acceptance_version = longer(self.acceptance_version)
        self.queued = longer(self.queued)
        self.cluster = longer(self.cluster)
        self.held = longer(self.held)
        self.noise = {kind: longer(column) for kind, column in self.noise.items()}


def bits(mask: int) -> list[int]:
    """Positions of the bits that are set in a mask."""
    return [at for at in range(mask.bit_length()) if mask >> at & 1]
