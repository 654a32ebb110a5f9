"""Score rows: the points of every node for a shape, kept between rounds; and runs of equal tasks.

A row is rescored only at slots that the board has logged since the row was last used. `PlacementRun` picks
nodes for many equal tasks with one sort. `rota.scheduler.round` describes how both are used.
"""

from typing import NamedTuple

import numpy as np

from rota.model.amounts import GPU
from rota.model.columns import Array
from rota.model.limits import ROWS_KEPT
from rota.model.shape import Policy, Shape
from rota.scheduler.placement.best_nodes import BestNodes, count_fitting
from rota.scheduler.placement.board import Board, NodeSlice
from rota.scheduler.placement.filters import NO_MINIMUM, Filter, fits, minimum_free
from rota.scheduler.placement.gpus import GpuScorer
from rota.scheduler.placement.scores import (
    EXCLUDED,
    Interference,
    Score,
    idle_points,
    idle_points_at,
    label_points,
    state_points,
)

_FEW = 3  # nodes: up to here plain Python is faster than a NumPy call
_SOME = 32  # nodes: up to here single updates are faster than all nodes at once
_AHEAD = 2  # pairs of node and task scored ahead, per desired task
_PAIRS_MAX = 65_536  # bound on these pairs, so that one step stays short
_SPREAD_DEPTH = 2  # tasks scored ahead on one node, at first
_PACK_DEPTH = 64


class Plugins(NamedTuple):
    """Filters and scores of plugins, and the points that kinds of noise cost each other."""

    filters: tuple[Filter, ...] = ()
    scores: tuple[Score, ...] = ()
    interference: Interference | None = None


class ScoreRow:
    """A shape's points on every node: EXCLUDED where it does not fit now."""

    def __init__(self) -> None:
        self.points: Array = np.zeros(0)
        self.fitting = 0  # number of nodes that are not EXCLUDED
        self.label_points: Array | None = None  # points for labels and taints; None: none apply
        self.minimum_free: Array = np.zeros((0, 1), np.int64)
        self.minimums: list[tuple[int, int]] = []  # the same as pairs (row, minimum), without NO_MINIMUM
        self.version = (-1, -1)  # of the labels, and of the GPU demand
        self.position = -1  # of the board's log
        self.best_nodes: dict[tuple[str, ...], BestNodes] = {}  # by the labels that define its node classes


