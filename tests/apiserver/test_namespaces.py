"""Quotas of namespaces and taints of nodes: what operators may set, and what is refused by field."""

from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.access import Caller
from rota.apiserver.admission import namespaces
from rota.apiserver.admission.node_actions import set_node_eligibility, taint_node
from rota.engine.state.mirror import Mirror
from rota.identity.tokens import Role
from rota.model.errors import NotAllowed, NotFound, Rejected
from rota.model.ids import NodeId
from rota.model.namespace import NamespaceRecord
from rota.model.node import Connection, Eligibility, NodeIntent
from rota.model.plan import NO_CHANGE, Answer, Plan
from rota.rules.reconciler_names import ROUND_KEY
from rota.scheduler import plan as scheduler
from rota.store.memory import MemoryStore
from rota.testing.builders import add_job, add_node, job_spec, placements
from tests.apiserver.builders import ADA, node, node_status
from tests.apiserver.serving import serving
from tests.scheduler.rounds import Rounds

OPERATOR = Caller("olga", Role.OPERATOR, ("team",))


def applied(mirror: Mirror, plan: Plan[Answer]) -> Plan[Answer]:
    for record in plan.puts:
        mirror.apply(record)
    for key in plan.deletes:
        mirror.forget(key)
    return plan


def test_a_quota_is_stored_in_the_units_of_the_model() -> None:
    quota = {"cpu": 1.5, "memory": "2g", "gpu": 0.5, "tasks": 7, "licence": 3}
    plan = namespaces.set_namespace(Mirror(), "team", {"quota": quota, "weight": 5}, ADA)

    kept = {"cpu": 1500, "gpu": 500, "licence": 3, "memory": 2**31, "tasks": 7}
    assert plan.puts == (NamespaceRecord("team", kept, 5),)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"quota": 7}, "quota"),
        ({"quota": {"cpu": "lots"}}, "quota.cpu"),
        ({"quota": {"cpu": -1}}, "quota.cpu"),
        ({"quota": {"memory": "4 apples"}}, "quota.memory"),
        ({"quota": {"gpu": "many"}}, "quota.gpu"),
        ({"quota": {"gpu": float("nan")}}, "quota.gpu"),
        ({"quota": {"tasks": 1.5}}, "quota.tasks"),
        ({"quota": {"licence": "x"}}, "quota.licence"),
        ({"quota": {"a b": 1}}, "quota"),
        ({"weight": 0}, "weight"),
        ({"weight": 1001}, "weight"),
        ({"wait": 1}, "wait"),
    ],
)
def test_bad_input_names_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejected) as refused:
        namespaces.set_namespace(Mirror(), "team", body, ADA)

    assert refused.value.field == field
    assert refused.value.hint


def test_only_a_cluster_wide_operator_may_change_a_namespace() -> None:
    with pytest.raises(NotAllowed):
        namespaces.set_namespace(Mirror(), "team", {}, OPERATOR)
    with pytest.raises(NotFound):
        namespaces.delete_namespace(Mirror(), "team", ADA)


def test_a_job_that_waits_for_a_quota_is_placed_when_that_is_removed() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    applied(rounds.mirror, namespaces.set_namespace(rounds.mirror, "team", {"quota": {"cpu": 0}}, ADA))
    job = add_job(rounds.mirror, job_spec(namespace="team"))
    rounds.go()
    before = placements(rounds.mirror, job)
    gone = applied(rounds.mirror, namespaces.delete_namespace(rounds.mirror, "team", ADA))
    rounds.go()

    woken = [key for put in gone.puts for key in scheduler.reconciler().wakes[type(put)](put)]
    assert (before, placements(rounds.mirror, job)) == ({}, {0: "a"})
    assert woken == [ROUND_KEY]
    assert rounds.mirror.namespaces == {}


# ---- taints


def tainted(*taints: str) -> Mirror:
    mirror = Mirror()
    add_node(mirror, "a")
    mirror.apply(NodeIntent(NodeId("a"), Eligibility.CORDONED, taints))
    return mirror


