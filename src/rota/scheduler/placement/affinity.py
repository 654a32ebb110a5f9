"""Placement rules: affinity (near), anti-affinity (apart) and topology spread, as points per domain."""

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
    """All rules that apply to one job while it is placed: its own, and anti-affinity of others against it."""

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
        """Whether a pick leaves the points of other nodes unchanged.

        At most its own node becomes excluded.
        """
        return all(not rule.counts_own or rule.one_per_node for rule in self.rules)

    @property
    def one_per_node(self) -> bool:
        return any(rule.one_per_node for rule in self.rules)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Labels of the rules: nodes that agree in all of them get equal points from every rule."""
        return tuple(sorted({rule.over for rule in self.rules}))

    def points(self, slots: Array | None = None) -> Array:
        """Points that the rules add to each node (of all, or of these slots).

        EXCLUDED where a rule forbids it.
        """
        return reduce(np.add, [_points_of_nodes(rule, slots) for rule in self.rules])

    def add_task(self, slot: int) -> None:
        self._counts.add(self._job, self._membership, slot, 1)

    def _add_rule(self, rule: "PlacementRule") -> None:
        self.rules.append(rule)


def _points_of_nodes(rule: "PlacementRule", slots: Array | None) -> Array:
    points = rule.points()
    if rule.over == NODE_LABEL:  # each node is its own domain
        return points[:-1] if slots is None else points[slots]
    return points[rule.counts.domain if slots is None else rule.counts.domain[slots]]


class PlacementRule(Protocol):
    """One rule: counts of live attempts per domain -> points per domain."""

    over: str
    counts: DomainCounts
    counts_own: bool  # the rule's selector matches the job's own tasks

    @property
    def one_per_node(self) -> bool: ...
    def points(self) -> Array:
        """Points of each domain."""


class Affinity:
    """Run in a domain where matching attempts are.

    The first of jobs that attract each other may go anywhere.
    """

    one_per_node = False

    def __init__(self, counts: DomainCounts, term: AffinityTerm, spec: JobSpec) -> None:
        self.over, self.counts, self._weight = term.over, counts, term.weight
        self.counts_own = term.jobs.holds(spec.selector_labels)

    def points(self) -> Array:
        present = self.counts.live > 0
        # The last entry counts nodes without the label: those are in no domain, and near to nothing.
        present[-1] = False
        if self._weight is not None:
            return present * float(self._weight)
        # Otherwise jobs that attract each other would wait for a first one for ever.
        if self.counts_own and not present.any():
            present[:-1] = True
        return np.where(present, 0.0, EXCLUDED)


class AntiAffinity:
    """Run in a domain without matching attempts."""

    def __init__(self, counts: DomainCounts, term: AffinityTerm, spec: JobSpec | None) -> None:
        self.over, self.counts, self._weight = term.over, counts, term.weight
        self.counts_own = spec is not None and term.jobs.holds(spec.selector_labels)

    @property
    def one_per_node(self) -> bool:
        return self.counts_own and self._weight is None and self.over == NODE_LABEL

    def points(self) -> Array:
        present = self.counts.live > 0
        # Nodes without the label are in no domain, so they are apart from everything.
        present[-1] = False
        return (
            present * -float(self._weight) if self._weight is not None else np.where(present, EXCLUDED, 0.0)
        )


class TopologySpread:
    """Bound the skew: the number of own tasks in a domain minus that of the emptiest eligible domain."""

    counts_own = True
    one_per_node = False

    def __init__(self, counts: DomainCounts, rule: SpreadTerm, eligible_domains: Array) -> None:
        self.over, self.counts, self._rule, self._eligible_domains = rule.over, counts, rule, eligible_domains

    def points(self) -> Array:
        live = self.counts.live
        # Only eligible domains count for the minimum: one whose nodes cannot run the job stays
        # empty and would block all others.
        more = np.where(self._eligible_domains, live - live[self._eligible_domains].min(initial=np.inf), 0.0)
        if self._rule.weight is not None:
            return more * -float(self._rule.weight)
        return np.where(self._eligible_domains & (more < self._rule.skew), 0.0, EXCLUDED)