class IdlePoints:
    """Points for how idle nodes are under one policy, shared by all plain shapes."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._points: Array = np.zeros(0)
        self._position = -1  # of the board's log

    def up_to_date(self, board: Board) -> Array:
        changed = board.changed_since(self._position)
        if changed is None or changed.size > _SOME:
            self._points = idle_points(board, self._policy)
        else:
            for slot in changed.tolist():
                self._points[slot] = idle_points_at(board, self._policy, slot)
        self._position = board.log_position
        return self._points


class ScoreRows:
    def __init__(self, board: Board, plugins: Plugins | None = None) -> None:
        self.board = board
        self.plugins = plugins or Plugins()
        self._interference: Interference = self.plugins.interference or {}
        self._rows: dict[Shape, ScoreRow] = {}
        self._idle_points = {policy: IdlePoints(policy) for policy in Policy}
        self.gpus = GpuScorer()

    def points(self, shape: Shape) -> Array:
        """The shape's points on every node, brought up to date."""
        return self.row(shape).points

    def row(self, shape: Shape) -> ScoreRow:
        """The shape's row, brought up to date."""
        row = self._rows.get(shape) or self._add_row(shape)
        self._sync(shape, row)
        return row

    def eligible(self, shape: Shape) -> Array:
        """Mask of the open nodes on which the shape might run if they were empty enough."""
        self.points(shape)
        label_points = self._rows[shape].label_points
        eligible: Array = self.board.node_table.open[: self.board.size]
        if label_points is not None:
            eligible = eligible & (label_points != EXCLUDED)
        for plugin in self.plugins.filters:
            eligible = eligible & plugin.allows(NodeSlice(self.board, shape, np.arange(self.board.size)))
        return eligible

    def score_nodes(self, shape: Shape, slots: Array, extra_tasks: Array | None = None) -> Array:
        """Points on some nodes, as if each held `extra_tasks` more tasks of the shape already."""
        row = self._rows[shape]
        nodes = NodeSlice(self.board, shape, slots, extra_tasks)
        fitting = fits(nodes, row.minimum_free)
        points = state_points(nodes, self._interference, self.gpus)
        if row.label_points is not None:
            points += row.label_points.take(slots)
        for plugin in self.plugins.filters:
            fitting &= plugin.allows(nodes)
        for score in self.plugins.scores:
            points += score.points(nodes)
        points[~fitting] = EXCLUDED
        return points

    def _add_row(self, shape: Shape) -> ScoreRow:
        # The oldest row goes. A row that is needed again is scored again, so the bound
        # costs time and no correctness.
        if len(self._rows) >= ROWS_KEPT:
            del self._rows[next(iter(self._rows))]
        row = self._rows[shape] = ScoreRow()
        return row

    def _sync(self, shape: Shape, row: ScoreRow) -> None:
        board = self.board
        # Two kinds of invalidation: changes of single nodes come by the log. Labels and GPU demand affect all
        # nodes at once, so a new version rescores the whole row.
        version = (board.node_table.labels_version, self.gpus.version)
        if row.position == board.log_position and row.version == version:
            return
        changed = board.changed_since(row.position)
        if changed is None or row.version != version:
            # The log no longer reaches back to the row's position, or labels changed: score all nodes.
            row.minimum_free = minimum_free(board, shape)
            row.minimums = [
                (at, int(least)) for at, [least] in enumerate(row.minimum_free) if least != NO_MINIMUM
            ]
            row.label_points = label_points(board.node_table, shape)
            row.version = version
            row.points = self.score_nodes(shape, np.arange(board.size))
            row.fitting = count_fitting(row.points)
        elif changed.size <= _FEW and self._is_plain(shape):
            self._rescore_few(shape, row, changed.tolist())
        else:
            row.points[changed] = self._rescored(shape, row, changed)
            row.fitting = count_fitting(row.points)
        row.position = board.log_position

    def _is_plain(self, shape: Shape) -> bool:
        """Whether only free resources and idleness decide: no plugins, no noise, no GPUs in the cluster."""
        plugins = self.plugins.filters or self.plugins.scores
        return not plugins and shape.noise is None and not self.board.devices.shape[1]

    def _rescored(self, shape: Shape, row: ScoreRow, slots: Array) -> Array:
        """The same points as `score_nodes`; of a plain shape from the idle points that shapes share."""
        if not self._is_plain(shape):
            return self.score_nodes(shape, slots)
        idle, free = self._idle_points[shape.policy].up_to_date(self.board), self.board.free
        found: Array = idle.take(slots)
        for at, least in row.minimums:
            found[free[at].take(slots) < least] = EXCLUDED
        return found if row.label_points is None else found + row.label_points.take(slots)

    def _rescore_few(self, shape: Shape, row: ScoreRow, slots: list[int]) -> None:
        """The same points as `_rescored`, node by node without NumPy."""
        board, free = self.board, self.board.free
        for slot in slots:
            now = idle_points_at(board, shape.policy, slot)
            if row.label_points is not None:
                now += row.label_points.item(slot)
            for at, least in row.minimums:
                if free.item(at, slot) < least:
                    now = EXCLUDED
            # Maintained as a difference: counting the whole row would cost as much as rescoring it.
            row.fitting += (now != EXCLUDED) - (row.points.item(slot) != EXCLUDED)
            row.points[slot] = now


class Pick(NamedTuple):
    """The node chosen for one task, and its points."""

    slot: int
    points: float


