"""What a task needs of its neighbours and siblings: near to, apart from, spread over; counted per domain."""

from collections.abc import Callable
from functools import cached_property, reduce
from typing import Protocol

import numpy as np

from rota.model.columns import Array
from rota.model.job import JobSpec
from rota.model.shape import AffinityTerm, SpreadTerm
from rota.model.view import JobView
from rota.scheduler.placement.affinity_counts import NODE_LABEL, AffinityCounts, DomainCounts
from rota.scheduler.placement.scores import EXCLUDED


class PlacementRules:
    """What one job's rules, and those of others against it, add to the points of nodes while it is placed."""

    def __init__(
        self, affinity: AffinityCounts, job: JobView, eligible_domains: Callable[[str], Array]
    ) -> None:
        spec = job.spec
        self._job = spec.id
        self._counts = affinity
        self._membership = affinity.membership(spec)
        self.rules: list[PlacementRule] = []
        for term in spec.near:
            self._add_rule(
                Affinity(affinity.members((spec.namespace, term.jobs)).by_domain(term.over), term, spec)
            )
        for term in spec.apart:
            self._add_rule(
                AntiAffinity(affinity.members((spec.namespace, term.jobs)).by_domain(term.over), term, spec)
            )
        for repulsion in affinity.repelled(spec):
            self._add_rule(
                AntiAffinity(affinity.holders(repulsion).by_domain(repulsion[1].over), repulsion[1], None)
            )
        for rule in spec.spread:
            self._add_rule(
                TopologySpread(
                    affinity.own_tasks(spec.id).by_domain(rule.over), rule, eligible_domains(rule.over)
                )
            )

    def __bool__(self) -> bool:
        return bool(self.rules)

    @property
    def is_static(self) -> bool:
        """What is picked changes nothing, or only that its node is taken."""
        return all(not part.counts_own or part.one_per_node for part in self.rules)

    @property
    def one_per_node(self) -> bool:
        return any(part.one_per_node for part in self.rules)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Labels: nodes that agree in all of them are alike to every rule."""
        return tuple(sorted({part.over for part in self.rules}))

    def points(self, slots: Array | None = None) -> Array:
        """To be added to each node's own (of some or all nodes); NEVER where a rule forbids it."""
        return reduce(np.add, [_points_of_nodes(part, slots) for part in self.rules])

    def add_task(self, slot: int) -> None:
        self._counts.add(self._job, self._membership, slot, 1)

    def _add_rule(self, rule: "PlacementRule") -> None:
        self.rules.append(rule)


def _points_of_nodes(rule: "PlacementRule", slots: Array | None) -> Array:
    points = rule.points()
    if rule.over == NODE_LABEL:  # each is a domain of its own
        return points[:-1] if slots is None else points[slots]
    return points[rule.counts.domain if slots is None else rule.counts.domain[slots]]


class PlacementRule(Protocol):
    """One rule."""

    over: str
    counts: DomainCounts
    counts_own: bool  # the job's own tasks are among those it speaks of

    @property
    def one_per_node(self) -> bool: ...
    def points(self) -> Array:
        """Of each domain."""


class Affinity:
    """In a domain where some of them are. The first of those who want to be together may be anywhere."""

    one_per_node = False

    def __init__(self, counts: DomainCounts, term: AffinityTerm, spec: JobSpec) -> None:
        self.over, self.counts, self._weight = term.over, counts, term.weight
        self.counts_own = term.jobs.holds(spec.selector_labels)

    def points(self) -> Array:
        there = self.counts.live > 0
        there[-1] = False
        if self._weight is not None:
            return there * float(self._weight)
        if self.counts_own and not there.any():
            there[:-1] = True
        return np.where(there, 0.0, EXCLUDED)


class AntiAffinity:
    """In a domain where none of them is."""

    def __init__(self, counts: DomainCounts, term: AffinityTerm, spec: JobSpec | None) -> None:
        self.over, self.counts, self._weight = term.over, counts, term.weight
        self.counts_own = spec is not None and term.jobs.holds(spec.selector_labels)

    @property
    def one_per_node(self) -> bool:
        return self.counts_own and self._weight is None and self.over == NODE_LABEL

    def points(self) -> Array:
        there = self.counts.live > 0
        there[-1] = False
        return there * -float(self._weight) if self._weight is not None else np.where(there, EXCLUDED, 0.0)


class TopologySpread:
    """The fullest domain has at most so many more than the emptiest in which it might run."""

    counts_own = True
    one_per_node = False

    def __init__(self, counts: DomainCounts, rule: SpreadTerm, eligible_domains: Array) -> None:
        self.over, self.counts, self._rule, self._eligible_domains = rule.over, counts, rule, eligible_domains

    def points(self) -> Array:
        live = self.counts.live
        more = np.where(self._eligible_domains, live - live[self._eligible_domains].min(initial=np.inf), 0.0)
        if self._rule.weight is not None:
            return more * -float(self._rule.weight)
        return np.where(self._eligible_domains & (more < self._rule.skew), 0.0, EXCLUDED)
