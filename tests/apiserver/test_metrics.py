"""Figures for Prometheus: right, in its own form, and no more series than the code has words for."""

import asyncio
import re
import subprocess
from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rota.identity.tokens import Role
from rota.model.lifecycle import NodeState
from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import Serving, serving
from tests.machine import needs


async def scraped(server: Serving) -> dict[str, float]:
    """Each series by its name and labels."""
    reply = await server.call("GET", "/metrics")
    assert reply.status == 200, reply
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(reply.body.decode())
    return {
        " ".join((one.name, *one.labels.values())): one.value for family in families for one in family.samples
    }


async def test_the_cluster_is_added_up(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        for number, state in ((1, NodeState.READY), (2, NodeState.READY), (3, NodeState.LOST)):
            await server.put("apiserver", node(number, f"n{number}"))
            await server.put("watcher", node_status(number, state))
        await server.call("POST", "/v1/nodes/n2/cordon")
        await server.submit(count=300)
        await server.submit()
        await server.call("POST", "/v1/jobs/2/cancel")
        found = await scraped(server)

    assert (found["rota_nodes ready"], found["rota_nodes lost"], found["rota_nodes left"]) == (2, 1, 0)
    assert (found["rota_nodes_eligible open"], found["rota_nodes_eligible cordoned"]) == (2, 1)
    assert (found["rota_jobs active"], found["rota_jobs canceled"]) == (1, 1)
    assert (found["rota_tasks pending"], found["rota_tasks lost"]) == (300, 0)
    assert (found["rota_capacity_cpu_cores"], found["rota_reserved_cpu_cores"]) == (16, 0)
    assert found["rota_capacity_memory_bytes"] == 2 * 2**33
    assert (found["rota_leads"], found["rota_epoch"], found["rota_brake_level"]) == (1, 1, 0)
    assert found["rota_info memory 0.1.0"] == 1


async def test_what_happens_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        before = await scraped(server)
        await server.submit()
        await server.call("POST", "/v1/jobs/1/cancel")
        await server.call("GET", "/v1/jobs/nobody")
        await server.call("GET", "/v1/nothing")
        after = await scraped(server)

    assert after["rota_events_total job.submitted"] == 1
    assert after["rota_jobs_ended_total canceled"] == 1
    assert after["rota_http_requests_total submit_job 201"] == 1
    assert after["rota_http_requests_total show_job 404"] == 1
    assert after["rota_http_requests_total  404"] == 1
    assert after["rota_http_request_seconds_count"] == before["rota_http_request_seconds_count"] + 5
    assert after["rota_commits_total"] > before["rota_commits_total"]
    assert after["rota_revision"] > before["rota_revision"]


async def test_more_jobs_nodes_users_and_namespaces_make_no_more_series(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        for number in range(1, 4):
            await server.put("apiserver", node(number, f"node-{number}"))
            await server.put("watcher", node_status(number))
            await server.submit(name=f"job-{number}", namespace=f"team-{number}", resources={f"r{number}": 1})
            await server.call("GET", f"/v1/jobs/{number}")
            await server.call("GET", f"/v1/jobs/nobody-{number}")
        await scraped(server)
        before = await scraped(server)
        for number in range(4, 40):
            await server.put("apiserver", node(number, f"node-{number}"))
            await server.put("watcher", node_status(number))
            await server.submit(name=f"job-{number}", namespace=f"team-{number}", resources={f"r{number}": 1})
            await server.call("GET", f"/v1/jobs/{number}")
            await server.call("GET", f"/v1/jobs/nobody-{number}")
        after = await scraped(server)

    assert set(after) == set(before)
    assert not any(re.search(r"team-|job-|node-|r4", name) for name in after)


async def test_figures_of_all_are_for_those_who_see_all(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        viewer = await server.call("GET", "/metrics", Authorization=server.token_for(Role.VIEWER, "*"))
        narrow = await server.call("GET", "/metrics", Authorization=server.token_for(Role.ADMIN, "ci"))
        nobody = await server.call("GET", "/metrics", Authorization="")

    assert (viewer.status, narrow.status, nobody.status) == (200, 403, 401)


@needs("prometheus")
async def test_prometheus_own_tool_finds_nothing_wrong(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        text = (await server.call("GET", "/metrics")).body
    command = ["promtool", "check", "metrics"]
    checked = await asyncio.to_thread(partial(subprocess.run, command, input=text, capture_output=True))

    assert checked.returncode == 0
    assert not checked.stderr
