"""Tasks of one job -> the best nodes for them, under its placement rules; a gang as a whole or not at all."""

from collections.abc import Iterable
from functools import partial

import msgspec
import numpy as np

from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.columns import Array
from rota.model.plan import Instant
from rota.model.shape import Shape
from rota.model.view import JobView, View
from rota.scheduler.placement.affinity import PlacementRules
from rota.scheduler.placement.affinity_counts import NODE_LABEL, AffinityCounts, NodeClasses, TopologyDomains
from rota.scheduler.placement.best_nodes import BestNodes, BestTwo, best_two
from rota.scheduler.placement.board import Board, NodeSlice
from rota.scheduler.placement.rows import Pick, PlacementRun, Plugins, ScoreRow, ScoreRows
from rota.scheduler.placement.scores import EXCLUDED

_FEW = 4  # tasks: for fewer, preparing a run costs more than it saves
_CLASSES_MAX = 64  # node classes: with more of them, scoring every node is cheaper


class Assignment(msgspec.Struct, frozen=True):
    """The node slot of one task, and its GPUs there, one bit each."""

    slot: int
    devices: int = 0


class Assignments(msgspec.Struct, frozen=True):
    """The assignments found for one job, and how the first node was chosen.

    `assigned` grows while tasks are placed; the other fields describe the first choice for `rota why`.
    """

    assigned: list[Assignment]
    slot: int = -1  # the first choice
    fitting: int = 0  # number of nodes that fitted
    points: float = 0.0
    runner_up: int | None = None  # slot
    runner_up_points: float = 0.0


