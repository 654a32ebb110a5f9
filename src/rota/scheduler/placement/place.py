"""Tasks of one job onto nodes: every node considered, the best first, its rules and its gang obeyed."""

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

_FEW = 4  # tasks for which nothing is prepared
_CLASSES_MAX = 64  # classes of nodes that are kept apart; beyond it looking at every node is cheaper


class Assignment(msgspec.Struct, frozen=True):
    """One task's place: the node's slot, and its GPUs there, one bit each."""

    slot: int
    devices: int = 0


class Assignments(msgspec.Struct, frozen=True):
    """What was found for one job, and how the first choice was made."""

    assigned: list[Assignment]
    slot: int = -1  # the first choice
    fitting: int = 0  # nodes it could have gone to
    points: float = 0.0
    runner_up: int | None = None  # slot
    runner_up_points: float = 0.0


class Placer:
    """The board, the rows and the company of one round; rows are kept from round to round."""

    def __init__(self, view: View, plugins: Plugins | None = None) -> None:
        self.board = Board(view.node_table)
        self.rows = ScoreRows(self.board, plugins)
        self._domains = TopologyDomains(view.node_table)
        self.start_round(view)

    def start_round(self, view: View) -> None:
        """A new round: take over what happened since the last one."""
        self.board.sync()
        if self.board.devices.shape[1]:
            self.rows.gpus.update_demand(view)
        self.affinity = AffinityCounts(view.affinity, self._domains)
        self._eligible_domains_cache: dict[tuple[Shape, str], Array] = {}

    def place(self, job: JobView, wanted: int, barred: Array | None = None) -> Assignments:
        """Up to so many of its tasks, taken off the board; `barred` are nodes that are out of question.

        Of a gang all that are pending, or none.
        """
        if not job.spec.gang:
            return self._place(job, wanted, barred)
        if wanted < job.task_counts.pending:
            return Assignments([])
        if self.rows.row(job.spec.shape).fitting < wanted and self.count_fitting_tasks(job) < wanted:
            return Assignments([])
        seated = self._place(job, wanted, barred)
        if len(seated.assigned) == wanted:
            return seated
        self.release(job, seated.assigned)
        return Assignments([])

    def count_fitting_tasks(self, job: JobView) -> int:
        """How many of its tasks have room, whatever its rules say."""
        slots = np.nonzero(self.rows.points(job.spec.shape) > EXCLUDED)[0]
        return int(self.board.fitting_tasks(job.spec.shape, slots).sum())

    def fits_an_empty_node(self, job: JobView, refused: Array) -> bool:
        """Were the nodes empty, without those that refused it."""
        shape = job.spec.shape
        return bool((self.board.tasks_when_empty(shape) * (self.rows.eligible(shape) & ~refused)).any())

    def _place(self, job: JobView, wanted: int, barred: Array | None) -> Assignments:
        terms, shape = self.placement_rules(job), job.spec.shape
        best = self._best_two(shape, terms, barred)
        seated = Assignments([], *best)
        if not best.fitting or wanted <= 0:
            return seated
        if wanted < _FEW:
            seated.assigned.append(self._allocate(shape, best.slot, terms))
            if wanted > 1:
                seated.assigned.extend(self._place_one_by_one(shape, wanted - 1, terms, barred))
        elif terms.is_static:
            seated.assigned.extend(self._place_in_runs(shape, wanted, terms, barred))
        else:
            seated.assigned.extend(self._place_by_class(shape, wanted, terms, barred))
        return seated

    def release(self, job: JobView, assigned: list[Assignment]) -> None:
        """As if they had never been taken."""
        counted = self.affinity.membership(job.spec)
        for seat in assigned:
            self.board.allocate(job.spec.shape, seat.slot, -1, seat.devices)
            self.affinity.add(job.spec.id, counted, seat.slot, -1)

    def placement_rules(self, job: JobView) -> PlacementRules:
        return PlacementRules(self.affinity, job, partial(self._eligible_domains, job.spec.shape))

    def _eligible_domains(self, shape: Shape, label: str) -> Array:
        """Domains of a label with a node on which it might run, were there room."""
        known = self._eligible_domains_cache.get((shape, label))
        if known is None or self.rows.plugins.filters:  # those may look at what changes
            known = self._eligible_domains_cache[shape, label] = self.affinity.domains_with(
                label, self.rows.eligible(shape)
            )
        return known

    def _best_two(self, shape: Shape, rules: PlacementRules, barred: Array | None) -> BestTwo:
        row = self.rows.row(shape)
        if barred is None and not rules.rules:
            return best_two(row.points, row.fitting)
        if barred is None and (heads := self._best_nodes(row, rules)) is not None:
            return heads.best_two(rules.points(heads.classes.representatives).tolist())
        return best_two(_total_points(row.points, rules.points() if rules.rules else None, barred))

    def _best_nodes(self, row: ScoreRow, rules: PlacementRules) -> BestNodes | None:
        classes = self._node_classes(rules)
        if classes is None:
            return None
        heads = row.best_nodes.get(rules.labels)
        if heads is None or heads.classes is not classes:
            heads = row.best_nodes[rules.labels] = BestNodes(classes)
        heads.sync(self.board, row.points, row.version)
        return heads

    def _node_classes(self, rules: PlacementRules) -> NodeClasses | None:
        """Of nodes that are alike to every rule, where these are few."""
        classes = None if NODE_LABEL in rules.labels else self.affinity.classes(rules.labels)
        return None if classes is None or len(classes.slots) > _CLASSES_MAX else classes

    def _place_in_runs(
        self, shape: Shape, wanted: int, rules: PlacementRules, barred: Array | None
    ) -> list[Assignment]:
        """Many at a time: what is picked does not change what the rules say of other nodes."""
        run = PlacementRun(self.rows, shape, most=1 if rules.one_per_node else None)
        seats: list[Assignment] = []
        while len(seats) < wanted:
            added = rules.points() if rules.rules else None
            worth = _total_points(self.rows.points(shape), added, barred)
            picks = run.next_picks(wanted - len(seats), worth, added)
            if not picks:
                break
            seats += [self._allocate(shape, pick.slot, rules) for pick in picks]
        return seats

    def _place_by_class(
        self, shape: Shape, wanted: int, rules: PlacementRules, barred: Array | None
    ) -> list[Assignment]:
        """Rules that change with every pick: each class' next node is known, the best is chosen."""
        classes = self._node_classes(rules)
        if classes is None:
            return self._place_one_by_one(shape, wanted, rules, barred)
        streams = [
            _ClassPicks(self.rows, shape, classes.class_of == number, barred)
            for number in range(len(classes.slots))
        ]
        seats: list[Assignment] = []
        while len(seats) < wanted:
            best = _best_class(streams, rules.points(classes.representatives).tolist(), wanted - len(seats))
            if best is None:
                break
            seats.append(self._allocate(shape, best.pop().slot, rules))
        return seats

    def _place_one_by_one(
        self, shape: Shape, wanted: int, rules: PlacementRules, barred: Array | None
    ) -> list[Assignment]:
        seats: list[Assignment] = []
        while len(seats) < wanted and (best := self._best_two(shape, rules, barred)).fitting:
            seats.append(self._allocate(shape, best.slot, rules))
        return seats

    def _allocate(self, shape: Shape, slot: int, rules: PlacementRules) -> Assignment:
        devices = choose_gpus(self.rows, shape, slot) if self.board.devices.shape[1] else 0
        self.board.allocate(shape, slot, 1, devices)
        rules.add_task(slot)
        return Assignment(slot, devices)


