"""Affinity index: live attempts per node, counted for each selector that an affinity rule uses."""

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.limits import AFFINITY_CHANGES_KEPT
from rota.model.shape import AffinityTerm, Constraint, Op
from rota.model.structures import ChangeLog

Selector = tuple[str, Constraint]  # jobs of a namespace, by their labels
Repulsion = tuple[str, AffinityTerm]  # a hard anti-affinity term of jobs of a namespace
Name = TypeVar("Name")


class AffinityMembership(NamedTuple):
    """The counters that attempts of a job are part of."""

    members: list[Selector]
    holders: list[Repulsion]


NO_MEMBERSHIP = AffinityMembership([], [])
_BY_VALUE = (Op.EQUAL, Op.IN)


class AffinityIndex:
    """Live attempts per slot, counted for each affinity term of an unfinished job.

    Written only by the mirror. `changes` names each counter that changed, so that the scheduler tries jobs
    again that wait for one of them.
    """

    def __init__(self) -> None:
        self.members: dict[Selector, Array] = {}  # attempts of jobs that a selector matches
        self.holders: dict[Repulsion, Array] = {}  # attempts of jobs with that anti-affinity term
        self.own: dict[JobId, Array] = {}  # attempts of a job with spread rules
        self.version = 0  # grows whenever the set of counters changes
        self.changes: ChangeLog[Selector | Repulsion | JobId] = ChangeLog(AFFINITY_CHANGES_KEPT)
        self._users: dict[Selector | Repulsion, int] = {}
        self._selectors: _ByLabels[Selector] = _ByLabels()
        self._repulsions: _ByLabels[Repulsion] = _ByLabels()
        self._width = 0

    def register(self, spec: JobSpec, width: int) -> list[Selector]:
        """Add the terms of a job; returns the selectors that are new, for the caller to count."""
        if spec.spread:
            self.own[spec.id] = np.zeros(width, np.int64)
        new = [selector for selector in _selectors(spec) if self._use(selector)]
        for selector in new:
            self.members[selector] = np.zeros(width, np.int64)
            self._selectors.add(selector[0], selector[1], selector)
        for repulsion in _repulsions(spec):
            if self._use(repulsion):
                self.holders[repulsion] = np.zeros(width, np.int64)
                self._repulsions.add(repulsion[0], repulsion[1].jobs, repulsion)
        self.version += 1
        return new

    def unregister(self, spec: JobSpec) -> None:
        self.own.pop(spec.id, None)
        for selector in _selectors(spec):
            if self._leave(selector):
                del self.members[selector]
                self._selectors.remove(selector[0], selector[1], selector)
        for repulsion in _repulsions(spec):
            if self._leave(repulsion):
                del self.holders[repulsion]
                self._repulsions.remove(repulsion[0], repulsion[1].jobs, repulsion)
                # The last job with this term is gone: jobs that it kept off may start, and
                # no counter changes for that.
                self.changes.add(repulsion)
        self.version += 1

    def membership(self, spec: JobSpec) -> AffinityMembership:
        if not self.members:
            return NO_MEMBERSHIP
        selectors = self._selectors.matching(spec)
        repulsions = [repulsion for repulsion in _repulsions(spec) if repulsion in self.holders]
        return AffinityMembership(selectors, repulsions)

    def count(self, job: JobId, counted: AffinityMembership, slot: int, times: int) -> None:
        if job in self.own:
            self.own[job][slot] += times
            self.changes.add(job)
        for selector in counted.members:
            if selector in self.members:
                self.members[selector][slot] += times
                self.changes.add(selector)
        for repulsion in counted.holders:
            if repulsion in self.holders:
                self.holders[repulsion][slot] += times
                self.changes.add(repulsion)

    def repelled(self, spec: JobSpec) -> list[Repulsion]:
        """Anti-affinity terms of other jobs that match this job."""
        return self._repulsions.matching(spec) if self.holders else []

    def widen(self, width: int) -> None:
        if width == self._width:
            return
        self._width = width
        self.members = {name: _longer(column, width) for name, column in self.members.items()}
        self.holders = {name: _longer(column, width) for name, column in self.holders.items()}
        self.own = {name: _longer(column, width) for name, column in self.own.items()}

    def _use(self, name: Selector | Repulsion) -> bool:
        self._users[name] = self._users.get(name, 0) + 1
        return self._users[name] == 1

    def _leave(self, name: Selector | Repulsion) -> bool:
        self._users[name] -= 1
        return self._users[name] == 0 and self._users.pop(name) == 0


class _ByLabels(Generic[Name]):
    """Constraints on job labels, indexed by label and value, since most ask for one value of one label."""

    def __init__(self) -> None:
        self._by_value: dict[tuple[str, str, str], dict[Name, None]] = {}  # namespace, label, value
        self._others: dict[str, dict[Name, Constraint]] = {}  # by namespace

    def add(self, namespace: str, jobs: Constraint, name: Name) -> None:
        # Such a constraint holds for an open set of values, so it cannot be indexed by value and is tested.
        if jobs.op not in _BY_VALUE:
            self._others.setdefault(namespace, {})[name] = jobs
            return
        for value in jobs.values:
            self._by_value.setdefault((namespace, jobs.label, value), {})[name] = None

    def remove(self, namespace: str, jobs: Constraint, name: Name) -> None:
        if jobs.op not in _BY_VALUE:
            self._others[namespace].pop(name)
            return
        for value in dict.fromkeys(jobs.values):
            key = (namespace, jobs.label, value)
            self._by_value[key].pop(name)
            if not self._by_value[key]:
                del self._by_value[key]

    def matching(self, spec: JobSpec) -> list[Name]:
        """Names of the constraints that hold for a job."""
        labels, namespace = spec.selector_labels, spec.namespace
        found: list[Name] = []
        for label, value in labels.items():
            found += self._by_value.get((namespace, label, value), ())
        others = self._others.get(namespace)
        return [*found, *(name for name, jobs in others.items() if jobs.holds(labels))] if others else found


def _selectors(spec: JobSpec) -> list[Selector]:
    return [(spec.namespace, term.jobs) for term in (*spec.near, *spec.apart)]


def _repulsions(spec: JobSpec) -> list[Repulsion]:
    return [(spec.namespace, term) for term in spec.apart if term.weight is None]


def _longer(column: Array, width: int) -> Array:
    return np.concatenate([column, np.zeros(width - column.size, np.int64)])
