"""Constraints on labels: every operator, versions, and masks over all nodes."""

import pytest

from rota.engine.state.mirror import Mirror
from rota.model.shape import Op, tolerates
from rota.scheduler.placement.board import Board
from rota.scheduler.placement.filters import matching_nodes
from rota.scheduler.placement.rows import ScoreRows
from rota.scheduler.placement.scores import EXCLUDED
from rota.testing.builders import add_node, job_spec, where

EU = {"region": "eu"}


@pytest.mark.parametrize(
    ("op", "values", "labels", "expected"),
    [
        ("==", ("eu",), EU, True),
        ("==", ("us",), EU, False),
        ("==", ("eu",), {}, False),
        ("!=", ("eu",), EU, False),
        ("!=", ("us",), EU, True),
        ("!=", ("eu",), {}, True),
        ("in", ("us", "eu"), EU, True),
        ("in", ("us", "asia"), EU, False),
        ("in", ("us", "eu"), {}, False),
        ("not in", ("us", "eu"), EU, False),
        ("not in", ("us", "asia"), EU, True),
        ("not in", ("us", "eu"), {}, True),
        ("exists", (), EU, True),
        ("exists", (), {}, False),
        ("exists", (), {"region": ""}, True),
    ],
)
def test_text_values_are_compared_as_text(
    op: str, values: tuple[str, ...], labels: dict[str, str], expected: bool
) -> None:
    assert where("region", op, *values).holds(labels) is expected


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("9", "10"),
        ("1.5", "2"),
        ("2.9.1", "2.10.0"),
        ("5.15.0", "6.1.0"),
        ("5.15.0-91-generic", "5.15.1-20-generic"),
        ("1.9", "1.10"),
        ("6.1", "6.1.1"),
        ("0.5", "3"),
        ("alpha", "beta"),
        ("-1", "1"),
    ],
)
def test_numbers_and_versions_are_compared_by_size(less: str, more: str) -> None:
    assert where("kernel", "<", more).holds({"kernel": less})
    assert where("kernel", ">", less).holds({"kernel": more})
    assert not where("kernel", ">", more).holds({"kernel": less})
    assert not where("kernel", "<", less).holds({"kernel": more})


@pytest.mark.parametrize("op", ["<", ">"])
def test_nothing_is_less_or_more_than_itself_or_than_what_is_missing(op: str) -> None:
    assert not where("kernel", op, "6.1").holds({"kernel": "6.1"})
    assert not where("kernel", op, "6.1").holds({})


@pytest.mark.parametrize("text", ["", ".", "1.", "nan", "inf", "1e400", "٣", "1..2", "v1.2", "²"])
@pytest.mark.parametrize("other", ["", "1.2", "1.2.3", "nan", "x"])
def test_any_text_can_be_compared(text: str, other: str) -> None:
    assert where("v", "<", other).holds({"v": text}) in (True, False)


def test_a_mask_holds_the_nodes_that_satisfy_all_constraints() -> None:
    mirror = Mirror()
    for node, labels in {"a": {"region": "eu", "disk": "ssd"}, "b": EU, "c": {"disk": "ssd"}}.items():
        add_node(mirror, node, labels=labels)
    both = (where("region", "==", "eu"), where("disk", "==", "ssd"))

    assert matching_nodes(mirror.node_table, job_spec(where=both).shape).tolist() == [True, False, False]
    assert matching_nodes(mirror.node_table, job_spec().shape).tolist() == [True, True, True]


def test_a_row_follows_changes_of_labels_and_new_nodes() -> None:
    mirror = Mirror()
    add_node(mirror, "a", labels={"region": "us"})
    shape = job_spec(where=(where("region", "==", "eu"),)).shape
    board = Board(mirror.node_table)
    rows = ScoreRows(board)
    seen = []
    for node, labels in (("a", {"region": "us"}), ("a", EU), ("b", EU)):
        add_node(mirror, node, labels=labels)
        board.sync()
        seen.append((rows.points(shape) != EXCLUDED).tolist())

    assert seen == [[False], [True], [True, True]]


def test_a_taint_excludes_shapes_that_do_not_tolerate_it() -> None:
    assert tolerates((), ())
    assert not tolerates((), ("dedicated=ci",))
    assert tolerates(("dedicated=ci",), ("dedicated=ci",))
    assert tolerates(("dedicated",), ("dedicated=ci",))
    assert tolerates(("*",), ("dedicated=ci", "spot"))
    assert not tolerates(("dedicated=gpu", "spot"), ("dedicated=ci",))
    assert not tolerates(("dedicated",), ("dedicated=ci", "spot"))


def test_a_node_can_be_selected_by_its_name_and_cluster() -> None:
    mirror = Mirror()
    add_node(mirror, "a")
    add_node(mirror, "b", labels={"node": "a"})

    assert matching_nodes(mirror.node_table, job_spec(where=(where("node", "==", "a"),)).shape).tolist() == [
        True,
        False,
    ]
    assert matching_nodes(
        mirror.node_table, job_spec(where=(where("cluster", "==", "default"),)).shape
    ).tolist() == [
        True,
        True,
    ]


def test_every_operator_has_a_test_here() -> None:
    assert {op.value for op in Op} == {"==", "!=", "in", "not in", "exists", "<", ">"}
