"""POST /v1/plan: what a submit or a drain would do; nothing is stored."""

from pathlib import Path
from typing import Any

import pytest

from rota.identity.tokens import Role
from rota.model.ids import NodeId
from rota.model.node import Connection
from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import Serving, serving

JOB: dict[str, Any] = {"command": ["true"]}


async def add_node(server: Serving) -> None:
    """Add a connected node with eight cores."""
    await server.put("apiserver", node(1))
    await server.put("watcher", node_status(1))
    server.engine.observe(lambda mirror: mirror.connect(NodeId("n1"), Connection.UP))


async def test_a_plan_shows_what_would_happen_and_writes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await add_node(server)
        revision = server.engine.revision
        now = await server.call("POST", "/v1/plan", {**JOB, "count": 3})
        never = await server.call("POST", "/v1/plan", {**JOB, "cpu": 99})
        jobs = await server.call("GET", "/v1/jobs")

        assert server.engine.revision == revision
    assert (now.json["outcome"], now.json["starts"], now.json["count"]) == ("now", 3, 3)
    assert now.json["places"] == [{"node": "laptop", "tasks": 3, "new": False}]
    assert never.json["outcome"] == "never"
    assert never.json["reasons"][0]["kind"] == "cpu"
    assert jobs.json["jobs"] == []


async def test_a_plan_may_add_and_leave_out_nodes(tmp_path: Path) -> None:
    more = {"count": 2, "capacity": {"cpu": 64, "licence": 1}, "labels": {"region": "eu"}}
    async with serving(tmp_path, MemoryStore) as server:
        await add_node(server)
        added = await server.call(
            "POST", "/v1/plan", {**JOB, "cpu": 32, "where": ["region == eu"], "add_nodes": [more]}
        )
        away = await server.call("POST", "/v1/plan", {**JOB, "without": ["laptop"]})

    assert added.json["places"] == [{"node": "new-1", "tasks": 1, "new": True}]
    assert away.json["outcome"] == "never"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "command"),
        ({**JOB, "memory": "lots"}, "memory"),
        ({**JOB, "add_nodes": {}}, "add_nodes"),
        ({**JOB, "add_nodes": [{}]}, "add_nodes.0"),
        ({**JOB, "add_nodes": [{"capacity": {"cpu": "x"}}]}, "add_nodes.0.capacity.cpu"),
        ({**JOB, "add_nodes": [{"capacity": {"gpu": 0.5}}]}, "add_nodes.0.capacity.gpu"),
        ({**JOB, "add_nodes": [{"capacity": {"cpu": 1}, "count": 0}]}, "add_nodes.0.count"),
        ({**JOB, "add_nodes": [{"capacity": {"cpu": 1}, "count": 1000}] * 2}, "add_nodes"),
        ({**JOB, "add_nodes": [{"capacity": {"cpu": 1}, "labels": 1}]}, "add_nodes.0.labels"),
        ({**JOB, "without": "laptop"}, "without"),
    ],
)
async def test_bad_input_names_the_field(tmp_path: Path, body: dict[str, Any], field: str) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        refused = await server.call("POST", "/v1/plan", body)

    assert (refused.status, refused.json["field"]) == (400, field)


async def test_planning_in_a_namespace_needs_the_right_to_submit_there(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        submitter = server.token_for(Role.SUBMITTER, "team")
        refused = await server.call("POST", "/v1/plan", JOB, Authorization=submitter)
        unknown = await server.call("POST", "/v1/plan", {**JOB, "without": ["nobody"]})

    assert (refused.status, unknown.status) == (403, 404)


async def test_a_drain_preview_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await add_node(server)
        await server.call("POST", "/v1/jobs", {**JOB, "count": 2})
        plan = await server.call("POST", "/v1/plan/drain", {"nodes": ["laptop"]})
        shown = await server.call("GET", "/v1/nodes/laptop")
        missing = await server.call("POST", "/v1/plan/drain", {"nodes": ["desktop"]})
        nothing = await server.call("POST", "/v1/plan/drain", {})

    (job,) = plan.json["jobs"]
    assert (plan.json["nodes"], job["fate"], job["tasks"], job["waits"]) == (["laptop"], "moves", 2, 2)
    assert shown.json["eligibility"] == "open"
    assert (missing.status, nothing.json["field"]) == (404, "nodes")
