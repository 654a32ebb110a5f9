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
def table() -> NodeTable:
    """One node of 4 cores and 8 bytes."""
    table = NodeTable()
    table.set_capacity(table.add(N1), {"cpu": 4000, "memory": 8})
    return table


def test_a_node_keeps_its_slot(table: NodeTable) -> None:
    assert table.add(N1) == table.slot[N1] == 0
    assert table.add(N2) == 1
    assert table.add(N1) == 0
    assert (table.ids, table.size) == ([N1, N2], 2)


def test_free_is_capacity_minus_reserved(table: NodeTable) -> None:
    table.reserve(0, [("cpu", 1500), ("memory", 3)], 2, 0)

    assert left(table, N1) == {"cpu": 1000, "memory": 2}


def test_released_resources_are_free_again(table: NodeTable) -> None:
    table.reserve(0, [("cpu", 1500)], 2, 0)
    table.reserve(0, [("cpu", 1500)], -1, 0)

    assert left(table, N1) == {"cpu": 2500, "memory": 8}


def test_a_smaller_measured_amount_counts(table: NodeTable) -> None:
    table.reserve(0, [("memory", 3)], 1, 0)
    table.set_measured(0, {"memory": 4}, 0.5)
    measured = left(table, N1)["memory"]
    table.set_measured(0, {"memory": 7}, 0.5)

    assert (measured, left(table, N1)["memory"]) == (4, 5)
    assert table.load[0] == 0.5


def test_a_resource_that_no_node_has_can_be_reserved(table: NodeTable) -> None:
    """The node may have had the resource, and lost it."""
    table.reserve(0, [("gpu", 1)], 1, 0)

    assert left(table, N1) == {"cpu": 4000, "memory": 8, "gpu": -1}


def test_a_resource_that_no_node_has_can_be_measured(table: NodeTable) -> None:
    table.set_measured(0, {"disk": 5}, 0.0)

    assert left(table, N1) == {"cpu": 4000, "memory": 8, "disk": 0}


def test_a_capacity_replaces_the_previous_one(table: NodeTable) -> None:
    table.set_capacity(0, {"gpu": 2})

    assert left(table, N1) == {"cpu": 0, "memory": 0, "gpu": 2}


def test_changes_that_may_let_a_task_fit_are_counted(table: NodeTable) -> None:
    seen = [table.capacity_version]
    table.set_labels(0, {"zone": "a"}, ())
    seen.append(table.capacity_version)
    table.set_open(0, True)
    seen.append(table.capacity_version)
    table.set_capacity(0, {"cpu": 9000})
    seen.append(table.capacity_version)
    table.set_measured(0, {"cpu": 1}, 0.0)
    table.set_measured(0, {"cpu": 2}, 0.0)
    seen.append(table.capacity_version)

    assert seen == sorted(set(seen))


def test_changes_that_let_no_task_fit_are_not_counted(table: NodeTable) -> None:
    before = table.capacity_version
    table.reserve(0, [("cpu", 1)], 1, 0)
    table.set_labels(0, {}, ())
    table.set_open(0, False)
    table.set_measured(0, {"cpu": 1}, 0.0)

    assert table.capacity_version == before


def test_labels_have_a_version(table: NodeTable) -> None:
    versions = []
    for labels in ({"zone": "a"}, {"zone": "a"}, {"zone": "b"}):
        table.set_labels(0, labels, ())
        versions.append(table.labels_version)

    assert versions == [1, 1, 2]


@given(st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=200))
def test_many_nodes_and_resources_do_not_mix(
    nodes: list[tuple[dict[str, int], dict[str, int], dict[str, int]]],
) -> None:
    """Columns and rows are added while the others are in use."""
    table = NodeTable()
    for number, (capacity, reserved, _) in enumerate(nodes):
        slot = table.add(NodeId(f"n{number}"))
        table.set_capacity(slot, capacity)
        table.set_open(slot, number % 2 == 0)
        table.queued[slot] = number
        table.reserve(slot, sorted(reserved.items()), 3, 0)
    for number, (_, _, measured) in enumerate(nodes):
        table.set_measured(number, measured, number / 1000)

    for number, (capacity, reserved, measured) in enumerate(nodes):
        assert left(table, NodeId(f"n{number}")) == {
            resource: min(
                capacity.get(resource, 0) - 3 * reserved.get(resource, 0), measured.get(resource, UNMEASURED)
            )
            for resource in table.rows
        }
        assert bool(table.open[number]) == (number % 2 == 0)
        assert (table.queued[number], table.load[number]) == (number, number / 1000)
    assert table.free().shape == (len(table.rows), len(nodes))


def left(table: NodeTable, node: NodeId) -> dict[str, int]:
    free = table.free()
    return {resource: int(free[row, table.slot[node]]) for resource, row in table.rows.items()}