class PlacementRun:
    """Picks for equal tasks, many at a time, as if they were placed one after the other.

    Each node has a sequence of points: for the first task it gets, the second, and so on. Taking the best
    head repeatedly, the lower slot among equals, is the same as sorting all entries by the lowest value so
    far in their sequence. So the picks of a whole run are one sort over a few nodes and a few tasks ahead on
    each.
    """

    def __init__(self, rows: ScoreRows, shape: Shape, most: int | None = None) -> None:
        self._rows = rows
        self._shape = shape
        self._per_node_max = most  # tasks on one node; None: any number
        # Which device is free changes with each task.
        one_by_one = any(resource == GPU for resource, _ in shape.needs)
        self._depth = 1 if one_by_one else _PACK_DEPTH if shape.policy is Policy.PACK else _SPREAD_DEPTH
        self._one_by_one = one_by_one

    def next_picks(self, count: int, worth: Array, added: Array | None = None) -> list[Pick]:
        """The next picks: up to `count`, and at least one unless nothing fits. The board is not changed.

        `worth` is the shape's row plus `added`, the points of placement rules; EXCLUDED where a node is
        barred.
        """
        best = int(worth.argmax()) if worth.size else -1
        if best < 0 or worth[best] == EXCLUDED:
            return []
        if count == 1 or self._one_by_one:
            return [Pick(best, float(worth[best]))]
        # The work is bounded by pairs of node and task. Packing needs depth (few nodes, many
        # tasks), spreading needs breadth.
        depth = min(self._depth, count, self._per_node_max or count)
        breadth = min(worth.size, max(1, count * _AHEAD // depth), _PAIRS_MAX // depth)
        picks, short_of_depth = self._sorted_picks(worth, added, breadth, depth)
        # Adapted from run to run: deeper when nodes took all tasks that were scored
        # ahead, shallower when they did not.
        self._depth = (
            min(self._depth * 4, _PAIRS_MAX) if short_of_depth else max(_SPREAD_DEPTH, self._depth // 2)
        )
        return picks[:count]

    def _sorted_picks(
        self, worth: Array, added: Array | None, breadth: int, depth: int
    ) -> tuple[list[Pick], bool]:
        """The certain picks among the best nodes, `depth` tasks ahead.

        And whether more depth would give more.
        """
        best = _best_slots(worth, breadth + 1)
        slots, left_out = best[:breadth], best[breadth:]
        pairs = np.repeat(slots, depth)
        nth = np.tile(np.arange(depth), slots.size)
        value = self._rows.score_nodes(self._shape, pairs, nth)
        if added is not None:
            value += added[pairs]
        # A node's later task cannot be picked before its earlier one, even if it is worth more, as under
        # packing. The running minimum encodes that order for the sort.
        low = np.minimum.accumulate(value.reshape(-1, depth), axis=1).ravel()
        order = np.lexsort((nth, pairs, -low))
        order = order[: np.count_nonzero(low != EXCLUDED)]
        certain = order.size
        if left_out.size:
            # A pick is certain only as long as it beats the best node that was not considered.
            next_worth, next_slot = worth[left_out[0]], left_out[0]
            after = (low[order] < next_worth) | ((low[order] == next_worth) & (pairs[order] > next_slot))
            certain = _first_true(after, certain)
        short_of_depth = False
        if depth != self._per_node_max:
            # Beyond the first node used to full depth, its next task might have come earlier.
            deep = _first_true(nth[order] == depth - 1, certain)
            short_of_depth = deep < certain - 1
            certain = min(certain, deep + 1)
        order = order[:certain]
        return [
            Pick(*pair) for pair in zip(pairs[order].tolist(), value[order].tolist(), strict=True)
        ], short_of_depth


def _best_slots(worth: Array, count: int) -> Array:
    """The `count` best slots, best first; the lower slot among equals."""
    if count < worth.size:
        least = np.partition(worth, worth.size - count)[worth.size - count]
        above = np.nonzero(worth > least)[0]
        equal = np.nonzero(worth == least)[0][: count - above.size]
        slots = np.concatenate([above, equal])
    else:
        slots = np.arange(worth.size)
    slots = slots[worth[slots] != EXCLUDED]
    ranked: Array = slots[np.lexsort((slots, -worth[slots]))]
    return ranked


def _first_true(mask: Array, otherwise: int) -> int:
    """Position of the first True, or `otherwise`."""
    at = int(mask.argmax()) if mask.size else 0
    return at if mask.size and mask[at] else otherwise
