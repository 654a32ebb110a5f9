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
from rota.scheduler.board import Board, Nodes
from rota.scheduler.company import NODE, Classes, Company, Domains
from rota.scheduler.heads import Best, Heads, best_two
from rota.scheduler.rows import Pick, Plugins, Row, Rows, Run
from rota.scheduler.rules import Terms
from rota.scheduler.scores import NEVER

_FEW = 4  # tasks for which nothing is prepared
_CLASSES_MAX = 64  # classes of nodes that are kept apart; beyond it looking at every node is cheaper


class Seat(msgspec.Struct, frozen=True):
    """One task's place: the node's slot, and its GPUs there, one bit each."""

    slot: int
    devices: int = 0


class Seated(msgspec.Struct, frozen=True):
    """What was found for one job, and how the first choice was made."""

    seats: list[Seat]
    slot: int = -1  # the first choice
    fitting: int = 0  # nodes it could have gone to
    points: float = 0.0
    runner_up: int | None = None  # slot
    runner_up_points: float = 0.0


class Seating:
    """The board, the rows and the company of one round; rows are kept from round to round."""

    def __init__(self, view: View, plugins: Plugins | None = None) -> None:
        self.board = Board(view.room)
        self.rows = Rows(self.board, plugins)
        self._domains = Domains(view.room)
        self.begin(view)

    def begin(self, view: View) -> None:
        """A new round: take over what happened since the last one."""
        self.board.sync()
        if self.board.devices.shape[1]:
            self.rows.gpus.learn(view)
        self.company = Company(view.neighbours, self._domains)
        self._among: dict[tuple[Shape, str], Array] = {}

    def seat(self, job: JobView, wanted: int, barred: Array | None = None) -> Seated:
        """Up to so many of its tasks, taken off the board; `barred` are nodes that are out of question.

        Of a gang all that are pending, or none.
        """
        if not job.spec.gang:
            return self._seat(job, wanted, barred)
        if wanted < job.tally.pending:
            return Seated([])
        if self.rows.row(job.spec.shape).fitting < wanted and self.copies(job) < wanted:
            return Seated([])
        seated = self._seat(job, wanted, barred)
        if len(seated.seats) == wanted:
            return seated
        self.give_back(job, seated.seats)
        return Seated([])

    def copies(self, job: JobView) -> int:
        """How many of its tasks have room, whatever its rules say."""
        slots = np.nonzero(self.rows.of(job.spec.shape) > NEVER)[0]
        return int(self.board.copies(job.spec.shape, slots).sum())

    def fits_somewhere(self, job: JobView, refused: Array) -> bool:
        """Were the nodes empty, without those that refused it."""
        shape = job.spec.shape
        return bool((self.board.slots(shape) * (self.rows.eligible(shape) & ~refused)).any())

    def _seat(self, job: JobView, wanted: int, barred: Array | None) -> Seated:
        terms, shape = self.terms(job), job.spec.shape
        best = self._best(shape, terms, barred)
        seated = Seated([], *best)
        if not best.fitting or wanted <= 0:
            return seated
        if wanted < _FEW:
            seated.seats.append(self._take(shape, best.slot, terms))
            if wanted > 1:
                seated.seats.extend(self._one_by_one(shape, wanted - 1, terms, barred))
        elif terms.still:
            seated.seats.extend(self._run(shape, wanted, terms, barred))
        else:
            seated.seats.extend(self._walk(shape, wanted, terms, barred))
        return seated

    def give_back(self, job: JobView, seats: list[Seat]) -> None:
        """As if they had never been taken."""
        counted = self.company.counted(job.spec)
        for seat in seats:
            self.board.take(job.spec.shape, seat.slot, -1, seat.devices)
            self.company.settle(job.spec.id, counted, seat.slot, -1)

    def terms(self, job: JobView) -> Terms:
        return Terms(self.company, job, partial(self._possible, job.spec.shape))

    def _possible(self, shape: Shape, label: str) -> Array:
        """Domains of a label with a node on which it might run, were there room."""
        known = self._among.get((shape, label))
        if known is None or self.rows.plugins.filters:  # those may look at what changes
            known = self._among[shape, label] = self.company.among(label, self.rows.eligible(shape))
        return known

    def _best(self, shape: Shape, terms: Terms, barred: Array | None) -> Best:
        row = self.rows.row(shape)
        if barred is None and not terms.parts:
            return best_two(row.points, row.fitting)
        if barred is None and (heads := self._heads(row, terms)) is not None:
            return heads.best_two(terms.points(heads.classes.members).tolist())
        return best_two(_worth(row.points, terms.points() if terms.parts else None, barred))

    def _heads(self, row: Row, terms: Terms) -> Heads | None:
        classes = self._classes(terms)
        if classes is None:
            return None
        heads = row.heads.get(terms.over)
        if heads is None or heads.classes is not classes:
            heads = row.heads[terms.over] = Heads(classes)
        heads.sync(self.board, row.points, row.version)
        return heads

    def _classes(self, terms: Terms) -> Classes | None:
        """Of nodes that are alike to every rule, where these are few."""
        classes = None if NODE in terms.over else self.company.classes(terms.over)
        return None if classes is None or len(classes.slots) > _CLASSES_MAX else classes

    def _run(self, shape: Shape, wanted: int, terms: Terms, barred: Array | None) -> list[Seat]:
        """Many at a time: what is picked does not change what the rules say of other nodes."""
        run = Run(self.rows, shape, most=1 if terms.one_per_node else None)
        seats: list[Seat] = []
        while len(seats) < wanted:
            added = terms.points() if terms.parts else None
            worth = _worth(self.rows.of(shape), added, barred)
            picks = run.next(wanted - len(seats), worth, added)
            if not picks:
                break
            seats += [self._take(shape, pick.slot, terms) for pick in picks]
        return seats

    def _walk(self, shape: Shape, wanted: int, terms: Terms, barred: Array | None) -> list[Seat]:
        """Rules that change with every pick: each class' next node is known, the best is chosen."""
        classes = self._classes(terms)
        if classes is None:
            return self._one_by_one(shape, wanted, terms, barred)
        streams = [
            _Stream(self.rows, shape, classes.number == number, barred)
            for number in range(len(classes.slots))
        ]
        seats: list[Seat] = []
        while len(seats) < wanted:
            best = _best_head(streams, terms.points(classes.members).tolist(), wanted - len(seats))
            if best is None:
                break
            seats.append(self._take(shape, best.pop().slot, terms))
        return seats

    def _one_by_one(self, shape: Shape, wanted: int, terms: Terms, barred: Array | None) -> list[Seat]:
        seats: list[Seat] = []
        while len(seats) < wanted and (best := self._best(shape, terms, barred)).fitting:
            seats.append(self._take(shape, best.slot, terms))
        return seats

    def _take(self, shape: Shape, slot: int, terms: Terms) -> Seat:
        devices = choose_devices(self.rows, shape, slot) if self.board.devices.shape[1] else 0
        self.board.take(shape, slot, 1, devices)
        terms.picked(slot)
        return Seat(slot, devices)


