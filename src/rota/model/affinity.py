"""Neighbours: on which nodes the jobs are that others want to be near to or apart from."""

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.limits import AFFINITY_CHANGES_KEPT
from rota.model.shape import AffinityTerm, Constraint, Op
from rota.model.structures import ChangeLog

Selector = tuple[str, Constraint]  # jobs of a namespace, by their labels
Repulsion = tuple[str, AffinityTerm]  # a term by which jobs of a namespace keep others away
Name = TypeVar("Name")


class AffinityMembership(NamedTuple):
    """What an attempt of a job is counted in."""

    members: list[Selector]
    holders: list[Repulsion]


NO_MEMBERSHIP = AffinityMembership([], [])
_BY_VALUE = (Op.EQUAL, Op.IN)


class AffinityIndex:
    """Live attempts per slot, counted for each term that a job which has not ended has.

    Written only by the mirror. `moved` names each count that changed, so that jobs which wait for one to
    change are looked at then.
    """

    def __init__(self) -> None:
        self.members: dict[Selector, Array] = {}  # attempts of jobs that a term names
        self.holders: dict[Repulsion, Array] = {}  # attempts of jobs that keep others away
        self.own: dict[JobId, Array] = {}  # attempts of a job that wants to be spread
        self.version = 0  # grows whenever another set of terms is counted
        self.changes: ChangeLog[Selector | Repulsion | JobId] = ChangeLog(AFFINITY_CHANGES_KEPT)
        self._users: dict[Selector | Repulsion, int] = {}
        self._selectors: _ByLabels[Selector] = _ByLabels()
        self._repulsions: _ByLabels[Repulsion] = _ByLabels()
        self._width = 0

    def register(self, spec: JobSpec, width: int) -> list[Selector]:
        """A job has terms: returns the selectors that nobody had before, to be counted for the first time."""
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
                self.changes.add(repulsion)
        self.version += 1

    def membership(self, spec: JobSpec) -> AffinityMembership:
        if not self.members:
            return NO_MEMBERSHIP
        here = self._selectors.naming(spec)
        return AffinityMembership(here, [one for one in _repulsions(spec) if one in self.holders])

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
        """Terms of jobs by which such a job is kept away."""
        return self._repulsions.naming(spec) if self.holders else []

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
    """Constraints on a job's labels, found by those labels: most ask for one value of one label."""

    def __init__(self) -> None:
        self._by_value: dict[tuple[str, str, str], dict[Name, None]] = {}  # namespace, label, value
        self._others: dict[str, dict[Name, Constraint]] = {}  # by namespace

    def add(self, namespace: str, jobs: Constraint, name: Name) -> None:
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

    def naming(self, spec: JobSpec) -> list[Name]:
        """Those that hold for such a job."""
        known_as, namespace = spec.selector_labels, spec.namespace
        found: list[Name] = []
        for label, value in known_as.items():
            found += self._by_value.get((namespace, label, value), ())
        others = self._others.get(namespace)
        return [*found, *(name for name, jobs in others.items() if jobs.holds(known_as))] if others else found


def _selectors(spec: JobSpec) -> list[Selector]:
    return [(spec.namespace, term.jobs) for term in (*spec.near, *spec.apart)]


def _repulsions(spec: JobSpec) -> list[Repulsion]:
    return [(spec.namespace, term) for term in spec.apart if term.weight is None]


def _longer(column: Array, width: int) -> Array:
    return np.concatenate([column, np.zeros(width - column.size, np.int64)])
