"""NodeTable: capacity, reservations and free resources of each node."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.ids import NodeId
from rota.model.node_table import NodeTable

N1, N2 = NodeId("n1"), NodeId("n2")
UNMEASURED = np.iinfo(np.int64).max
resources = st.sampled_from(["cpu", "memory", "gpu", "licence"])
amounts = st.dictionaries(resources, st.integers(0, 2**50), max_size=4)


@pytest.fixture
def room() -> NodeTable:
    """One node of 4 cores and 8 bytes."""
    room = NodeTable()
    room.set_capacity(room.add(N1), {"cpu": 4000, "memory": 8})
    return room


def test_a_node_keeps_its_slot(room: NodeTable) -> None:
    assert room.add(N1) == room.slot[N1] == 0
    assert room.add(N2) == 1
    assert room.add(N1) == 0
    assert (room.ids, room.size) == ([N1, N2], 2)


def test_free_is_capacity_minus_reserved(room: NodeTable) -> None:
    room.reserve(0, [("cpu", 1500), ("memory", 3)], 2, 0)

    assert left(room, N1) == {"cpu": 1000, "memory": 2}


def test_released_resources_are_free_again(room: NodeTable) -> None:
    room.reserve(0, [("cpu", 1500)], 2, 0)
    room.reserve(0, [("cpu", 1500)], -1, 0)

    assert left(room, N1) == {"cpu": 2500, "memory": 8}


def test_a_smaller_measured_amount_counts(room: NodeTable) -> None:
    room.reserve(0, [("memory", 3)], 1, 0)
    room.set_measured(0, {"memory": 4}, 0.5)
    measured = left(room, N1)["memory"]
    room.set_measured(0, {"memory": 7}, 0.5)

    assert (measured, left(room, N1)["memory"]) == (4, 5)
    assert room.load[0] == 0.5


def test_a_resource_that_no_node_has_can_be_reserved(room: NodeTable) -> None:
    """Its node may have had it, and lost it."""
    room.reserve(0, [("gpu", 1)], 1, 0)

    assert left(room, N1) == {"cpu": 4000, "memory": 8, "gpu": -1}


def test_a_resource_that_no_node_has_can_be_measured(room: NodeTable) -> None:
    room.set_measured(0, {"disk": 5}, 0.0)

    assert left(room, N1) == {"cpu": 4000, "memory": 8, "disk": 0}


def test_a_capacity_replaces_the_previous_one(room: NodeTable) -> None:
    room.set_capacity(0, {"gpu": 2})

    assert left(room, N1) == {"cpu": 0, "memory": 0, "gpu": 2}


def test_changes_that_may_let_a_task_fit_are_counted(room: NodeTable) -> None:
    seen = [room.capacity_version]
    room.set_labels(0, {"zone": "a"}, ())
    seen.append(room.capacity_version)
    room.set_open(0, True)
    seen.append(room.capacity_version)
    room.set_capacity(0, {"cpu": 9000})
    seen.append(room.capacity_version)
    room.set_measured(0, {"cpu": 1}, 0.0)
    room.set_measured(0, {"cpu": 2}, 0.0)
    seen.append(room.capacity_version)

    assert seen == sorted(set(seen))


def test_changes_that_let_no_task_fit_are_not_counted(room: NodeTable) -> None:
    before = room.capacity_version
    room.reserve(0, [("cpu", 1)], 1, 0)
    room.set_labels(0, {}, ())
    room.set_open(0, False)
    room.set_measured(0, {"cpu": 1}, 0.0)

    assert room.capacity_version == before


def test_labels_have_a_version(room: NodeTable) -> None:
    versions = []
    for labels in ({"zone": "a"}, {"zone": "a"}, {"zone": "b"}):
        room.set_labels(0, labels, ())
        versions.append(room.labels_version)

    assert versions == [1, 1, 2]


@given(st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=200))
def test_many_nodes_and_resources_do_not_mix(
    nodes: list[tuple[dict[str, int], dict[str, int], dict[str, int]]],
) -> None:
    """Columns and rows are added while there is something in the others already."""
    room = NodeTable()
    for number, (capacity, reserved, _) in enumerate(nodes):
        slot = room.add(NodeId(f"n{number}"))
        room.set_capacity(slot, capacity)
        room.set_open(slot, number % 2 == 0)
        room.queued[slot] = number
        room.reserve(slot, sorted(reserved.items()), 3, 0)
    for number, (_, _, measured) in enumerate(nodes):
        room.set_measured(number, measured, number / 1000)

    for number, (capacity, reserved, measured) in enumerate(nodes):
        assert left(room, NodeId(f"n{number}")) == {
            resource: min(
                capacity.get(resource, 0) - 3 * reserved.get(resource, 0), measured.get(resource, UNMEASURED)
            )
            for resource in room.rows
        }
        assert bool(room.open[number]) == (number % 2 == 0)
        assert (room.queued[number], room.load[number]) == (number, number / 1000)
    assert room.free().shape == (len(room.rows), len(nodes))


def left(room: NodeTable, node: NodeId) -> dict[str, int]:
    free = room.free()
    return {resource: int(free[row, room.slot[node]]) for resource, row in room.rows.items()}