class _Stream:
    """The next picks among nodes that are alike to every rule."""

    def __init__(self, rows: Rows, shape: Shape, members: Array, barred: Array | None) -> None:
        self._rows = rows
        self._shape = shape
        self._out = ~members if barred is None else ~members | barred
        self._run = Run(rows, shape)
        self._picks: list[Pick] = []  # the next one last

    def head(self, wanted: int) -> Pick | None:
        if not self._picks:
            points = self._rows.of(self._shape)
            self._picks = self._run.next(wanted, np.where(self._out, NEVER, points))[::-1]
        return self._picks[-1] if self._picks else None

    def pop(self) -> Pick:
        return self._picks.pop()


def _best_head(streams: list[_Stream], added: list[float], wanted: int) -> _Stream | None:
    """The stream with the best next pick, the lower slot among equals."""
    best: tuple[float, int] | None = None
    found: _Stream | None = None
    for stream, more in zip(streams, added, strict=True):
        head = stream.head(wanted) if more != NEVER else None
        if head is not None and (best is None or (head.points + more, -head.slot) > best):
            best, found = (head.points + more, -head.slot), stream
    return found


def refusing(view: View, job: JobView, now: Instant) -> list[int]:
    """Slots of nodes that refused its like lately."""
    refused = view.refused_by(job.spec.errand).items()
    return [view.room.slot[node] for node, (until_ms, _) in refused if until_ms > now.ms]


def barring(view: View, slots: Iterable[int]) -> Array:
    """The nodes of these slots, and no others."""
    barred = np.zeros(view.room.size, np.bool_)
    barred[list(slots)] = True
    return barred


def choose_devices(rows: Rows, shape: Shape, slot: int) -> int:
    """A part goes where the policy says; whole ones are the first that are free."""
    amount = dict(shape.needs).get(GPU, 0)
    if not amount:
        return 0
    if amount < WHOLE_GPU:
        ranked = rows.gpus.rank(Nodes(rows.board, shape, np.array([slot])))
        return 1 << int(ranked.device[0])
    free: list[int] = rows.board.devices[slot].tolist()
    whole = [device for device, left in enumerate(free) if left == WHOLE_GPU]
    return sum(1 << device for device in whole[: amount // WHOLE_GPU])


def _worth(points: Array, added: Array | None, barred: Array | None) -> Array:
    worth = points if added is None else points + added
    return worth if barred is None else np.where(barred, NEVER, worth)
