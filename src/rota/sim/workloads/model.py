"""A workload and a random generator -> jobs in order of time, and how their tasks behave."""

import heapq
import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from rota.model.cluster import DEFAULT
from rota.model.errors import Rejected

HOUR_MS = 3_600_000


class LoadKind(StrEnum):
    """How the jobs of a stream arrive."""

    POISSON = "poisson"  # independently, at a mean rate
    STEADY = "steady"  # at equal intervals
    BURST = "burst"  # many at once, at equal intervals


VERSION, BAD = "VERSION", "bad"  # an environment variable of a service, and the value with which it fails


class Behaviour(NamedTuple):
    """How the tasks of one job behave. An attempt that fails does so at its end, with exit code 1."""

    median_ms: int
    sigma: float = 0.0  # of the lognormal distribution; 0: all run equally long
    fail_share: float = 0.0  # share of tasks whose first attempts fail
    deaf_share: float = 0.0  # share of tasks that ignore SIGTERM
    fail_attempts: int = 1  # number of first attempts that fail

    def run_ms(self, rng: random.Random) -> int:
        if not self.sigma:
            return self.median_ms
        return max(1, round(self.median_ms * rng.lognormvariate(0.0, self.sigma)))


class Arrival(NamedTuple):
    """A job and when it is submitted, counted from the start of the run."""

    at_ms: int
    spec: dict[str, Any]  # the body of a submit
    behaviour: Behaviour
    estimate_ms: int | None = None  # run time that its user requested, if the trace has it


@dataclass(frozen=True)
class NodeGroup:
    """A number of equal nodes; capacity as a node reports it: cpu in thousandths, sizes in bytes."""

    count: int
    capacity: dict[str, int]
    labels: dict[str, str]

    def holds(self, needs: Mapping[str, int]) -> bool:
        """Whether these needs fit on an empty node."""
        return all(self.capacity.get(name, 0) >= amount for name, amount in needs.items())


@dataclass(frozen=True)
class Elastic:
    """An elastic cluster, whose machines a provider creates, all of one kind."""

    capacity: dict[str, int]
    most: int
    least: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    make_seconds: float = 60.0  # until a requested machine joins
    idle_seconds: float = 60.0
    join_seconds: float = 600.0
    name: str = DEFAULT


def nodes_of(cluster: Elastic) -> NodeGroup:
    """A fixed group of the cluster's maximum size."""
    return NodeGroup(cluster.most, cluster.capacity, cluster.labels)


class Span(NamedTuple):
    """A uniform distribution; both ends are included."""

    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        return self.low if self.low == self.high else rng.uniform(self.low, self.high)

    def draw_whole(self, rng: random.Random) -> int:
        return rng.randint(int(self.low), int(self.high))


@dataclass(frozen=True)
class JobStream:
    """A stream of similar jobs. `per_hour` counts jobs, or bursts of `jobs` jobs each."""

    spec: dict[str, Any]  # fields that all its jobs share
    kind: LoadKind
    per_hour: float
    behaviour: Behaviour
    count: Span
    cpu_milli: Span
    memory_bytes: Span
    jobs: int = 1
    jobs_max: int | None = None
    after_ms: int = 0
    hours: tuple[float, float] | None = None  # of the day, in which jobs arrive; the run starts at hour 0

    def arrivals(self, rng: random.Random, until_ms: float) -> Iterator[Arrival]:
        for number, at_ms in enumerate(filter(self._is_open, self._moments(rng))):
            if at_ms >= until_ms or number == self.jobs_max:
                return
            yield Arrival(int(at_ms), self._drawn(rng), self.behaviour)

    def _is_open(self, at_ms: float) -> bool:
        if self.hours is None:
            return True
        begin, end = self.hours
        hour = at_ms / HOUR_MS % 24
        return begin <= hour < end if begin < end else hour >= begin or hour < end

    def _moments(self, rng: random.Random) -> Iterator[float]:
        gap_ms = HOUR_MS / self.per_hour
        at_ms, burst = float(self.after_ms), 0
        while True:
            match self.kind:
                case LoadKind.POISSON:
                    at_ms += rng.expovariate(1.0) * gap_ms
                    yield at_ms
                case LoadKind.STEADY | LoadKind.BURST:
                    yield from [self.after_ms + burst * gap_ms] * self.jobs
                    burst += 1

    def _drawn(self, rng: random.Random) -> dict[str, Any]:
        count = self.count.draw_whole(rng)
        cpu_milli = max(1, round(self.cpu_milli.draw(rng)))
        memory_bytes = round(self.memory_bytes.draw(rng))
        return {**self.spec, "count": count, "cpu": cpu_milli / 1000, "memory": memory_bytes}


