"""Declared and granted labels of a node -> the labels in effect."""

from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.node import NodeSpec
from rota.model.plan import Plan
from rota.rules.node_labels import ignored_labels, matched_labels, shown_labels
from rota.testing.builders import add_node, apply

NONE: frozenset[str] = frozenset()


def test_a_granted_label_overrides_a_declared_one_and_has_a_granted_name_too() -> None:
    declared, granted = {"pool": "prod", "arch": "arm"}, {"pool": "test"}

    assert matched_labels(declared, granted, NONE) == {"pool": "test", "arch": "arm", "granted.pool": "test"}
    assert shown_labels(declared, granted, NONE) == {"pool": "test", "arch": "arm"}
    assert ignored_labels(declared, granted, NONE) == {"pool": "prod"}


def test_a_node_cannot_declare_granted_labels() -> None:
    declared = {"granted.pool": "prod"}

    assert matched_labels(declared, {}, NONE) == {}
    assert ignored_labels(declared, {}, NONE) == declared


def test_labels_that_must_be_granted_have_no_effect_if_declared() -> None:
    only = frozenset({"pool"})

    assert matched_labels({"pool": "prod"}, {}, only) == {}
    assert matched_labels({"pool": "prod"}, {"pool": "prod"}, only) == {
        "pool": "prod",
        "granted.pool": "prod",
    }
    assert ignored_labels({"pool": "prod"}, {"pool": "prod"}, only) == {}


def test_the_scheduler_sees_the_labels_in_effect() -> None:
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
