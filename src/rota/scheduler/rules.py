"""What a task needs of its neighbours and siblings: near to, apart from, spread over; counted per domain."""

from collections.abc import Callable
from functools import cached_property, reduce
from typing import Protocol

import numpy as np

from rota.model.columns import Array
from rota.model.job import JobSpec
from rota.model.shape import Spread, Term
from rota.model.view import JobView
from rota.scheduler.company import NODE, Company, Counts
from rota.scheduler.scores import NEVER


class Terms:
    """What one job's rules, and those of others against it, add to the points of nodes while it is placed."""

    def __init__(self, company: Company, job: JobView, among: Callable[[str], Array]) -> None:
        spec = job.spec
        self._job = spec.id
        self._company = company
        self._counted = company.counted(spec)
        self.parts: list[Part] = []
        for term in spec.near:
            self._add(Near(company.members((spec.namespace, term.jobs)).by(term.over), term, spec))
        for term in spec.apart:
            self._add(Apart(company.members((spec.namespace, term.jobs)).by(term.over), term, spec))
        for repulsion in company.repelled(spec):
            self._add(Apart(company.holders(repulsion).by(repulsion[1].over), repulsion[1], None))
        for rule in spec.spread:
            self._add(Even(company.own(spec.id).by(rule.over), rule, among(rule.over)))

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def still(self) -> bool:
        """What is picked changes nothing, or only that its node is taken."""
        return all(not part.counts_own or part.one_per_node for part in self.parts)

    @property
    def one_per_node(self) -> bool:
        return any(part.one_per_node for part in self.parts)

    @cached_property
    def over(self) -> tuple[str, ...]:
        """Labels: nodes that agree in all of them are alike to every rule."""
        return tuple(sorted({part.over for part in self.parts}))

    def points(self, slots: Array | None = None) -> Array:
        """To be added to each node's own (of some or all nodes); NEVER where a rule forbids it."""
        return reduce(np.add, [_of_nodes(part, slots) for part in self.parts])

    def picked(self, slot: int) -> None:
        self._company.settle(self._job, self._counted, slot, 1)

    def _add(self, part: "Part") -> None:
        self.parts.append(part)


def _of_nodes(part: "Part", slots: Array | None) -> Array:
    points = part.points()
    if part.over == NODE:  # each is a domain of its own
        return points[:-1] if slots is None else points[slots]
    return points[part.counts.domain if slots is None else part.counts.domain[slots]]


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

    def __init__(self, counts: Counts, rule: Spread, among: Array) -> None:
        self.over, self.counts, self._rule, self._among = rule.over, counts, rule, among

    def points(self) -> Array:
        live = self.counts.live
        more = np.where(self._among, live - live[self._among].min(initial=np.inf), 0.0)
        if self._rule.weight is not None:
            return more * -float(self._rule.weight)
        return np.where(self._among & (more < self._rule.skew), 0.0, NEVER)