class _ClassPicks:
    """The next picks among nodes that are alike to every rule."""

    def __init__(self, rows: ScoreRows, shape: Shape, members: Array, barred: Array | None) -> None:
        self._rows = rows
        self._shape = shape
        self._excluded = ~members if barred is None else ~members | barred
        self._run = PlacementRun(rows, shape)
        self._picks: list[Pick] = []  # the next one last

    def peek(self, wanted: int) -> Pick | None:
        if not self._picks:
            points = self._rows.points(self._shape)
            self._picks = self._run.next_picks(wanted, np.where(self._excluded, EXCLUDED, points))[::-1]
        return self._picks[-1] if self._picks else None

    def pop(self) -> Pick:
        return self._picks.pop()


def _best_class(streams: list[_ClassPicks], added: list[float], wanted: int) -> _ClassPicks | None:
    """The stream with the best next pick, the lower slot among equals."""
    best: tuple[float, int] | None = None
    found: _ClassPicks | None = None
    for stream, more in zip(streams, added, strict=True):
        head = stream.peek(wanted) if more != EXCLUDED else None
        if head is not None and (best is None or (head.points + more, -head.slot) > best):
            best, found = (head.points + more, -head.slot), stream
    return found


def refusing_slots(view: View, job: JobView, now: Instant) -> list[int]:
    """Slots of nodes that refused its like lately."""
    refused = view.refused_by(job.spec.refusal_key).items()
    return [view.node_table.slot[node] for node, (until_ms, _) in refused if until_ms > now.ms]


def slot_mask(view: View, slots: Iterable[int]) -> Array:
    """The nodes of these slots, and no others."""
    barred = np.zeros(view.node_table.size, np.bool_)
    barred[list(slots)] = True
    return barred


def choose_gpus(rows: ScoreRows, shape: Shape, slot: int) -> int:
    """A part goes where the policy says; whole ones are the first that are free."""
    amount = dict(shape.needs).get(GPU, 0)
    if not amount:
        return 0
    if amount < WHOLE_GPU:
        ranked = rows.gpus.rank(NodeSlice(rows.board, shape, np.array([slot])))
        return 1 << int(ranked.device[0])
    free: list[int] = rows.board.devices[slot].tolist()
    whole = [device for device, left in enumerate(free) if left == WHOLE_GPU]
    return sum(1 << device for device in whole[: amount // WHOLE_GPU])


def _total_points(points: Array, added: Array | None, barred: Array | None) -> Array:
    worth = points if added is None else points + added
    return worth if barred is None else np.where(barred, EXCLUDED, worth)