class LeftOut(NamedTuple):
    """Number of rows of a trace that were left out or changed, and why."""

    rows: int
    reason: str

    def __str__(self) -> str:
        return f"{self.rows:,} {'row' if self.rows == 1 else 'rows'}: {self.reason}"


class Workload(NamedTuple):
    """Nodes and their jobs: streams that are drawn, or recorded arrivals of a trace."""

    name: str
    nodes: tuple[NodeGroup, ...]
    loads: tuple[JobStream, ...] = ()
    recorded: tuple[Arrival, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    cluster: Elastic | None = None  # instead of fixed nodes

    def arrivals(self, rng: random.Random, hours: float = math.inf) -> Iterator[Arrival]:
        """Jobs in order of time. Each stream has its own generator, so that adding one changes no other."""
        until_ms = hours * HOUR_MS
        seeds = [rng.getrandbits(64) for _ in self.loads]
        streams = [
            load.arrivals(random.Random(seed), until_ms) for load, seed in zip(self.loads, seeds, strict=True)
        ]
        recorded = (arrival for arrival in self.recorded if arrival.at_ms < until_ms)
        return heapq.merge(recorded, *streams, key=lambda arrival: arrival.at_ms)

    @property
    def size(self) -> int:
        """Number of nodes; the maximum of an elastic cluster."""
        return sum(group.count for group in self.nodes)

    @property
    def cpu_milli(self) -> int:
        return sum(group.count * group.capacity["cpu"] for group in self.nodes)

    def with_nodes(self, size: int) -> "Workload":
        """Scale the node groups to `size` nodes in total; the jobs stay as they are."""
        if self.cluster is not None:
            return self.on(replace(self.cluster, most=size, least=min(self.cluster.least, size)))
        ends = [0]
        for group in self.nodes:
            ends.append(ends[-1] + group.count)
        scaled = [round(end * size / ends[-1]) for end in ends]
        counts = [high - low for low, high in itertools.pairwise(scaled)]
        groups = [replace(group, count=count) for group, count in zip(self.nodes, counts, strict=True)]
        return self._replace(nodes=tuple(group for group in groups if group.count))

    def on(self, cluster: Elastic) -> "Workload":
        return self._replace(cluster=cluster, nodes=(nodes_of(cluster),))

    def split(self, cores: int) -> "Workload":
        """Split the cores into nodes of `cores` each; a recorded job that needs more becomes a gang."""
        size, kind = self.cpu_milli // (cores * 1000), self.nodes[0]
        if not size:
            raise Rejected(f"has {self.cpu_milli // 1000} cores, not {cores} for a node")
        nodes = (replace(kind, count=size, capacity={**kind.capacity, "cpu": cores * 1000}),)
        return self._replace(nodes=nodes, recorded=tuple(_split(arrival, cores) for arrival in self.recorded))


def _split(arrival: Arrival, cores: int) -> Arrival:
    cpu = arrival.spec["cpu"]
    if cpu <= cores:
        return arrival
    gang = {"cpu": cores, "count": math.ceil(cpu / cores), "gang": True}
    return arrival._replace(spec=arrival.spec | gang)
