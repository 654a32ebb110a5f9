"""Board: the nodes' columns as the scheduler works on them, with what it has just placed taken off."""

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce

import numpy as np

from rota.model.amounts import CPU, GPU, MEMORY, WHOLE_GPU
from rota.model.columns import Array, indexer
from rota.model.limits import NODE_TASKS_MAX
from rota.model.node_table import NodeTable, bits
from rota.model.shape import Shape

TASKS_ROW = 0  # how many tasks a node still takes; the rows of resources follow, whatever their names
_LOG_MIN = 1024
_MANY_MIN = 8  # changes: up to here they are looked at one by one also where there are few nodes


class Board:
    """A copy of the room, brought up to date by the few slots that changed.

    Its log lists every slot whose state changed, by the room or by a placement: who keeps something per node
    remembers how far it has read.
    """

    def __init__(self, node_table: NodeTable) -> None:
        self.node_table = node_table
        self.log_position = 0  # how far the log has got
        self._log: Array = np.zeros(_LOG_MIN, np.intp)
        self._logged = 0
        self._changes_max = 0  # changes after which all nodes are looked at again
        self._changes_read = -1  # of the room's changes; nothing yet
        self.rows: dict[str, int] = {}  # of resources; row 0 counts tasks and has no name
        self.idle_rows: tuple[int, ...] = ()  # rows of what makes a node idle or full

    @property
    def size(self) -> int:
        return self.node_table.size

    def sync(self) -> None:
        """Take over what changed in the room since the last time."""
        room = self.node_table
        position = room.forgotten + len(room.changed)
        if self._changes_read == position:
            return
        if (
            self._changes_read < room.forgotten
            or len(self.rows) != len(room.rows)
            or self.load.size != room.size
        ):
            self._copy_all()
        else:
            self._copy_slots(room.changed[self._changes_read - room.forgotten :])
        self._changes_read = position

    def changed_since(self, position: int) -> Array | None:
        """Slots that changed since then; None where that is too long ago or too many to tell."""
        start = self._logged - (self.log_position - position)
        if start < 0 or self._logged - start > self._changes_max:
            return None
        return self._log[start : self._logged]

    def row(self, resource: str) -> int | None:
        return self.rows.get(resource)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.rows) + 1

    def needs(self, shape: Shape) -> Array:
        """What a task of it takes, row by row; a resource that no node has has no row."""
        found = np.zeros(self.row_count, np.int64)
        found[TASKS_ROW] = 1
        for resource, amount in shape.needs:
            row = self.rows.get(resource)
            if row is not None:
                found[row] = amount
        return found

    def allocate(self, shape: Shape, slot: int, times: int = 1, devices: int = 0) -> None:
        """So many tasks are placed there (a negative number: taken back)."""
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
        """More (negative: less) of everything is free there, for a while."""
        self.free[:, slot] += amounts
        self._on_slot_changed(slot)

    def fitting_tasks(self, shape: Shape, slots: Array) -> Array:
        """How many more tasks of this shape each of these nodes has room for; GPUs apart."""
        most: Array = np.maximum(0, self.free[TASKS_ROW, slots])
        for resource, amount in shape.needs:
            row = self.rows.get(resource)
            if row is None:
                return np.zeros_like(most)
            if amount > 0:
                np.minimum(most, np.maximum(0, self.free[row, slots]) // amount, out=most)
        return most

    def tasks_when_empty(self, shape: Shape) -> Array:
        """How many tasks of this shape each node runs at once when it has nothing else."""
        needs = self.needs(shape)
        if any(amount > 0 and resource not in self.rows for resource, amount in shape.needs):
            return np.zeros(self.size, np.int64)
        asked = needs > 0
        whole: Array = (self.capacity[asked] // needs[asked, None]).min(axis=0)
        return whole

    def _copy_all(self) -> None:
        room = self.node_table
        size = room.size
        self.rows = {resource: row + 1 for resource, row in room.rows.items()}
        self.free = np.vstack([self._task_slots(slice(size)), room.free()])
        capacity = np.vstack([np.full(size, NODE_TASKS_MAX), room.capacity[:, :size]])
        self.capacity = capacity
        self.per_capacity = 1.0 / np.maximum(1, capacity)  # dividing is slow
        filling = (self.rows.get(resource) for resource in (CPU, MEMORY))
        self.idle_rows = (TASKS_ROW, *(row for row in filling if row is not None))
        self.idle = self._idle(slice(size))
        self.devices = room.free_gpus()
        self.load = room.load[:size].copy()
        self.outside_load = room.outside_load(slice(size))
        self.queued = room.queued[:size].copy()
        self.noise = {kind: column[:size].copy() for kind, column in room.noise.items()}
        self._reset_log()

    def _idle(self, slots: Array | slice) -> Array:
        """Shares that are free of what makes a node idle or full, added up in one order: always exact."""
        first, *rest = self.idle_rows
        idle: Array = self.free[first, slots] * self.per_capacity[first, slots]
        for row in rest:
            idle = idle + self.free[row, slots] * self.per_capacity[row, slots]
        return idle

    def _task_slots(self, slots: Array | slice) -> Array:
        """How many more tasks nodes take: closed ones none."""
        return np.where(self.node_table.open[slots], NODE_TASKS_MAX - self.node_table.held[slots], 0)

    def _copy_slots(self, changed: Sequence[int]) -> None:
        room = self.node_table
        touched = sorted(set(changed))
        slots = indexer(touched)
        self.free[TASKS_ROW, slots] = self._task_slots(slots)
        self.free[1:, slots] = room.free_at(slots)
        self.capacity[1:, slots] = room.capacity[:, slots]
        self.per_capacity[1:, slots] = 1.0 / np.maximum(1, room.capacity[:, slots])
        self.idle[slots] = self._idle(slots)
        self.load[slots] = room.load[slots]
        self.outside_load[slots] = room.outside_load(slots)
        self.queued[slots] = room.queued[slots]
        if room.devices.shape[1]:
            self.devices = room.free_gpus()
        for kind, column in room.noise.items():
            if kind in self.noise:
                self.noise[kind][slots] = column[slots]
            else:
                self.noise[kind] = column[: room.size].copy()
        self._trim_log(len(touched))
        self._log[self._logged : self._logged + len(touched)] = touched
        self._logged += len(touched)
        self.log_position += len(touched)

    def _on_slot_changed(self, slot: int) -> None:
        """Something was taken there or given back: for one node plain numbers beat NumPy's cost per call."""
        idle = 0.0
        for row in self.idle_rows:  # as `_idle` adds them up; `sum` may round otherwise
            idle += self.free.item(row, slot) * self.per_capacity.item(row, slot)
        self.idle[slot] = idle
        self._trim_log(1)
        self._log[self._logged] = slot
        self._logged += 1
        self.log_position += 1

    def _trim_log(self, count: int) -> None:
        """The older half is forgotten when the log is full."""
        if self._logged + count > self._log.size:
            kept = min(self._log.size // 2, self._logged)
            dropped = self._logged - kept
            self._log[:kept] = self._log[dropped : self._logged].copy()
            self._logged = kept

    def _reset_log(self) -> None:
        self.log_position += 1  # whoever had read everything starts over too
        self._log = np.zeros(max(_LOG_MIN, 4 * self.size), np.intp)
        self._logged = 0
        self._changes_max = max(_MANY_MIN, self.size // 2)


class NodeSlice:
    """Some nodes of the board, as filters and scores see them: nothing but the nodes they are asked about.

    `ahead` is how many more tasks of the shape each is to be thought of as holding already.
    """

    def __init__(self, board: Board, shape: Shape, slots: Array, extra_tasks: Array | None = None) -> None:
        self._board = board
        self.shape = shape
        self.slots = slots
        self.extra_tasks = extra_tasks
        self.amounts: Array = board.free.take(slots, axis=1)  # what is free, one row per resource
        if extra_tasks is not None:
            self.amounts -= np.outer(board.needs(shape), extra_tasks)

    def __len__(self) -> int:
        return int(self.slots.size)

    def subset(self, positions: Array) -> "NodeSlice":
        """Those at these places among them."""
        ahead = None if self.extra_tasks is None else self.extra_tasks[positions]
        return NodeSlice(self._board, self.shape, self.slots[positions], ahead)

    def idle(self) -> Array:
        """What is free of cpu, of memory and of places for tasks: the shares of what each node has, added."""
        board = self._board
        if self.extra_tasks is None:
            return board.idle.take(self.slots)
        shares = self.amounts * board.per_capacity.take(self.slots, axis=1)
        return reduce(np.add, [shares[row] for row in board.idle_rows])

    @property
    def idle_max(self) -> int:
        """The same of a node on which nothing runs."""
        return len(self._board.idle_rows)

    def free(self, resource: str) -> Array:
        row = self._board.row(resource)
        free: Array = np.zeros(len(self), np.int64) if row is None else self.amounts[row]
        return free

    def capacity(self, resource: str) -> Array:
        row = self._board.row(resource)
        there: Array = np.zeros(len(self), np.int64) if row is None else self._board.capacity[row, self.slots]
        return there

    def noise(self, kind: str) -> Array:
        """Live attempts there that make this kind of disturbance."""
        column = self._board.noise.get(kind)
        count: Array = np.zeros(len(self), np.int64) if column is None else column[self.slots]
        if self.extra_tasks is not None and kind == self.shape.noise:
            count = count + self.extra_tasks
        return count

    @property
    def load(self) -> Array:
        """The share of its cpu in use, as the node measured it."""
        found: Array = self._board.load.take(self.slots)
        return found

    @property
    def outside_load(self) -> Array:
        """The share of its cpu in use by others than the tasks that have reserved some."""
        found: Array = self._board.outside_load.take(self.slots)
        return found

    @property
    def node_table(self) -> NodeTable:
        return self._board.node_table

    @property
    def has_gpus(self) -> bool:
        """Whether there is any in the cluster."""
        return bool(self._board.devices.shape[1])

    @property
    def devices(self) -> Array:
        """Free thousandths of each GPU, one row per node."""
        found: Array = self._board.devices[self.slots]
        return found

    @cached_property
    def labels(self) -> list[Mapping[str, str]]:
        return [self._board.node_table.labels[slot] for slot in self.slots.tolist()]
