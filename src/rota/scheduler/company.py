"""Where the jobs are that rules speak of: per node and per domain, with what this round has placed."""

from typing import NamedTuple, TypeVar

import numpy as np

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.neighbours import Counted, Neighbours, Repulsion, Selector
from rota.model.room import Room

NODE = "node"
Whose = TypeVar("Whose")


class Division(NamedTuple):
    """The nodes, divided by a label: a domain's number for each; those without it have `domains`."""

    domain: Array
    domains: int  # how many


class Classes(NamedTuple):
    """The nodes by what they agree in."""

    number: Array  # of each node's class
    slots: list[Array]  # of each class, in order
    members: Array  # the first of each


class Domains:
    """Divisions of the nodes, kept while no label changes."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._version = (-1, -1)
        self._known: dict[str, Division] = {}
        self._together: dict[tuple[str, ...], Classes] = {}

    def by(self, label: str) -> Division:
        self._forget()
        known = self._known.get(label)
        if known is None:
            known = self._known[label] = self._divide(label)
        return known

    def together(self, labels: tuple[str, ...]) -> Classes:
        """Nodes that agree in all of these labels."""
        self._forget()
        known = self._together.get(labels)
        if known is None:
            known = self._together[labels] = self._classify(labels)
        return known

    def _forget(self) -> None:
        version = (self.room.labels_version, self.room.size)
        if version != self._version:
            self._version = version
            self._known.clear()
            self._together.clear()

    def _classify(self, labels: tuple[str, ...]) -> Classes:
        columns = np.stack([self.by(label).domain for label in labels])
        _, first, number = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        number = number.reshape(-1)
        ends = np.cumsum(np.bincount(number, minlength=first.size))
        return Classes(number, np.split(np.argsort(number, kind="stable"), ends)[:-1], first)

    def _divide(self, label: str) -> Division:
        if label == NODE:
            return Division(np.arange(self.room.size), self.room.size)
        values = [labels.get(label) for labels in self.room.labels]
        names = {value: at for at, value in enumerate(sorted({one for one in values if one is not None}))}
        index = np.array([len(names) if value is None else names[value] for value in values], np.intp)
        return Division(index, len(names))


class Counts(NamedTuple):
    """How many live attempts a rule speaks of, by domain; the last entry is of nodes without the label."""

    domain: Array  # of each node
    live: Array


class Column:
    """Live attempts of some jobs, by slot; and by domain, for each label that somebody has asked about."""

    def __init__(self, live: Array, domains: Domains) -> None:
        self._live = live.copy()
        self._domains = domains
        self._by: dict[str, Counts] = {}

    def by(self, label: str) -> Counts:
        known = self._by.get(label)
        if known is None:
            domain, domains = self._domains.by(label)
            live = np.bincount(domain, self._live, domains + 1)
            live = live.astype(np.float64)  # without nodes NumPy counts in integers
            known = self._by[label] = Counts(domain, live)
        return known

    def add(self, slot: int, times: int) -> None:
        self._live[slot] += times
        for domain, live in self._by.values():
            live[domain[slot]] += times


class Company:
    """Who is where: as the mirror counts it, and what this round has placed."""

    def __init__(self, neighbours: Neighbours, domains: Domains) -> None:
        self._neighbours = neighbours
        self._domains = domains
        self.seated: dict[JobId, dict[int, int]] = {}  # in this round: tasks of a job by slot
        self._own: dict[JobId, Column] = {}
        self._members: dict[Selector, Column] = {}
        self._holders: dict[Repulsion, Column] = {}

    def members(self, selector: Selector) -> Column:
        return self._column(self._members, selector, self._neighbours.members)

    def holders(self, repulsion: Repulsion) -> Column:
        return self._column(self._holders, repulsion, self._neighbours.holders)

    def own(self, job: JobId) -> Column:
        """Attempts of the job itself, where it wants to be spread."""
        return self._column(self._own, job, self._neighbours.own)

    def counted(self, spec: JobSpec) -> Counted:
        return self._neighbours.counted(spec)

    def repelled(self, spec: JobSpec) -> list[Repulsion]:
        return self._neighbours.repelled(spec)

    def settle(self, job: JobId, counted: Counted, slot: int, times: int) -> None:
        """A task of the job takes its place (-1: leaves it)."""
        here = self.seated.setdefault(job, {})
        here[slot] = here.get(slot, 0) + times
        if job in self._neighbours.own:
            self.own(job).add(slot, times)
        for selector in counted.members:
            self.members(selector).add(slot, times)
        for repulsion in counted.holders:
            self.holders(repulsion).add(slot, times)

    def classes(self, labels: tuple[str, ...]) -> Classes:
        """Nodes that agree in all of these labels."""
        return self._domains.together(labels)

    def among(self, label: str, eligible: Array) -> Array:
        """Domains with a node that is one of these."""
        domain, domains = self._domains.by(label)
        found: Array = np.bincount(domain, eligible, domains + 1) > 0
        found[-1] = False
        return found

    def _column(self, known: dict[Whose, Column], whose: Whose, live: dict[Whose, Array]) -> Column:
        found = known.get(whose)
        if found is None:
            size = self._domains.room.size
            found = known[whose] = Column(live[whose][:size], self._domains)
        return found
