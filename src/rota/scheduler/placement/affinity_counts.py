"""Counts of live attempts that rules select: per node and per domain, including this round's placements."""

from typing import NamedTuple, TypeVar

import numpy as np

from rota.model.affinity import AffinityIndex, AffinityMembership, Repulsion, Selector
from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.node_table import NodeTable

NODE_LABEL = "node"
Selected = TypeVar("Selected")


class LabelDomains(NamedTuple):
    """Nodes divided by a label: the domain number of each; nodes without the label have `domain_count`."""

    domain: Array
    domain_count: int


class NodeClasses(NamedTuple):
    """Nodes grouped by equal values of some labels."""

    class_of: Array  # class number of each node
    slots: list[Array]  # of each class, ascending
    representatives: Array  # the first slot of each class


class TopologyDomains:
    """Domains and classes of nodes, cached until a label changes."""

    def __init__(self, node_table: NodeTable) -> None:
        self.node_table = node_table
        self._version = (-1, -1)
        self._by_label: dict[str, LabelDomains] = {}
        self._classes: dict[tuple[str, ...], NodeClasses] = {}

    def by_label(self, label: str) -> LabelDomains:
        self._drop_stale()
        known = self._by_label.get(label)
        if known is None:
            known = self._by_label[label] = self._divide(label)
        return known

    def classes_by(self, labels: tuple[str, ...]) -> NodeClasses:
        """Classes of nodes that agree in all of these labels."""
        self._drop_stale()
        known = self._classes.get(labels)
        if known is None:
            known = self._classes[labels] = self._classify(labels)
        return known

    def _drop_stale(self) -> None:
        # With the size: a node that joins without labels changes no version, but needs a domain.
        version = (self.node_table.labels_version, self.node_table.size)
        if version != self._version:
            self._version = version
            self._by_label.clear()
            self._classes.clear()

    def _classify(self, labels: tuple[str, ...]) -> NodeClasses:
        columns = np.stack([self.by_label(label).domain for label in labels])
        _, first, number = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        number = number.reshape(-1)
        ends = np.cumsum(np.bincount(number, minlength=first.size))
        return NodeClasses(number, np.split(np.argsort(number, kind="stable"), ends)[:-1], first)

    def _divide(self, label: str) -> LabelDomains:
        if label == NODE_LABEL:
            return LabelDomains(np.arange(self.node_table.size), self.node_table.size)
        values = [labels.get(label) for labels in self.node_table.labels]
        # Sorted, so that domain numbers do not depend on the order in which nodes joined.
        names = {
            value: at for at, value in enumerate(sorted({value for value in values if value is not None}))
        }
        index = np.array([len(names) if value is None else names[value] for value in values], np.intp)
        return LabelDomains(index, len(names))


class DomainCounts(NamedTuple):
    """Live attempts that a rule selects, by domain; the last entry counts nodes without the label."""

    domain: Array  # number of each node's domain
    live: Array


class AffinityColumn:
    """Live attempts of some jobs by slot; and by domain, for each label that a rule uses."""

    def __init__(self, live: Array, domains: TopologyDomains) -> None:
        self._live = live.copy()
        self._domains = domains
        self._by_label: dict[str, DomainCounts] = {}

    def by_domain(self, label: str) -> DomainCounts:
        known = self._by_label.get(label)
        if known is None:
            domain, domains = self._domains.by_label(label)
            live = np.bincount(domain, self._live, domains + 1)
            live = live.astype(np.float64)  # without nodes NumPy counts in integers
            known = self._by_label[label] = DomainCounts(domain, live)
        return known

    def add(self, slot: int, times: int) -> None:
        self._live[slot] += times
        for domain, live in self._by_label.values():
            live[domain[slot]] += times


class AffinityCounts:
    """The mirror's affinity index with the placements of this round on top; the index is not changed."""

    def __init__(self, index: AffinityIndex, domains: TopologyDomains) -> None:
        self._index = index
        self._domains = domains
        self.placed: dict[JobId, dict[int, int]] = {}  # job -> slot -> tasks placed in this round
        self._own: dict[JobId, AffinityColumn] = {}
        self._members: dict[Selector, AffinityColumn] = {}
        self._holders: dict[Repulsion, AffinityColumn] = {}

    def members(self, selector: Selector) -> AffinityColumn:
        return self._column(self._members, selector, self._index.members)

    def holders(self, repulsion: Repulsion) -> AffinityColumn:
        return self._column(self._holders, repulsion, self._index.holders)

    def own_tasks(self, job: JobId) -> AffinityColumn:
        """Attempts of the job itself, for its spread rules."""
        return self._column(self._own, job, self._index.own)

    def membership(self, spec: JobSpec) -> AffinityMembership:
        return self._index.membership(spec)

    def repelled(self, spec: JobSpec) -> list[Repulsion]:
        return self._index.repelled(spec)

    def add(self, job: JobId, membership: AffinityMembership, slot: int, times: int) -> None:
        """Count `times` more tasks of the job on a node; negative: fewer."""
        by_slot = self.placed.setdefault(job, {})
        by_slot[slot] = by_slot.get(slot, 0) + times
        # Only jobs with spread rules have a column of their own.
        if job in self._index.own:
            self.own_tasks(job).add(slot, times)
        for selector in membership.members:
            self.members(selector).add(slot, times)
        for repulsion in membership.holders:
            self.holders(repulsion).add(slot, times)

    def classes(self, labels: tuple[str, ...]) -> NodeClasses:
        """Classes of nodes that agree in all of these labels."""
        return self._domains.classes_by(labels)

    def domains_with(self, label: str, eligible: Array) -> Array:
        """Mask of the label's domains that contain an eligible node."""
        domain, domains = self._domains.by_label(label)
        found: Array = np.bincount(domain, eligible, domains + 1) > 0
        found[-1] = False
        return found

    def _column(
        self, known: dict[Selected, AffinityColumn], selected: Selected, live: dict[Selected, Array]
    ) -> AffinityColumn:
        found = known.get(selected)
        if found is None:
            size = self._domains.node_table.size
            found = known[selected] = AffinityColumn(live[selected][:size], self._domains)
        return found
