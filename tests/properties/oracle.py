"""Placement oracle: scores every node from the definitions, in plain Python, without caches."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rota.model.job import JobSpec
from rota.model.limits import NODE_TASKS_MAX
from rota.model.shape import AffinityTerm, Constraint, Policy, SpreadTerm
from rota.scheduler.placement.density import GpuDemand, GpuNodes, RankedNodes, rank
from rota.scheduler.placement.gpus import gpu_request

WHOLE_GPU = 1000
SAME_NOISE = 20


@dataclass
class Machine:
    """A node, as its operator and its last report describe it."""

    capacity: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[str, ...] = ()
    open: bool = True
    load: float = 0.0
    settled: dict[str, int] = field(default_factory=dict)  # reserved when it measured
    measured: dict[str, int] = field(default_factory=dict)


@dataclass
class Live:
    """One task that holds resources; `fresh` until its node may have measured it."""

    spec: JobSpec
    slot: int
    devices: int
    fresh: bool = True
    index: int = 0  # of the task, where it matters

    @property
    def identity(self) -> tuple[str, int]:
        return self.spec.id, self.index


class Place(NamedTuple):
    slot: int
    devices: int


class Oracle:
    """All nodes and their tasks. Nothing is cached between two calls."""

    def __init__(self, interference: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.machines: list[Machine] = []
        self.live: list[Live] = []
        self.known: set[str] = set()  # resources that any node ever had
        self.interference = interference or {}
        self.demand: Callable[[], GpuDemand] = lambda: GpuDemand.from_arrivals({})

    def place(self, spec: JobSpec, count: int, barred: Collection[int] = ()) -> list[Place]:
        """Place tasks one after the other, each on the best node at that moment."""
        found: list[Place] = []
        while len(found) < count and (place := self.best(spec, barred)) is not None:
            found.append(place)
            self.live.append(Live(spec, *place))
        return found

    def best(self, spec: JobSpec, barred: Collection[int] = ()) -> Place | None:
        points = {slot: self.points(spec, slot) for slot in range(len(self.machines)) if slot not in barred}
        able = [(-worth, slot) for slot, worth in points.items() if worth is not None]
        return Place(min(able)[1], self.devices_for(spec, min(able)[1])) if able else None

    def points(self, spec: JobSpec, slot: int) -> float | None:
        """Points of the node; None: the task may not run there now."""
        rules = self.points_of_rules(spec, slot)
        if rules is None or not self.admits(spec, slot) or not self.fits(spec, slot):
            return None
        return self.points_of_state(spec, slot) + self.points_of_wishes(spec, slot) + rules

    # ---- by labels and taints

    def admits(self, spec: JobSpec, slot: int) -> bool:
        machine = self.machines[slot]
        tolerated = all(
            any(rule in ("*", taint, taint.split("=")[0]) for rule in spec.tolerate)
            for taint in machine.taints
        )
        return machine.open and tolerated and all(holds(rule, machine.labels) for rule in spec.where)

    def points_of_wishes(self, spec: JobSpec, slot: int) -> float:
        labels = self.machines[slot].labels
        return float(
            sum(preference.weight for preference in spec.prefer if holds(preference.condition, labels))
        )

    # ---- by state of the node

    def fits(self, spec: JobSpec, slot: int) -> bool:
        if any(self.free(resource, slot) < amount for resource, amount in spec.needs.items() if amount):
            return False
        devices, amount = self.free_devices(slot), spec.needs.get("gpu", 0)
        if 0 < amount < WHOLE_GPU and max(devices, default=0) < amount:
            return False
        if amount >= WHOLE_GPU and devices.count(WHOLE_GPU) * WHOLE_GPU < amount:
            return False
        return self.free("tasks", slot) > 0

    def free(self, resource: str, slot: int) -> int:
        """The smaller of the unreserved and the measured free amount, minus what was placed since."""
        machine = self.machines[slot]
        has = NODE_TASKS_MAX if resource == "tasks" else machine.capacity.get(resource, 0)
        written = sum(_amount(live, resource) for live in self.on(slot) if not live.fresh)
        fresh = sum(_amount(live, resource) for live in self.on(slot) if live.fresh)
        if resource not in machine.measured:
            return has - written - fresh
        since = max(0, written - machine.settled.get(resource, 0))
        return min(has - written, machine.measured[resource] - since) - fresh

    def outside_load(self, slot: int) -> float:
        """Measured load beyond the reservations of tasks there; most of it counts as used by them."""
        machine = self.machines[slot]
        own = machine.settled.get("cpu", 0) * 0.9 / max(1, machine.capacity.get("cpu", 0))
        return max(0.0, machine.load - own)

    def measure(self, slot: int) -> None:
        """Record what is reserved at the time of a report."""
        for resource in self.known:
            reserved = sum(_amount(live, resource) for live in self.on(slot))
            self.machines[slot].settled[resource] = reserved

    def free_devices(self, slot: int) -> list[int]:
        free = [WHOLE_GPU] * (self.machines[slot].capacity.get("gpu", 0) // WHOLE_GPU)
        for live in self.on(slot):
            for device in range(len(free)):
                if live.devices >> device & 1:
                    free[device] -= min(WHOLE_GPU, live.spec.needs["gpu"])
        return free

    def devices_for(self, spec: JobSpec, slot: int) -> int:
        """GPUs of a task: the densest device for a share, else the first free ones."""
        amount, free = spec.needs.get("gpu", 0), self.free_devices(slot)
        if amount == 0:
            return 0
        if amount < WHOLE_GPU:
            return int(2 ** int(self.density(spec, slot).device[0]))
        unused = [device for device, left in enumerate(free) if left == WHOLE_GPU]
        return int(sum(2**device for device in unused[: amount // WHOLE_GPU]))

    def points_of_state(self, spec: JobSpec, slot: int) -> float:
        """100 is a whole node, idle against full. The sums are in this order, so that ties are exact."""
        if self.machines[slot].capacity.get("gpu", 0):
            worth = float(self.density(spec, slot).score[0]) / 10
            return worth - (0 if spec.needs.get("gpu") else 200) - self.disturbance(spec, slot)
        counted = [resource for resource in ("tasks", "cpu", "memory") if resource in {"tasks", *self.known}]
        idle = 0.0
        for resource in counted:
            has = NODE_TASKS_MAX
            if resource != "tasks":
                has = self.machines[slot].capacity.get(resource, 0)
            idle += self.free(resource, slot) * (1.0 / max(1, has))
        if spec.policy is Policy.PACK:
            return idle * -50 - self.disturbance(spec, slot)
        return (idle - len(counted) - self.outside_load(slot)) * 50 - self.disturbance(spec, slot)

    def density(self, spec: JobSpec, slot: int) -> RankedNodes:
        """The density score, which has its own tests, computed for one node at a time."""
        cpu, memory = (np.array([self.free(resource, slot)]) for resource in ("cpu", "memory"))
        devices = np.array([self.free_devices(slot)])
        return rank(
            self.demand(), gpu_request(spec.shape), GpuNodes(cpu, memory, devices, np.array([-1]), ())
        )

    def disturbance(self, spec: JobSpec, slot: int) -> float:
        if spec.noise is None:
            return 0.0
        costs = {spec.noise: SAME_NOISE, **self.interference.get(spec.noise, {})}
        return float(
            sum(costs.get(live.spec.noise, 0) for live in self.on(slot) if live.spec.noise is not None)
        )

    # ---- by affinity

    def points_of_rules(self, spec: JobSpec, slot: int) -> float | None:
        parts = [self.near(spec, term, slot) for term in spec.near]
        parts += [self.apart(spec, term, slot) for term in spec.apart]
        parts += [self.spread(spec, rule, slot) for rule in spec.spread]
        if None in parts or self.repelled(spec, slot):
            return None
        return sum(part for part in parts if part is not None)

    def near(self, spec: JobSpec, term: AffinityTerm, slot: int) -> float | None:
        domains = [self.domain(term, live.slot) for live in self.live if speaks_of(term, spec, live.spec)]
        here = self.domain(term, slot)
        if term.weight is not None:
            return term.weight if here is not None and here in domains else 0.0
        first = speaks_of(term, spec, spec) and all(domain is None for domain in domains)
        return 0.0 if here is not None and (here in domains or first) else None

    def apart(self, spec: JobSpec, term: AffinityTerm, slot: int) -> float | None:
        domains = [self.domain(term, live.slot) for live in self.live if speaks_of(term, spec, live.spec)]
        here = self.domain(term, slot)
        if here is None or here not in domains:
            return 0.0
        return None if term.weight is None else -term.weight

    def repelled(self, spec: JobSpec, slot: int) -> bool:
        """Whether a job with anti-affinity to it is on the node."""
        return any(
            term.weight is None
            and speaks_of(term, live.spec, spec)
            and self.domain(term, slot) is not None
            and self.domain(term, slot) == self.domain(term, live.slot)
            for live in self.live
            for term in live.spec.apart
        )

    def spread(self, spec: JobSpec, rule: SpreadTerm, slot: int) -> float | None:
        more = self.ahead_of_emptiest(spec, rule, slot)
        if rule.weight is not None:
            return 0.0 if more is None else -float(rule.weight * more)
        return 0.0 if more is not None and more < rule.skew else None

    def ahead_of_emptiest(self, spec: JobSpec, rule: SpreadTerm, slot: int) -> int | None:
        """Number of its tasks in this node's domain minus that of the emptiest eligible domain."""
        slots = range(len(self.machines))
        might = {self.domain(rule, one) for one in slots if self.admits(spec, one)} - {None}
        own = [self.domain(rule, one.slot) for one in self.live if one.spec.id == spec.id]
        here = self.domain(rule, slot)
        return own.count(here) - min(own.count(domain) for domain in might) if here in might else None

    def domain(self, term: AffinityTerm | SpreadTerm, slot: int) -> str | None:
        return self.machines[slot].labels.get(term.over)

    def on(self, slot: int) -> list[Live]:
        return [live for live in self.live if live.slot == slot]

    # ---- invariants

    def assert_nothing_is_promised_twice(self) -> None:
        for slot, machine in enumerate(self.machines):
            for resource in {"tasks", *self.known}:
                has = NODE_TASKS_MAX if resource == "tasks" else machine.capacity.get(resource, 0)
                assert sum(_amount(live, resource) for live in self.on(slot)) <= has, (slot, resource)
            assert all(left >= 0 for left in self.free_devices(slot)), slot

    def broken_rules(self) -> list[tuple[str, str]]:
        """Pairs of jobs that share a domain although one has anti-affinity to the other."""
        return [
            (holder.spec.id, other.spec.id)
            for holder in self.live
            for term in holder.spec.apart
            for other in self.live
            if term.weight is None
            and other is not holder
            and speaks_of(term, holder.spec, other.spec)
            and self.domain(term, holder.slot) is not None
            and self.domain(term, holder.slot) == self.domain(term, other.slot)
        ]


def holds(constraint: Constraint, labels: Mapping[str, str]) -> bool:
    value = labels.get(constraint.label)
    match constraint.op.value:
        case "exists":
            return value is not None
        case "==" | "in":
            return value in constraint.values
        case "!=" | "not in":
            return value not in constraint.values
        case _:
            raise AssertionError("versions are compared in the tests of shapes")


def speaks_of(term: AffinityTerm, holder: JobSpec, other: JobSpec) -> bool:
    same = holder.namespace == other.namespace
    return same and holds(term.jobs, {**other.labels, "job": other.name})


def _amount(live: Live, resource: str) -> int:
    return 1 if resource == "tasks" else live.spec.needs.get(resource, 0)