class Placer:
    """Board, score rows and affinity counts.

    The rows are kept between rounds, the counts are of one round.
    """

    def __init__(self, view: View, plugins: Plugins | None = None) -> None:
        self.board = Board(view.node_table)
        self.rows = ScoreRows(self.board, plugins)
        self._domains = TopologyDomains(view.node_table)
        self.start_round(view)

    def start_round(self, view: View) -> None:
        """Bring the board up to date and drop the counts of the previous round."""
        self.board.sync()
        # Demand is an input of the GPU score alone; without GPUs counting it would
        # cost every round for nothing.
        if self.board.devices.shape[1]:
            self.rows.gpus.update_demand(view)
        self.affinity = AffinityCounts(view.affinity, self._domains)
        self._eligible_domains_cache: dict[tuple[Shape, str], Array] = {}

    def place(self, job: JobView, count: int, barred: Array | None = None) -> Assignments:
        """Place up to `count` tasks and allocate them on the board; `barred` masks excluded nodes.

        Of a gang all pending tasks are placed, or none.
        """
        if not job.spec.gang:
            return self._place(job, count, barred)
        # `parallel` or a quota allows only a part of it. A gang starts as a whole or not at all.
        if count < job.task_counts.pending:
            return Assignments([])
        # A cheap test first: undoing a partly placed gang costs a rescore of every node it touched.
        if self.rows.row(job.spec.shape).fitting < count and self.count_fitting_tasks(job) < count:
            return Assignments([])
        found = self._place(job, count, barred)
        if len(found.assigned) == count:
            return found
        # The board must be as before the trial: the next job of this round is placed on it.
        self.release(job, found.assigned)
        return Assignments([])

    def count_fitting_tasks(self, job: JobView) -> int:
        """How many of its tasks fit by resources alone, ignoring its placement rules."""
        slots = np.nonzero(self.rows.points(job.spec.shape) > EXCLUDED)[0]
        return int(self.board.fitting_tasks(job.spec.shape, slots).sum())

    def fits_an_empty_node(self, job: JobView, refused: Array) -> bool:
        """Whether a task would fit on some empty node that has not refused the job."""
        shape = job.spec.shape
        return bool((self.board.tasks_when_empty(shape) * (self.rows.eligible(shape) & ~refused)).any())

    def _place(self, job: JobView, count: int, barred: Array | None) -> Assignments:
        rules, shape = self.placement_rules(job), job.spec.shape
        best = self._best_two(shape, rules, barred)
        found = Assignments([], *best)
        if not best.fitting or count <= 0:
            return found
        # The best node is known already from `_best_two`. Most jobs have one task, and
        # this is their whole placement.
        if count < _FEW:
            found.assigned.append(self._allocate(shape, best.slot, rules))
            if count > 1:
                found.assigned.extend(self._place_one_by_one(shape, count - 1, rules, barred))
        # A run scores several tasks ahead. That is exact only while a pick changes no points of other nodes.
        elif rules.is_static:
            found.assigned.extend(self._place_in_runs(shape, count, rules, barred))
        else:
            found.assigned.extend(self._place_by_class(shape, count, rules, barred))
        return found

    def release(self, job: JobView, assigned: list[Assignment]) -> None:
        """Undo these assignments on the board and in the counts."""
        counted = self.affinity.membership(job.spec)
        for assignment in assigned:
            self.board.allocate(job.spec.shape, assignment.slot, -1, assignment.devices)
            self.affinity.add(job.spec.id, counted, assignment.slot, -1)

    def placement_rules(self, job: JobView) -> PlacementRules:
        return PlacementRules(self.affinity, job, partial(self._eligible_domains, job.spec.shape))

    def _eligible_domains(self, shape: Shape, label: str) -> Array:
        """Mask of the label's domains that have an eligible node for the shape."""
        known = self._eligible_domains_cache.get((shape, label))
        if known is None or self.rows.plugins.filters:  # what a plugin allows may change within a round
            known = self._eligible_domains_cache[shape, label] = self.affinity.domains_with(
                label, self.rows.eligible(shape)
            )
        return known

    def _best_two(self, shape: Shape, rules: PlacementRules, barred: Array | None) -> BestTwo:
        row = self.rows.row(shape)
        if barred is None and not rules.rules:
            return best_two(row.points, row.fitting)
        if barred is None and (best_nodes := self._best_nodes(row, rules)) is not None:
            return best_nodes.best_two(rules.points(best_nodes.classes.representatives).tolist())
        return best_two(_total_points(row.points, rules.points() if rules.rules else None, barred))

    def _best_nodes(self, row: ScoreRow, rules: PlacementRules) -> BestNodes | None:
        classes = self._node_classes(rules)
        if classes is None:
            return None
        best_nodes = row.best_nodes.get(rules.labels)
        # Compared by identity: after a change of labels the classes are new objects, and
        # old entries name wrong nodes.
        if best_nodes is None or best_nodes.classes is not classes:
            best_nodes = row.best_nodes[rules.labels] = BestNodes(classes)
        best_nodes.sync(self.board, row.points, row.version)
        return best_nodes

    def _node_classes(self, rules: PlacementRules) -> NodeClasses | None:
        """Classes of nodes that every rule treats equally; None where there are too many classes."""
        # With a rule per node every node is its own class, and the cache would be the row itself.
        classes = None if NODE_LABEL in rules.labels else self.affinity.classes(rules.labels)
        return None if classes is None or len(classes.slots) > _CLASSES_MAX else classes

    def _place_in_runs(
        self, shape: Shape, count: int, rules: PlacementRules, barred: Array | None
    ) -> list[Assignment]:
        """Place many tasks at a time: a pick does not change the points that rules give other nodes."""
        run = PlacementRun(self.rows, shape, most=1 if rules.one_per_node else None)
        assignments: list[Assignment] = []
        while len(assignments) < count:
            added = rules.points() if rules.rules else None
            worth = _total_points(self.rows.points(shape), added, barred)
            picks = run.next_picks(count - len(assignments), worth, added)
            if not picks:
                break
            assignments += [self._allocate(shape, pick.slot, rules) for pick in picks]
        return assignments

    def _place_by_class(
        self, shape: Shape, count: int, rules: PlacementRules, barred: Array | None
    ) -> list[Assignment]:
        """Place under rules whose points change with every pick: compare the next pick of each node class."""
        classes = self._node_classes(rules)
        if classes is None:
            return self._place_one_by_one(shape, count, rules, barred)
        classes_picks = [
            _ClassPicks(self.rows, shape, classes.class_of == number, barred)
            for number in range(len(classes.slots))
        ]
        assignments: list[Assignment] = []
        while len(assignments) < count:
            best = _best_class(
                classes_picks, rules.points(classes.representatives).tolist(), count - len(assignments)
            )
            if best is None:
                break
            assignments.append(self._allocate(shape, best.pop().slot, rules))
        return assignments

    def _place_one_by_one(
        self, shape: Shape, count: int, rules: PlacementRules, barred: Array | None
    ) -> list[Assignment]:
        assignments: list[Assignment] = []
        while len(assignments) < count and (best := self._best_two(shape, rules, barred)).fitting:
            assignments.append(self._allocate(shape, best.slot, rules))
        return assignments

    def _allocate(self, shape: Shape, slot: int, rules: PlacementRules) -> Assignment:
        # Chosen by the scheduler, not by the node: preemption and density have to
        # know which device becomes free.
        devices = choose_gpus(self.rows, shape, slot) if self.board.devices.shape[1] else 0
        self.board.allocate(shape, slot, 1, devices)
        rules.add_task(slot)
        return Assignment(slot, devices)