def test_taints_are_added_replaced_by_key_and_removed() -> None:
    mirror = tainted("dedicated=ci", "gpu")
    added = taint_node(mirror, "a", {"taint": ["dedicated=ml", "slow"]}, ADA)
    gone = taint_node(mirror, "a", {"untaint": ["dedicated"]}, ADA)
    again = taint_node(mirror, "a", {"taint": ["gpu"]}, ADA)

    assert added.puts == (NodeIntent(NodeId("a"), Eligibility.CORDONED, ("dedicated=ml", "gpu", "slow")),)
    assert gone.puts == (NodeIntent(NodeId("a"), Eligibility.CORDONED, ("gpu",)),)
    assert again.puts == NO_CHANGE.puts


def test_a_node_keeps_its_taints_when_it_is_cordoned_drained_and_opened() -> None:
    mirror = tainted("gpu")
    for eligibility in (Eligibility.DRAINING, Eligibility.OPEN, Eligibility.CORDONED):
        applied(mirror, set_node_eligibility(mirror, "a", eligibility, ADA))

        assert mirror.nodes[NodeId("a")].intent == NodeIntent(NodeId("a"), eligibility, ("gpu",))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "taint"),
        ({"taint": "gpu"}, "taint"),
        ({"taint": ["a b"]}, "taint"),
        ({"taint": ["=x"]}, "taint"),
        ({"taint": ["x="]}, "taint"),
        ({"taint": ["*"]}, "taint"),
        ({"taint": [f"k{number}" for number in range(17)]}, "taint"),
        ({"untaint": ["slow"]}, "untaint"),
        ({"labels": {}}, "labels"),
    ],
)
def test_a_bad_taint_names_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejected) as refused:
        taint_node(tainted("gpu"), "a", body, ADA)

    assert refused.value.field == field


# ---- over HTTP


async def test_a_namespace_is_set_shown_listed_and_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        made = await server.call("PUT", "/v1/namespaces/team", {"quota": {"cpu": 2, "gpu": 1.5}, "weight": 3})
        await server.submit(namespace="team")
        await server.submit(namespace="other")
        listed = await server.call("GET", "/v1/namespaces")
        unknown = await server.call("GET", "/v1/namespaces/nobody")
        viewer = server.token_for(Role.VIEWER, "team")
        seen = await server.call("GET", "/v1/namespaces", Authorization=viewer)
        hidden = await server.call("GET", "/v1/namespaces/other", Authorization=viewer)
        refused = await server.call("PUT", "/v1/namespaces/team", {}, Authorization=viewer)
        deleted = await server.call("DELETE", "/v1/namespaces/team")
        again = await server.call("DELETE", "/v1/namespaces/team")

    quota = {"cpu": 2.0, "gpu": 1.5}
    fresh = {"quota": quota, "weight": 3, "defaults": {}, "bounds": {}, "held": {}, "waiting": 0}
    fresh["kept"] = {"jobs": 0, "tasks": 0, "bytes": 0}
    assert made.json == {"name": "team", **fresh}
    assert [(one["name"], one["waiting"]) for one in listed.json["namespaces"]] == [("other", 1), ("team", 1)]
    assert (unknown.status, unknown.json["quota"]) == (200, {})
    assert [one["name"] for one in seen.json["namespaces"]] == ["team"]
    assert (hidden.status, refused.status) == (404, 403)
    assert (deleted.status, again.status) == (204, 404)


async def test_usage_of_a_namespace_is_shown_with_its_quota(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        mirror = server.engine.mirror
        mirror.usage.charge(job_spec(namespace="team").queue_key.owner, (("cpu", 1500), ("gpu", 500)), 2)
        shown = await server.call("GET", "/v1/namespaces/team")

    assert shown.json["held"] == {"cpu": 3.0, "gpu": 1.0, "tasks": 2}


async def test_a_node_is_tainted_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.put("apiserver", node(1))
        await server.put("watcher", node_status(1))
        server.engine.observe(lambda mirror: mirror.connect(NodeId("n1"), Connection.UP))
        made = await server.call("PATCH", "/v1/nodes/laptop", {"taint": ["dedicated=ci"]})
        await server.call("POST", "/v1/nodes/laptop/drain")
        shown = await server.call("GET", "/v1/nodes/laptop")

    assert made.json["taints"] == ["dedicated=ci"]
    assert (shown.json["taints"], shown.json["eligibility"]) == (["dedicated=ci"], "drained")
