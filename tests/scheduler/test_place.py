"""Placement equals placing one task at a time with a full rescan, within the capacity of every node."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.job import JobSpec
from rota.model.limits import NODE_TASKS_MAX
from rota.model.node import NodeLoad
from rota.scheduler.placement.place import Placer
from rota.testing.builders import GIB, add_job, add_node, job_spec
from tests.scheduler.rounds import Rounds

# Powers of two, so that usage is exact in floating point and a tie is a tie.
CAPACITIES = st.fixed_dictionaries(
    {"cpu": st.sampled_from([1024, 2048, 8192]), "memory": st.sampled_from([1 * GIB, 4 * GIB, 16 * GIB])}
)
NEEDS = st.fixed_dictionaries(
    {"cpu": st.sampled_from([0, 512, 1024, 3072]), "memory": st.sampled_from([0, GIB // 2, 1 * GIB, 5 * GIB])}
)
CLUSTERS = st.lists(CAPACITIES, min_size=1, max_size=6)


def cluster(capacities: list[dict[str, int]]) -> Mirror:
    mirror = Mirror()
    for number, capacity in enumerate(capacities):
        add_node(mirror, f"n{number}", capacity)
    return mirror


def chosen(mirror: Mirror, spec: JobSpec, wanted: int) -> list[int]:
    return [assignment.slot for assignment in Placer(mirror).place(JobEntry(spec), wanted).assigned]


def one_at_a_time(mirror: Mirror, spec: JobSpec, wanted: int) -> list[int]:
    placer, job = Placer(mirror), JobEntry(spec)
    return [assignment.slot for _ in range(wanted) for assignment in placer.place(job, 1).assigned]


@given(CLUSTERS, NEEDS, st.integers(1, 20), st.data())
def test_placing_many_is_placing_one_at_a_time_with_a_full_rescan(
    capacities: list[dict[str, int]], needs: dict[str, int], wanted: int, data: st.DataObject
) -> None:
    mirror = cluster(capacities)
    for node, entry in list(mirror.nodes.items()):
        assert entry.status is not None
        load = data.draw(st.sampled_from([0, 1, 2, 4]))
        mirror.measure(node, NodeLoad(cpu_milli=entry.status.capacity["cpu"] * load // 4))
    spec = job_spec(needs=needs)

    assert chosen(mirror, spec, wanted) == one_at_a_time(mirror, spec, wanted)


@given(CLUSTERS, NEEDS, st.integers(0, 60))
def test_as_many_as_fit_are_placed_and_no_node_gets_more_than_it_has(
    capacities: list[dict[str, int]], needs: dict[str, int], wanted: int
) -> None:
    slots = chosen(cluster(capacities), job_spec(needs=needs), wanted)

    fit = [
        min((capacity[name] // amount for name, amount in needs.items() if amount), default=NODE_TASKS_MAX)
        for capacity in capacities
    ]
    assert len(slots) == min(wanted, sum(fit))
    assert all(slots.count(slot) <= most for slot, most in enumerate(fit))


@given(st.permutations(range(6)), NEEDS, st.integers(1, 12))
def test_the_order_of_joining_decides_nothing_but_ties(
    order: list[int], needs: dict[str, int], wanted: int
) -> None:
    def taken(numbers: Sequence[int]) -> list[int]:
        mirror = cluster([{"cpu": 8000 + 1000 * n, "memory": (16 + 3 * n) * GIB} for n in numbers])
        for slot, n in enumerate(numbers):
            mirror.node_table.reserve(slot, (("cpu", 100 + 100 * n),), 1, 0)  # no two are equally idle
        spec = job_spec(needs=needs | {"cpu": needs["cpu"] or 512})
        return [numbers[slot] for slot in chosen(mirror, spec, wanted)]

    assert taken(order) == taken(range(6))


def test_the_same_cluster_gives_the_same_choice() -> None:
    draw = random.Random(7)
    capacities = [
        {"cpu": draw.randrange(1, 9) * 1000, "memory": draw.randrange(1, 9) * GIB} for _ in range(40)
    ]
    spec = job_spec(needs={"cpu": 700, "memory": GIB // 3})

    assert chosen(cluster(capacities), spec, 100) == chosen(cluster(capacities), spec, 100)


def test_among_equal_nodes_the_lowest_slot_is_first_and_they_are_filled_in_turn() -> None:
    mirror = cluster([{"cpu": 4096, "memory": 8 * GIB}] * 3)

    assert chosen(mirror, job_spec(needs={"cpu": 1024}), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_the_idlest_node_is_first() -> None:
    mirror = cluster([{"cpu": 4096, "memory": 8 * GIB}] * 2)
    mirror.node_table.reserve(0, (("cpu", 1024),), 1, 0)

    assert chosen(mirror, job_spec(needs={"cpu": 1024}), 2) == [1, 0]


def test_a_node_whose_cpu_is_measured_busy_comes_later() -> None:
    mirror = cluster([{"cpu": 4096, "memory": 8 * GIB}] * 2)
    mirror.measure(mirror.node_table.ids[0], NodeLoad(cpu_milli=3072))

    assert chosen(mirror, job_spec(needs={"cpu": 1024}), 2) == [1, 1]


@pytest.mark.parametrize("percent", [0, 60, 90, 100])
def test_nodes_under_equal_outside_load_get_equal_shares(percent: int) -> None:
    mirror = cluster([{"cpu": 4000, "memory": 8 * GIB}] * 3)
    for node in mirror.node_table.ids:
        mirror.measure(node, NodeLoad(cpu_milli=40 * percent))

    assert Counter(chosen(mirror, job_spec(needs={"cpu": 100}), 12)) == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("percent", [60, 90])
def test_tasks_placed_since_the_last_report_count_on_top_of_the_load(percent: int) -> None:
    rounds = Rounds()
    for name in ("a", "b", "c"):
        node = add_node(rounds.mirror, name, {"cpu": 4000, "memory": 8 * GIB})
        rounds.mirror.measure(node, NodeLoad(cpu_milli=40 * percent))

    for number in range(1, 13):
        add_job(rounds.mirror, job_spec(number, needs={"cpu": 100}))
        rounds.go()

    assert [len(node.assigned) for node in rounds.mirror.nodes.values()] == [4, 4, 4]


def test_memory_placed_since_the_last_report_is_not_free() -> None:
    mirror = cluster([{"cpu": 8000, "memory": 8 * GIB}])
    mirror.measure(mirror.node_table.ids[0], NodeLoad(memory_free=3 * GIB))
    mirror.node_table.reserve(0, (("memory", GIB),), 2, 0)

    assert chosen(mirror, job_spec(needs={"memory": GIB}), 8) == [0]


def test_memory_released_since_the_last_report_may_still_be_in_use() -> None:
    mirror = cluster([{"cpu": 8000, "memory": 8 * GIB}])
    mirror.node_table.reserve(0, (("memory", GIB),), 2, 0)
    mirror.measure(mirror.node_table.ids[0], NodeLoad(memory_free=3 * GIB))
    mirror.node_table.reserve(0, (("memory", GIB),), -2, 0)

    assert chosen(mirror, job_spec(needs={"memory": GIB}), 8) == [0, 0, 0]


def test_idle_tasks_that_were_measured_keep_counting_a_little() -> None:
    mirror = cluster([{"cpu": 4000, "memory": 8 * GIB}] * 2)
    mirror.node_table.reserve(0, (("cpu", 100),), 10, 0)
    for node in mirror.node_table.ids:
        mirror.measure(node, NodeLoad(cpu_milli=4000))

    assert chosen(mirror, job_spec(needs={"cpu": 100}), 1) == [1]


def test_tasks_without_requests_are_spread_evenly() -> None:
    mirror = cluster([{"cpu": 1000, "memory": GIB}] * 3)

    assert chosen(mirror, job_spec(needs={}), 6) == [0, 1, 2, 0, 1, 2]


def test_tasks_without_requests_are_bounded_too() -> None:
    mirror = cluster([{"cpu": 1000, "memory": GIB}])
    mirror.node_table.held[0] = NODE_TASKS_MAX - 2

    assert chosen(mirror, job_spec(needs={}), 5) == [0, 0]


def test_memory_measured_as_used_is_not_allocated() -> None:
    mirror = cluster([{"cpu": 8000, "memory": 8 * GIB}])
    mirror.measure(mirror.node_table.ids[0], NodeLoad(memory_free=3 * GIB))

    assert chosen(mirror, job_spec(needs={"memory": GIB}), 8) == [0, 0, 0]


def test_a_resource_that_no_node_has_fits_nowhere() -> None:
    assert chosen(cluster([{"cpu": 8000}]), job_spec(needs={"licence": 1}), 1) == []


def test_a_shape_that_asks_for_none_of_an_unknown_resource_is_placed() -> None:
    mirror = cluster([{"cpu": 8000}])
    spec = job_spec(needs={"cpu": 1000, "gpu": 0})

    assert one_at_a_time(mirror, spec, 2) == [0, 0]


def test_a_resource_is_placed_like_any_other_whatever_its_name() -> None:
    """Stores written before a name was reserved may hold it."""
    mirror = cluster([{"cpu": 8000, "tasks": 2}, {"cpu": 8000}])

    assert chosen(mirror, job_spec(needs={"cpu": 1000, "tasks": 1}), 5) == [0, 0]
    assert len(chosen(mirror, job_spec(needs={"cpu": 1000}), 20)) == 16
