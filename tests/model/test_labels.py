"""Declared and granted labels of a node -> those that count."""

from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.node import NodeSpec
from rota.model.plan import Plan
from rota.rules.node_labels import ignored_labels, matched_labels, shown_labels
from rota.testing.builders import add_node, apply

NONE: frozenset[str] = frozenset()


def test_a_granted_label_counts_twice_and_goes_before_a_declared_one() -> None:
    declared, granted = {"pool": "prod", "arch": "arm"}, {"pool": "test"}

    assert matched_labels(declared, granted, NONE) == {"pool": "test", "arch": "arm", "granted.pool": "test"}
    assert shown_labels(declared, granted, NONE) == {"pool": "test", "arch": "arm"}
    assert ignored_labels(declared, granted, NONE) == {"pool": "prod"}


def test_no_node_declares_what_is_granted() -> None:
    declared = {"granted.pool": "prod"}

    assert matched_labels(declared, {}, NONE) == {}
    assert ignored_labels(declared, {}, NONE) == declared


def test_labels_that_have_to_be_granted_do_not_count_where_they_are_declared() -> None:
    only = frozenset({"pool"})

    assert matched_labels({"pool": "prod"}, {}, only) == {}
    assert matched_labels({"pool": "prod"}, {"pool": "prod"}, only) == {
        "pool": "prod",
        "granted.pool": "prod",
    }
    assert ignored_labels({"pool": "prod"}, {"pool": "prod"}, only) == {}


def test_the_scheduler_sees_the_labels_that_count() -> None:
    mirror = Mirror(frozenset({"tier"}))
    add_node(mirror, "a", labels={"pool": "prod", "granted.pool": "prod", "tier": "gold"})
    before = dict(mirror.node_table.labels[0])
    apply(mirror, Plan((NodeSpec(NodeId("a"), "a", labels={"tier": "gold"}),)))
    after = dict(mirror.node_table.labels[0])

    assert before == {
        "pool": "prod",
        "node": "a",
        "granted.node": "a",
        "cluster": "default",
        "granted.cluster": "default",
    }
    assert after == before | {"tier": "gold", "granted.tier": "gold"}
