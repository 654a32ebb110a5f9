"""Preemption chooses the least work: every set of victims on every node is tried."""

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.model.limits import PREEMPT_MARGIN
from rota.model.shape import RunMode
from tests.properties.oracle import Live, Machine, Oracle
from tests.properties.test_placement_rounds import STARTED, Cluster, evicted

HIGH = 50

nodes = st.lists(
    st.builds(
        Machine,
        st.fixed_dictionaries(
            {"cpu": st.sampled_from([2000, 3000, 4000]), "memory": st.sampled_from([4, 6])},
            optional={"gpu": st.sampled_from([1000, 2000])},
        ),
        st.just({}),
    ),
    min_size=1,
    max_size=4,
)
needs = st.fixed_dictionaries(
    {"cpu": st.sampled_from([500, 700, 1000, 2000])},
    optional={"memory": st.integers(1, 3), "gpu": st.sampled_from([300, 500, 1000])},
)
lesser = st.lists(
    st.fixed_dictionaries(
        {"needs": needs, "count": st.integers(1, 4), "priority": st.sampled_from([0, 10, 20, 40, 41, 45])},
        optional={
            "gang": st.just(True),
            "preemptible": st.just(False),
            "evict_at_most": st.integers(0, 2),
            "run": st.just(RunMode.AT_MOST_ONCE),
        },
    ),
    min_size=1,
    max_size=5,
)
wanted = st.fixed_dictionaries(
    {"cpu": st.sampled_from([1000, 2000, 3000, 4000])},
    optional={"memory": st.integers(1, 6), "gpu": st.sampled_from([500, 1000, 2000])},
)


class Unit(NamedTuple):
    """A unit of eviction: a task, or a whole gang with its tasks on this node."""

    spec: JobSpec
    tasks: frozenset[tuple[JobId, int]]
    here: tuple[Live, ...]


class Harm(NamedTuple):
    highest: int
    tasks: int
    slot: int


class Full:
    """A cluster in which a job of high priority fits nowhere."""

    def __init__(self, nodes: list[Machine], lesser: list[dict[str, Any]], wanted: dict[str, int]) -> None:
        self.cluster = Cluster(nodes)
        for number, fields in enumerate(lesser, 1):
            self.cluster.submit(number, fields)
        self.cluster.round()
        self.cluster.start_all()
        for job in self.cluster.mirror.jobs:  # jobs that fitted nowhere are removed
            self.cluster.mirror.apply(JobStatus(job, JobState.ASSIGNED))
        self.before = self.cluster.seen()
        self.job = self.cluster.submit(99, {"needs": wanted, "priority": HIGH})
        self.has_room = self.before.best(self.job) is not None

    def units(self, slot: int) -> list[Unit]:
        """Evictable units on a node."""
        mirror = self.cluster.mirror
        found = {}
        for job, index in sorted(mirror.nodes[mirror.node_table.ids[slot]].assigned):
            spec = mirror.jobs[job].spec
            tasks = frozenset((job, at) for at in self.cluster.tasks(job)) if spec.gang else {(job, index)}
            here = [
                at for one, at in mirror.nodes[mirror.node_table.ids[slot]].assigned if (one, at) in tasks
            ]
            if may_go(spec) and all(self.cluster.state(*task) in STARTED for task in tasks):
                lives = tuple(self.cluster.live(job, at, slot) for at in here)
                found[frozenset(tasks)] = Unit(spec, frozenset(tasks), lives)
        return list(found.values())

    def enough(self, slot: int, units: tuple[Unit, ...]) -> bool:
        """Whether the task fits once these are evicted, within the budget of every job."""
        oracle = Oracle()
        oracle.machines, oracle.known = self.before.machines, self.before.known
        gone = {live.identity for unit in units for live in unit.here}
        oracle.live = [other for other in self.before.live if other.identity not in gone]
        return oracle.fits(self.job, slot) and within_budgets(units)

    def least(self) -> Harm | None:
        choices = [
            harm(slot, units)
            for slot in range(len(self.before.machines))
            for units in subsets(self.units(slot))
            if self.enough(slot, units)
        ]
        return min(choices, default=None)


def may_go(spec: JobSpec) -> bool:
    once = spec.run is RunMode.AT_MOST_ONCE
    return spec.preemptible and not once and spec.priority + PREEMPT_MARGIN <= HIGH


def within_budgets(units: tuple[Unit, ...]) -> bool:
    lost: dict[JobId, int] = {}
    for unit in units:
        lost[unit.spec.id] = lost.get(unit.spec.id, 0) + len(unit.tasks)
    most = {unit.spec.id: unit.spec.evict_at_most for unit in units}
    return all((limit := most[job]) is None or count <= limit for job, count in lost.items())


def harm(slot: int, units: tuple[Unit, ...]) -> Harm:
    highest = max((unit.spec.priority for unit in units), default=-1)
    return Harm(highest, sum(len(unit.tasks) for unit in units), slot)


def subsets(units: list[Unit]) -> Iterator[tuple[Unit, ...]]:
    return chain.from_iterable(combinations(units, size) for size in range(len(units) + 1))


full_clusters = given(nodes, lesser, wanted)


@settings(max_examples=150, derandomize=True)
@full_clusters
def test_the_least_work_is_preempted(
    nodes: list[Machine], lesser: list[dict[str, Any]], wanted: dict[str, int]
) -> None:
    full = Full(nodes, lesser, wanted)
    expected = None if full.has_room else full.least()
    full.cluster.round()

    gone = evicted(full.cluster)
    if expected is None:
        assert not gone
        return
    units = tuple(other for other in full.units(expected.slot) if other.tasks <= gone)
    assert {task for unit in units for task in unit.tasks} == gone
    assert harm(expected.slot, units) == expected
    assert full.enough(expected.slot, units)
    for unit in units:
        assert not full.enough(expected.slot, tuple(other for other in units if other is not unit))


@settings(max_examples=40, derandomize=True)
@full_clusters
def test_the_preemptor_gets_the_freed_resources(
    nodes: list[Machine], lesser: list[dict[str, Any]], wanted: dict[str, int]
) -> None:
    full = Full(nodes, lesser, wanted)
    full.cluster.round()
    waits = bool(evicted(full.cluster))
    full.cluster.end_evicted()
    full.cluster.round()

    assert not waits or full.cluster.tasks(full.job.id, AttemptState.OFFERED)