class _ClassPicks:
    """The next picks within one class of nodes that every rule treats equally."""

    def __init__(self, rows: ScoreRows, shape: Shape, members: Array, barred: Array | None) -> None:
        self._rows = rows
        self._shape = shape
        self._excluded = ~members if barred is None else ~members | barred
        self._run = PlacementRun(rows, shape)
        self._picks: list[Pick] = []  # the next one last

    def peek(self, count: int) -> Pick | None:
        if not self._picks:
            points = self._rows.points(self._shape)
            self._picks = self._run.next_picks(count, np.where(self._excluded, EXCLUDED, points))[::-1]
        return self._picks[-1] if self._picks else None

    def pop(self) -> Pick:
        return self._picks.pop()


def _best_class(classes_picks: list[_ClassPicks], added: list[float], count: int) -> _ClassPicks | None:
    """The class with the best next pick, the lower slot among equals."""
    best: tuple[float, int] | None = None
    found: _ClassPicks | None = None
    for picks, more in zip(classes_picks, added, strict=True):
        head = picks.peek(count) if more != EXCLUDED else None
        # Ties go to the lower slot, as in a scan of all nodes: property tests compare the two.
        if head is not None and (best is None or (head.points + more, -head.slot) > best):
            best, found = (head.points + more, -head.slot), picks
    return found


def refusing_slots(view: View, job: JobView, now: Instant) -> list[int]:
    """Slots of nodes whose refusal of such jobs has not expired."""
    refused = view.refused_by(job.spec.refusal_key).items()
    return [view.node_table.slot[node] for node, (until_ms, _) in refused if until_ms > now.ms]


def slot_mask(view: View, slots: Iterable[int]) -> Array:
    """Boolean mask over all nodes that is True at these slots."""
    mask = np.zeros(view.node_table.size, np.bool_)
    mask[list(slots)] = True
    return mask


def choose_gpus(rows: ScoreRows, shape: Shape, slot: int) -> int:
    """Bit mask of the GPUs for one task: the best-ranked device for a share, else the first free ones."""
    amount = dict(shape.needs).get(GPU, 0)
    if not amount:
        return 0
    # A share must fit on one device; the sum of free shares of several devices is of no use to a task.
    if amount < WHOLE_GPU:
        ranked = rows.gpus.rank(NodeSlice(rows.board, shape, np.array([slot])))
        return 1 << int(ranked.device[0])
    free: list[int] = rows.board.devices[slot].tolist()
    unused = [device for device, left in enumerate(free) if left == WHOLE_GPU]
    return sum(1 << device for device in unused[: amount // WHOLE_GPU])


def _total_points(points: Array, added: Array | None, barred: Array | None) -> Array:
    worth = points if added is None else points + added
    return worth if barred is None else np.where(barred, EXCLUDED, worth)
