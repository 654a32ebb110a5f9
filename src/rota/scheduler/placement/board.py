"""Board: the scheduler's working copy of the node table, with placements of the round subtracted."""

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce

import numpy as np

from rota.model.amounts import CPU, GPU, MEMORY, WHOLE_GPU
from rota.model.columns import Array, indexer
from rota.model.limits import NODE_TASKS_MAX
from rota.model.node_table import NodeTable, bits
from rota.model.shape import Shape

TASKS_ROW = 0  # number of tasks a node still accepts; the rows of resources follow
_LOG_MIN = 1024
_MANY_MIN = 8  # changes: up to here they are read one by one even if there are few nodes


class Board:
    """A copy of the node table, brought up to date by the few slots that changed.

    Its log lists every slot whose state changed, in the node table or by a placement. Each cache with one
    entry per node (score rows, best nodes, blocked queues) remembers the log position up to which it is
    current.
    """

    def __init__(self, node_table: NodeTable) -> None:
        self.node_table = node_table
        self.log_position = 0  # changes logged so far, trimmed ones included
        self._log: Array = np.zeros(_LOG_MIN, np.intp)
        self._logged = 0
        self._changes_max = 0  # with more changes than this a full rescore is cheaper
        self._changes_read = -1  # of the node table's changes; -1: nothing yet
        self.rows: dict[str, int] = {}  # row of each resource; row 0 counts tasks and has no name
        self.idle_rows: tuple[int, ...] = ()  # rows that decide how idle a node is

    @property
    def size(self) -> int:
        return self.node_table.size

    def sync(self) -> None:
        """Copy what changed in the node table since the last call."""
        table = self.node_table
        position = table.forgotten + len(table.changed)
        if self._changes_read == position:
            return
        if (
            # The table's log no longer reaches back far enough, or its shape has changed: copy everything.
            self._changes_read < table.forgotten
            or len(self.rows) != len(table.rows)
            or self.load.size != table.size
        ):
            self._copy_all()
        else:
            self._copy_slots(table.changed[self._changes_read - table.forgotten :])
        self._changes_read = position

    def changed_since(self, position: int) -> Array | None:
        """Slots that changed since this log position; None: too many, or trimmed from the log."""
        start = self._logged - (self.log_position - position)
        # Beyond half of the nodes one vectorised pass is cheaper than single updates.
        if start < 0 or self._logged - start > self._changes_max:
            return None
        return self._log[start : self._logged]

    def row(self, resource: str) -> int | None:
        return self.rows.get(resource)

    @property
    def row_count(self) -> int:
        """Number of rows: one per resource and one for tasks."""
        return len(self.rows) + 1

    def needs(self, shape: Shape) -> Array:
        """Amounts that one task of the shape takes, by row; a resource that no node has is left out."""
        found = np.zeros(self.row_count, np.int64)
        found[TASKS_ROW] = 1
        for resource, amount in shape.needs:
            row = self.rows.get(resource)
            if row is not None:
                found[row] = amount
        return found

    def allocate(self, shape: Shape, slot: int, times: int = 1, devices: int = 0) -> None:
        """Allocate `times` tasks of the shape on a node; negative: release them."""
        self.free[TASKS_ROW, slot] -= times
        for resource, amount in shape.needs:
            if amount:
                self.free[self.rows[resource], slot] -= amount * times
        if shape.noise is not None:
            if shape.noise not in self.noise:
                self.noise[shape.noise] = np.zeros(self.size, np.int64)
            self.noise[shape.noise][slot] += times
        if devices:
            part = min(dict(shape.needs)[GPU], WHOLE_GPU)
            for device in bits(devices):
                self.devices[slot, device] -= part * times
        self._on_slot_changed(slot)

    def adjust_free(self, slot: int, amounts: Array) -> None:
        """Add these amounts to what is free on a node; negative: hold them back."""
        self.free[:, slot] += amounts
        self._on_slot_changed(slot)

    def fitting_tasks(self, shape: Shape, slots: Array) -> Array:
        """Number of tasks of the shape that fit on each of these nodes now.

        Single GPUs are not considered.
        """
        most: Array = np.maximum(0, self.free[TASKS_ROW, slots])
        for resource, amount in shape.needs:
            row = self.rows.get(resource)
            if row is None:
                return np.zeros_like(most)
            if amount > 0:
                np.minimum(most, np.maximum(0, self.free[row, slots]) // amount, out=most)
        return most

    def tasks_when_empty(self, shape: Shape) -> Array:
        """Number of tasks of the shape that each node would run if it were empty."""
        needs = self.needs(shape)
        if any(amount > 0 and resource not in self.rows for resource, amount in shape.needs):
            return np.zeros(self.size, np.int64)
        asked = needs > 0
        whole: Array = (self.capacity[asked] // needs[asked, None]).min(axis=0)
        return whole

    def _copy_all(self) -> None:
        table = self.node_table
        size = table.size
        self.rows = {resource: row + 1 for resource, row in table.rows.items()}
        self.free = np.vstack([self._task_slots(slice(size)), table.free()])
        capacity = np.vstack([np.full(size, NODE_TASKS_MAX), table.capacity[:, :size]])
        self.capacity = capacity
        self.per_capacity = 1.0 / np.maximum(1, capacity)  # multiplying is faster than dividing
        filling = (self.rows.get(resource) for resource in (CPU, MEMORY))
        self.idle_rows = (TASKS_ROW, *(row for row in filling if row is not None))
        self.idle = self._idle(slice(size))
        self.devices = table.free_gpus()
        self.load = table.load[:size].copy()
        self.outside_load = table.outside_load(slice(size))
        self.queued = table.queued[:size].copy()
        self.noise = {kind: column[:size].copy() for kind, column in table.noise.items()}
        self._reset_log()

    def _idle(self, slots: Array | slice) -> Array:
        """Sum of the free shares of the idle rows.

        The order of the sum is fixed: equal states give equal floats.
        """
        first, *others = self.idle_rows
        idle: Array = self.free[first, slots] * self.per_capacity[first, slots]
        for row in others:
            idle = idle + self.free[row, slots] * self.per_capacity[row, slots]
        return idle

    def _task_slots(self, slots: Array | slice) -> Array:
        """Number of tasks that nodes still accept: none where a node is closed."""
        return np.where(self.node_table.open[slots], NODE_TASKS_MAX - self.node_table.held[slots], 0)

    def _copy_slots(self, changed: Sequence[int]) -> None:
        table = self.node_table
        touched = sorted(set(changed))
        slots = indexer(touched)
        self.free[TASKS_ROW, slots] = self._task_slots(slots)
        self.free[1:, slots] = table.free_at(slots)
        self.capacity[1:, slots] = table.capacity[:, slots]
        self.per_capacity[1:, slots] = 1.0 / np.maximum(1, table.capacity[:, slots])
        self.idle[slots] = self._idle(slots)
        self.load[slots] = table.load[slots]
        self.outside_load[slots] = table.outside_load(slots)
        self.queued[slots] = table.queued[slots]
        if table.devices.shape[1]:
            self.devices = table.free_gpus()
        for kind, column in table.noise.items():
            if kind in self.noise:
                self.noise[kind][slots] = column[slots]
            else:
                self.noise[kind] = column[: table.size].copy()
        # After trimming, `changed_since` answers None to caches that are too far behind: they rescore
        # everything.
        self._trim_log(len(touched))
        self._log[self._logged : self._logged + len(touched)] = touched
        self._logged += len(touched)
        self.log_position += len(touched)

    def _on_slot_changed(self, slot: int) -> None:
        """Update idleness and log of one slot; for a single node plain Python is faster than NumPy."""
        idle = 0.0
        for row in self.idle_rows:  # in the order of `_idle`; `sum` may round differently
            idle += self.free.item(row, slot) * self.per_capacity.item(row, slot)
        self.idle[slot] = idle
        self._trim_log(1)
        self._log[self._logged] = slot
        self._logged += 1
        self.log_position += 1

    def _trim_log(self, count: int) -> None:
        """Drop the older half of the log when it is full."""
        if self._logged + count > self._log.size:
            kept = min(self._log.size // 2, self._logged)
            dropped = self._logged - kept
            self._log[:kept] = self._log[dropped : self._logged].copy()
            self._logged = kept

    def _reset_log(self) -> None:
        self.log_position += 1  # caches that were current have to rescore too
        self._log = np.zeros(max(_LOG_MIN, 4 * self.size), np.intp)
        self._logged = 0
        self._changes_max = max(_MANY_MIN, self.size // 2)


class NodeSlice:
    """Some nodes of the board as filters and scores see them: only the nodes they are asked about.

    `extra_tasks` is the number of tasks of the shape that each node is assumed to hold in addition.
    """

    def __init__(self, board: Board, shape: Shape, slots: Array, extra_tasks: Array | None = None) -> None:
        self._board = board
        self.shape = shape
        self.slots = slots
        self.extra_tasks = extra_tasks
        self.amounts: Array = board.free.take(slots, axis=1)  # free amounts, one row per resource
        if extra_tasks is not None:
            self.amounts -= np.outer(board.needs(shape), extra_tasks)

    def __len__(self) -> int:
        return int(self.slots.size)

    def subset(self, positions: Array) -> "NodeSlice":
        """The nodes at these positions of the slice."""
        extra_tasks = None if self.extra_tasks is None else self.extra_tasks[positions]
        return NodeSlice(self._board, self.shape, self.slots[positions], extra_tasks)

    def idle(self) -> Array:
        """Sum of the free shares of CPU, memory and task slots of each node."""
        board = self._board
        if self.extra_tasks is None:
            return board.idle.take(self.slots)
        shares = self.amounts * board.per_capacity.take(self.slots, axis=1)
        return reduce(np.add, [shares[row] for row in board.idle_rows])

    @property
    def idle_max(self) -> int:
        """The value of `idle` for an empty node."""
        return len(self._board.idle_rows)

    def free(self, resource: str) -> Array:
        row = self._board.row(resource)
        free: Array = np.zeros(len(self), np.int64) if row is None else self.amounts[row]
        return free

    def capacity(self, resource: str) -> Array:
        row = self._board.row(resource)
        found: Array = np.zeros(len(self), np.int64) if row is None else self._board.capacity[row, self.slots]
        return found

    def noise(self, kind: str) -> Array:
        """Number of live attempts with this kind of noise on each node."""
        column = self._board.noise.get(kind)
        count: Array = np.zeros(len(self), np.int64) if column is None else column[self.slots]
        if self.extra_tasks is not None and kind == self.shape.noise:
            count = count + self.extra_tasks
        return count

    @property
    def load(self) -> Array:
        """Share of its CPU in use, as measured by each node."""
        found: Array = self._board.load.take(self.slots)
        return found

    @property
    def outside_load(self) -> Array:
        """Share of its CPU used by processes other than tasks with a CPU reservation."""
        found: Array = self._board.outside_load.take(self.slots)
        return found

    @property
    def node_table(self) -> NodeTable:
        return self._board.node_table

    @property
    def has_gpus(self) -> bool:
        """Whether any node of the cluster has GPUs."""
        return bool(self._board.devices.shape[1])

    @property
    def devices(self) -> Array:
        """Free thousandths of each GPU, one row per node."""
        found: Array = self._board.devices[self.slots]
        return found

    @cached_property
    def labels(self) -> list[Mapping[str, str]]:
        return [self._board.node_table.labels[slot] for slot in self.slots.tolist()]
