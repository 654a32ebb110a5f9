"""Constraints on labels: every operator, versions, and masks over all nodes."""

import pytest

from rota.engine.mirror import Mirror
from rota.model.job import Op
from rota.scheduler.filters import Masks, satisfies
from rota.testing.builders import add_node, where

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
def test_words_are_compared_as_words(
    op: str, values: tuple[str, ...], labels: dict[str, str], expected: bool
) -> None:
    assert satisfies(where("region", op, *values), labels) is expected


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
    assert satisfies(where("kernel", "<", more), {"kernel": less})
    assert satisfies(where("kernel", ">", less), {"kernel": more})
    assert not satisfies(where("kernel", ">", more), {"kernel": less})
    assert not satisfies(where("kernel", "<", less), {"kernel": more})


@pytest.mark.parametrize("op", ["<", ">"])
def test_nothing_is_less_or_more_than_itself_or_than_what_is_missing(op: str) -> None:
    assert not satisfies(where("kernel", op, "6.1"), {"kernel": "6.1"})
    assert not satisfies(where("kernel", op, "6.1"), {})


@pytest.mark.parametrize("text", ["", ".", "1.", "nan", "inf", "1e400", "٣", "1..2", "v1.2", "²"])
@pytest.mark.parametrize("other", ["", "1.2", "1.2.3", "nan", "x"])
def test_any_text_can_be_compared(text: str, other: str) -> None:
    assert satisfies(where("v", "<", other), {"v": text}) in (True, False)


def test_a_mask_holds_the_nodes_that_satisfy_all_constraints() -> None:
    mirror = Mirror()
    for node, labels in {"a": {"region": "eu", "disk": "ssd"}, "b": EU, "c": {"disk": "ssd"}}.items():
        add_node(mirror, node, labels=labels)
    both = (where("region", "==", "eu"), where("disk", "==", "ssd"))

    assert Masks().of(mirror.room, both).tolist() == [True, False, False]
    assert Masks().of(mirror.room, ()).tolist() == [True, True, True]


def test_a_mask_follows_changes_of_labels_and_new_nodes() -> None:
    mirror, masks = Mirror(), Masks()
    add_node(mirror, "a", labels={"region": "us"})
    eu = (where("region", "==", "eu"),)
    before = masks.of(mirror.room, eu).tolist()
    add_node(mirror, "a", labels=EU)
    changed = masks.of(mirror.room, eu).tolist()
    add_node(mirror, "b", labels=EU)

    assert (before, changed, masks.of(mirror.room, eu).tolist()) == ([False], [True], [True, True])


def test_a_node_can_be_asked_for_by_its_name_and_cluster() -> None:
    mirror = Mirror()
    add_node(mirror, "a")
    add_node(mirror, "b", labels={"node": "a"})

    assert Masks().of(mirror.room, (where("node", "==", "a"),)).tolist() == [True, False]
    assert Masks().of(mirror.room, (where("cluster", "==", "default"),)).tolist() == [True, True]


def test_every_operator_has_a_test_here() -> None:
    assert {op.value for op in Op} == {"==", "!=", "in", "not in", "exists", "<", ">"}
