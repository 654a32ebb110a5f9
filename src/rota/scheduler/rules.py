"""What a task needs of its neighbours and siblings: near to, apart from, spread over; counted per domain."""

from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.neighbours import Counted, Neighbours, Repulsion, Selector
from rota.model.room import Room
from rota.model.shape import Spread, Term
from rota.model.view import JobView
from rota.scheduler.scores import NEVER

NODE = "node"


class Division(NamedTuple):
    """The nodes, divided by a label: a domain's number for each; those without it have `domains`."""

    domain: Array
    domains: int  # how many


class Domains:
    """Divisions of the nodes, kept while no label changes."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._version = (-1, -1)
        self._known: dict[str, Division] = {}
        self._together: dict[tuple[str, ...], Array] = {}

    def by(self, label: str) -> Division:
        self._forget()
        known = self._known.get(label)
        if known is None:
            known = self._known[label] = self._divide(label)
        return known

    def together(self, labels: tuple[str, ...]) -> Array:
        """Nodes that agree in all of these labels have the same number."""
        self._forget()
        known = self._together.get(labels)
        if known is None:
            columns = np.stack([self.by(label).domain for label in labels])
            known = self._together[labels] = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
        return known

    def _forget(self) -> None:
        version = (self.room.labels_version, self.room.size)
        if version != self._version:
            self._version = version
            self._known.clear()
            self._together.clear()

    def _divide(self, label: str) -> Division:
        if label == NODE:
            return Division(np.arange(self.room.size), self.room.size)
        values = [labels.get(label) for labels in self.room.labels]
        names = {value: at for at, value in enumerate(sorted({one for one in values if one is not None}))}
        index = np.array([len(names) if value is None else names[value] for value in values], np.intp)
        return Division(index, len(names))


class Company:
    """Who is where: as the mirror counts it, and what this round has placed."""

    def __init__(self, neighbours: Neighbours, size: int) -> None:
        self._neighbours = neighbours
        self._size = size
        self.seated: dict[JobId, dict[int, int]] = {}  # in this round: tasks of a job by slot
        self._own: dict[JobId, Array] = {}
        self._members: dict[Selector, Array] = {}
        self._holders: dict[Repulsion, Array] = {}

    def members(self, selector: Selector) -> Array:
        if selector not in self._members:
            self._members[selector] = self._neighbours.members[selector][: self._size].copy()
        return self._members[selector]

    def holders(self, repulsion: Repulsion) -> Array:
        if repulsion not in self._holders:
            self._holders[repulsion] = self._neighbours.holders[repulsion][: self._size].copy()
        return self._holders[repulsion]

    def own(self, job: JobId) -> Array:
        """Attempts of the job itself, where it wants to be spread."""
        if job not in self._own:
            self._own[job] = self._neighbours.own[job][: self._size].copy()
        return self._own[job]

    def counted(self, spec: JobSpec) -> Counted:
        return self._neighbours.counted(spec)

    def repelled(self, spec: JobSpec) -> list[Repulsion]:
        return self._neighbours.repelled(spec)

    def settle(self, job: JobId, counted: Counted, slot: int, times: int) -> None:
        """A task of the job takes its place (-1: leaves it)."""
        here = self.seated.setdefault(job, {})
        here[slot] = here.get(slot, 0) + times
        if job in self._neighbours.own:
            self.own(job)[slot] += times
        for selector in counted.members:
            self.members(selector)[slot] += times
        for repulsion in counted.holders:
            self.holders(repulsion)[slot] += times


class Terms:
    """What one job's rules, and those of others against it, add to the points of nodes while it is placed."""

    def __init__(self, domains: Domains, company: Company, job: JobView, eligible: Array) -> None:
        spec = job.spec
        self._job = spec.id
        self._company = company
        self._counted = company.counted(spec)
        self._domains = domains
        self.parts: list[Part] = []
        for term in spec.near:
            self._add(Near(self._count(term, company.members((spec.namespace, term.jobs))), term, spec))
        for term in spec.apart:
            self._add(Apart(self._count(term, company.members((spec.namespace, term.jobs))), term, spec))
        for repulsion in company.repelled(spec):
            self._add(Apart(self._count(repulsion[1], company.holders(repulsion)), repulsion[1], None))
        for rule in spec.spread:
            self._add(Even(self._count(rule, company.own(spec.id)), rule, eligible))

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def still(self) -> bool:
        """What is picked changes nothing, or only that its node is taken."""
        return all(not part.counts_own or part.one_per_node for part in self.parts)

    @property
    def one_per_node(self) -> bool:
        return any(part.one_per_node for part in self.parts)

    @property
    def classes(self) -> Array:
        """Nodes of one class are alike to every rule."""
        return self._domains.together(tuple(sorted({part.over for part in self.parts})))

    def points(self, slots: Array | None = None) -> Array:
        """To be added to each node's own (of some or all nodes); NEVER where a rule forbids it."""
        of_node = [
            part.points()[part.counts.domain if slots is None else part.counts.domain[slots]]
            for part in self.parts
        ]
        return reduce(np.add, of_node)

    def picked(self, slot: int) -> None:
        for part in self.parts:
            if part.counts_own:
                part.counts.live[part.counts.domain[slot]] += 1
        self._company.settle(self._job, self._counted, slot, 1)

    def _add(self, part: "Part") -> None:
        self.parts.append(part)

    def _count(self, term: Term | Spread, column: Array) -> "Counts":
        division = self._domains.by(term.over)
        live = np.bincount(division.domain, column, division.domains + 1)
        return Counts(division.domain, live.astype(np.float64))  # without nodes NumPy counts in integers


