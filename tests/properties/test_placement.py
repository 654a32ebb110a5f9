"""Each pick is the best of all nodes, as a full rescan finds it, after any history."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.engine.state.mirror import Mirror
from rota.model import node_table
from rota.model.attempt import Choice, StatusBlock
from rota.model.ids import JobId, NodeId
from rota.model.job import Counters, JobSpec
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Connection, Eligibility, NodeIntent, NodeLoad, NodeSpec, NodeStatus
from rota.model.shape import AffinityTerm, Constraint, Op, Policy, Preference, SpreadTerm
from rota.scheduler.placement import board, place, rows
from rota.scheduler.placement.attempt_blocks import AttemptBlockWriter, PlacedTasks
from rota.scheduler.placement.place import Assignment, Placer
from rota.scheduler.placement.rows import Plugins
from rota.testing import records
from rota.testing.builders import add_job, node_status
from tests.properties.oracle import Live, Machine, Oracle, Place

EXAMPLES = 100
INTERFERENCE: Mapping[str, Mapping[str, int]] = {"disk": {"net": 7}, "net": {"net": 0, "disk": 3}}
NODE_LABELS = ("region", "rack", "ssd")

# ---- inputs

milli = st.sampled_from([1000, 1500, 2000, 3000, 4000, 8000])
mebi = st.sampled_from([3, 4, 7, 8, 16])
labels = st.fixed_dictionaries(
    {},
    optional={
        "region": st.sampled_from(["eu", "us", "as"]),
        "rack": st.sampled_from(["r1", "r2", "r3", "r4"]),
        "ssd": st.just("yes"),
    },
)
capacities = st.fixed_dictionaries(
    {"cpu": milli, "memory": mebi},
    optional={"gpu": st.sampled_from([1000, 2000, 4000]), "licence": st.integers(1, 3)},
)
taints = st.sampled_from([(), (), (), ("dedicated=ci",), ("slow",)])
needs = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from([100, 500, 700, 1000, 1500]),
        "memory": st.integers(1, 3),
        "gpu": st.sampled_from([250, 500, 700, 1000, 2000]),
        "licence": st.just(1),
    },
)
conditions = st.sampled_from(
    [
        Constraint("region", Op.EQUAL, ("eu",)),
        Constraint("region", Op.IN, ("eu", "us")),
        Constraint("rack", Op.UNEQUAL, ("r1",)),
        Constraint("ssd", Op.EXISTS),
        Constraint("node", Op.NOT_IN, ("n0",)),
    ]
)
selectors = st.sampled_from(
    [
        Constraint("app", Op.EQUAL, ("web",)),
        Constraint("app", Op.EXISTS),
        Constraint("app", Op.UNEQUAL, ("web",)),
        Constraint("job", Op.IN, ("job-1", "job-2")),
    ]
)
overs = st.sampled_from(["node", "rack", "region"])
weights = st.sampled_from([None, None, 1, 30, 33, 100])
terms = st.lists(st.builds(AffinityTerm, selectors, overs, weights), max_size=2).map(tuple)
specs = st.fixed_dictionaries(
    {"needs": needs},
    optional={
        "labels": st.sampled_from([{"app": "web"}, {"app": "db"}]),
        "namespace": st.sampled_from(["default", "default", "other"]),
        "where": st.lists(conditions, max_size=1).map(tuple),
        "prefer": st.lists(st.builds(Preference, conditions, st.integers(-100, 100)), max_size=2).map(tuple),
        "tolerate": st.sampled_from([("dedicated",), ("dedicated=ci",), ("*",), ("slow",)]),
        "noise": st.sampled_from(["disk", "net"]),
        "policy": st.sampled_from(Policy),
        "near": terms,
        "apart": terms,
        "spread": st.lists(
            st.builds(SpreadTerm, overs, st.integers(1, 3), weights),
            max_size=2,
            unique_by=lambda one: one.over,
        ).map(tuple),
    },
)
machines = st.builds(Machine, capacities, labels, taints)


class Step(NamedTuple):
    """A step of the history; its numbers choose among what exists at that time."""

    what: str
    first: int = 0
    second: int = 0
    value: Any = None


ZERO, NOTHING = st.just(0), st.none()


def happening(*what: str, second: Any = ZERO, value: Any = NOTHING) -> Any:
    return st.builds(Step, st.sampled_from(what), st.integers(0, 20), second, value)


placements = happening("place", second=st.sampled_from([1, 1, 2, 3, 5, 9, 40]))
changes = st.one_of(
    happening("end round", "close", "open"),
    happening("give back", "release", second=st.integers(1, 4)),
    happening("label", value=labels),
    happening("taint", value=taints),
    happening("resize", value=capacities),
    happening("measure", second=st.integers(0, 3000), value=st.none() | st.integers(0, 8)),
    happening("join", value=machines),
)
one_change = changes.map(lambda step: step)  # one choice among others, not seven
steps = st.lists(placements | one_change, min_size=15, max_size=40)  # short histories would show little


# ---- the cluster, as scheduler and oracle see it


class PlacementTrial:
    """The scheduler and the oracle, given the same input."""

    def __init__(self, jobs: list[Mapping[str, Any]]) -> None:
        self.mirror = Mirror()
        self.oracle = Oracle(INTERFERENCE)
        self.unsubmitted = [self.spec(number, fields) for number, fields in enumerate(jobs, 1)]
        self.specs = list(self.unsubmitted)
        self.placer = Placer(self.mirror, Plugins(interference=INTERFERENCE))
        self.oracle.demand = lambda: self.placer.rows.gpus._demand
        self.begun: dict[JobId, list[Live]] = {}  # assignments of each job in this round
        self.placed: list[tuple[Live, int]] = []  # written, with the task's index

    def spec(self, number: int, fields: Mapping[str, Any]) -> JobSpec:
        return records.job(number, **{"count": 4 * BLOCK_TASKS, **fields})

    def join(self, machine: Machine) -> None:
        name = f"n{len(self.oracle.machines)}"
        labels = {**machine.labels, "node": name, "cluster": "default"}
        self.oracle.machines.append(_copied(machine, labels))
        self.oracle.known |= set(machine.capacity)
        self.mirror.apply(NodeSpec(NodeId(name), name, labels=dict(machine.labels)))
        self.mirror.apply(node_status(name, machine.capacity))
        self.mirror.connect(NodeId(name), Connection.UP)
        self.wish(len(self.oracle.machines) - 1)

    def wish(self, slot: int) -> None:
        machine = self.oracle.machines[slot]
        eligibility = Eligibility.OPEN if machine.open else Eligibility.CORDONED
        self.mirror.apply(NodeIntent(self.mirror.node_table.ids[slot], eligibility, machine.taints))

    def place(self, spec: JobSpec, count: int) -> None:
        """Place with both; the results must be equal."""
        if spec in self.unsubmitted:
            self.end_round()  # no job is submitted within a round
            self.unsubmitted.remove(spec)
            add_job(self.mirror, spec)
            self.mirror.apply(Counters(jobs=max(int(job) for job in self.mirror.jobs)))
            self.placer.start_round(self.mirror)
        if spec.id in self.begun:
            self.end_round()
        known = len(self.oracle.live)
        expected = self.oracle.place(spec, count)
        found = self.placer.place(self.mirror.jobs[spec.id], count)
        self.begun[spec.id] = self.oracle.live[known:]

        assert [Place(assignment.slot, assignment.devices) for assignment in found.assigned] == expected

    def give_back(self, spec: JobSpec, count: int) -> None:
        """Release the last assignments of this round."""
        for live in self.begun.get(spec.id, [])[-count:][::-1]:
            self.begun[spec.id].remove(live)
            self.drop(live)
            self.placer.release(self.mirror.jobs[spec.id], [Assignment(live.slot, live.devices)])

    def end_round(self) -> None:
        """Apply the placements and start the next round."""
        blocks = AttemptBlockWriter()
        for job, lives in self.begun.items():
            entry = self.mirror.jobs[job]
            indices = entry.ready(0, len(lives))
            nodes = [self.mirror.node_table.ids[live.slot] for live in lives]
            devices = [live.devices for live in lives]
            if lives:
                choice = Choice("", nodes[0], 1)
                blocks.add(PlacedTasks(entry, indices, nodes, devices, 0, place.Assignments([])), choice, 0)
            self.placed += zip(lives, indices, strict=True)
        for record in blocks.records():
            self.mirror.apply(record)
        for live in self.oracle.live:
            live.fresh = False
        self.begun.clear()
        self.placer.start_round(self.mirror)

    def release(self, at: int, count: int) -> None:
        """End some placed tasks."""
        self.end_round()
        for _ in range(min(count, len(self.placed))):
            live, index = self.placed.pop(at % len(self.placed))
            self.drop(live)
            entry = self.mirror.jobs[live.spec.id]
            block, position = divmod(index, BLOCK_TASKS)
            before = entry.statuses.get(block) or StatusBlock.new(live.spec.id, block, BLOCK_TASKS)
            self.mirror.apply(records.reported(before, [position], AttemptState.SUCCEEDED))
        self.placer.start_round(self.mirror)

    def drop(self, live: Live) -> None:
        self.oracle.live = [other for other in self.oracle.live if other is not live]

    def change(self, slot: int, step: Step) -> None:
        """Change something about a node."""
        self.end_round()
        machine, name = self.oracle.machines[slot], self.mirror.node_table.ids[slot]
        match step.what:
            case "close" | "open":
                machine.open = step.what == "open"
                self.wish(slot)
            case "taint":
                machine.taints = step.value
                self.wish(slot)
            case "label":
                machine.labels = {**step.value, "node": name, "cluster": "default"}
                self.mirror.apply(NodeSpec(name, name, labels=step.value))
            case "resize":
                machine.capacity = step.value
                self.oracle.known |= set(step.value)
                before = self.mirror.nodes[name].status
                assert isinstance(before, NodeStatus)
                self.mirror.apply(msgspec.structs.replace(before, capacity=step.value))
            case _:
                self.measure(slot, step.second, step.value)
        self.placer.start_round(self.mirror)

    def measure(self, slot: int, cpu_milli: int, memory_free: int | None) -> None:
        machine = self.oracle.machines[slot]
        machine.load = cpu_milli / machine.capacity["cpu"]
        self.oracle.measure(slot)
        if memory_free is not None:
            machine.measured["memory"] = memory_free
        self.mirror.measure(self.mirror.node_table.ids[slot], NodeLoad(cpu_milli, memory_free))

    def take(self, step: Step) -> None:
        spec = self.specs[step.first % len(self.specs)]
        match step.what:
            case "place":
                self.place(spec, step.second)
            case "give back":
                self.give_back(spec, step.second)
            case "release":
                self.release(step.first, step.second)
            case "end round":
                self.end_round()
            case "join":
                self.end_round()
                self.join(step.value)
                self.placer.start_round(self.mirror)
            case _:
                self.change(step.first % len(self.oracle.machines), step)


def _copied(machine: Machine, labels: Mapping[str, str]) -> Machine:
    return Machine(machine.capacity, labels, machine.taints)


def play(nodes: list[Machine], jobs: list[Mapping[str, Any]], happens: list[Step]) -> PlacementTrial:
    world = PlacementTrial(jobs)
    for machine in nodes:
        world.join(machine)
    world.placer.start_round(world.mirror)
    for step in happens:
        world.take(step)
    return world


worlds = given(st.lists(machines, min_size=3, max_size=8), st.lists(specs, min_size=2, max_size=5), steps)


@settings(max_examples=EXAMPLES, derandomize=True)
@worlds
def test_each_pick_is_the_best_of_all_nodes(
    nodes: list[Machine], jobs: list[Mapping[str, Any]], happens: list[Step]
) -> None:
    play(nodes, jobs, happens)


social = st.fixed_dictionaries(
    {
        "needs": st.just({"cpu": 100}),
        "labels": st.sampled_from([{"app": "web"}, {"app": "db"}, {}]),
        "apart": st.lists(
            st.builds(AffinityTerm, selectors, overs, st.sampled_from([None, None, 33])), max_size=2
        ).map(tuple),
    },
    optional={"near": terms},
)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, derandomize=True)
@given(
    st.lists(machines, min_size=3, max_size=8),
    st.lists(social, min_size=3, max_size=5),
    st.lists(
        placements | placements | happening("release", second=ZERO.map(lambda _: 2)), min_size=10, max_size=25
    ),
)
def test_anti_affinity_is_symmetric(
    nodes: list[Machine], jobs: list[Mapping[str, Any]], happens: list[Step]
) -> None:
    world = play(nodes, jobs, happens)

    assert not world.oracle.broken_rules()


@contextmanager
def short_memory() -> Iterator[None]:
    """Logs overflow, rows are dropped, runs are cut short, classes are too many: every code path is used."""
    with ExitStack() as stack:
        for module, name, value in [
            (node_table, "_LOG_MIN", 2),
            (board, "_LOG_MIN", 2),
            (rows, "ROWS_KEPT", 2),
            (rows, "_PAIRS_MAX", 4),
            (rows, "_PACK_DEPTH", 3),
            (place, "_CLASSES_MAX", 3),
            (place, "_FEW", 2),
        ]:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@pytest.mark.slow
@settings(max_examples=EXAMPLES, derandomize=True)
@worlds
def test_each_pick_is_the_best_of_all_nodes_with_tiny_caches(
    nodes: list[Machine], jobs: list[Mapping[str, Any]], happens: list[Step]
) -> None:
    with short_memory():
        play(nodes, jobs, happens)
