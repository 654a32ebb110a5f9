"""Neighbours: on which nodes the jobs are that others want to be near to or apart from."""

from typing import NamedTuple

import numpy as np

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.shape import Constraint, Term

Selector = tuple[str, Constraint]  # jobs of a namespace, by their labels
Repulsion = tuple[str, Term]  # a term by which jobs of a namespace keep others away


class Counted(NamedTuple):
    """What an attempt of a job is counted in."""

    members: list[Selector]
    holders: list[Repulsion]


NOWHERE = Counted([], [])


class Neighbours:
    """Live attempts per slot, counted for each term that a job which has not ended has.

    Written only by the mirror.
    """

    def __init__(self) -> None:
        self.members: dict[Selector, Array] = {}  # attempts of jobs that a term names
        self.holders: dict[Repulsion, Array] = {}  # attempts of jobs that keep others away
        self.own: dict[JobId, Array] = {}  # attempts of a job that wants to be spread
        self.version = 0  # grows whenever another set of terms is counted
        self._users: dict[Selector | Repulsion, int] = {}

    def begin(self, spec: JobSpec, width: int) -> list[Selector]:
        """A job has terms: returns the selectors that nobody had before, to be counted for the first time."""
        if spec.spread:
            self.own[spec.id] = np.zeros(width, np.int64)
        new = [selector for selector in _selectors(spec) if self._use(selector)]
        for selector in new:
            self.members[selector] = np.zeros(width, np.int64)
        for repulsion in _repulsions(spec):
            if self._use(repulsion):
                self.holders[repulsion] = np.zeros(width, np.int64)
        self.version += 1
        return new

    def end(self, spec: JobSpec) -> None:
        self.own.pop(spec.id, None)
        for selector in _selectors(spec):
            if self._leave(selector):
                del self.members[selector]
        for repulsion in _repulsions(spec):
            if self._leave(repulsion):
                del self.holders[repulsion]
        self.version += 1

    def counted(self, spec: JobSpec) -> Counted:
        if not self.members:
            return NOWHERE
        here = [one for one in self.members if one[0] == spec.namespace and one[1].holds(spec.known_as)]
        return Counted(here, [one for one in _repulsions(spec) if one in self.holders])

    def count(self, job: JobId, counted: Counted, slot: int, times: int) -> None:
        if job in self.own:
            self.own[job][slot] += times
        for selector in counted.members:
            if selector in self.members:
                self.members[selector][slot] += times
        for repulsion in counted.holders:
            if repulsion in self.holders:
                self.holders[repulsion][slot] += times

    def repelled(self, spec: JobSpec) -> list[Repulsion]:
        """Terms of jobs by which such a job is kept away."""
        if not self.holders:
            return []
        return [one for one in self.holders if one[0] == spec.namespace and one[1].jobs.holds(spec.known_as)]

    def widen(self, width: int) -> None:
        self.members = {name: _longer(column, width) for name, column in self.members.items()}
        self.holders = {name: _longer(column, width) for name, column in self.holders.items()}
        self.own = {name: _longer(column, width) for name, column in self.own.items()}

    def _use(self, name: Selector | Repulsion) -> bool:
        self._users[name] = self._users.get(name, 0) + 1
        return self._users[name] == 1

    def _leave(self, name: Selector | Repulsion) -> bool:
        self._users[name] -= 1
        return self._users[name] == 0 and self._users.pop(name) == 0


def _selectors(spec: JobSpec) -> list[Selector]:
    return [(spec.namespace, term.jobs) for term in (*spec.near, *spec.apart)]


def _repulsions(spec: JobSpec) -> list[Repulsion]:
    return [(spec.namespace, term) for term in spec.apart if term.weight is None]


def _longer(column: Array, width: int) -> Array:
    return np.concatenate([column, np.zeros(width - column.size, np.int64)])