class Counts(NamedTuple):
    """How many live attempts a rule speaks of, by domain; the last entry is of nodes without the label."""

    domain: Array  # of each node
    live: Array


class Part(Protocol):
    """One rule."""

    over: str
    counts: Counts
    counts_own: bool  # the job's own tasks are among those it speaks of

    @property
    def one_per_node(self) -> bool: ...
    def points(self) -> Array:
        """Of each domain."""


class Near:
    """In a domain where some of them are. The first of those who want to be together may be anywhere."""

    one_per_node = False

    def __init__(self, counts: Counts, term: Term, spec: JobSpec) -> None:
        self.over, self.counts, self._weight = term.over, counts, term.weight
        self.counts_own = term.jobs.holds(spec.known_as)

    def points(self) -> Array:
        there = self.counts.live > 0
        there[-1] = False
        if self._weight is not None:
            return there * float(self._weight)
        if self.counts_own and not there.any():
            there[:-1] = True
        return np.where(there, 0.0, NEVER)


class Apart:
    """In a domain where none of them is."""

    def __init__(self, counts: Counts, term: Term, spec: JobSpec | None) -> None:
        self.over, self.counts, self._weight = term.over, counts, term.weight
        self.counts_own = spec is not None and term.jobs.holds(spec.known_as)

    @property
    def one_per_node(self) -> bool:
        return self.counts_own and self._weight is None and self.over == NODE

    def points(self) -> Array:
        there = self.counts.live > 0
        there[-1] = False
        return there * -float(self._weight) if self._weight is not None else np.where(there, NEVER, 0.0)


class Even:
    """The fullest domain has at most so many more than the emptiest in which it might run."""

    counts_own = True
    one_per_node = False

    def __init__(self, counts: Counts, rule: Spread, eligible: Array) -> None:
        self.over, self.counts, self._rule = rule.over, counts, rule
        self._among = np.bincount(counts.domain, eligible, counts.live.size) > 0
        self._among[-1] = False

    def points(self) -> Array:
        live = self.counts.live
        more = np.where(self._among, live - live[self._among].min(initial=np.inf), 0.0)
        if self._rule.weight is not None:
            return more * -float(self._rule.weight)
        return np.where(self._among & (more < self._rule.skew), 0.0, NEVER)
