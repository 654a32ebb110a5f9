"""Metrics: correct, in the text format of Prometheus, and with a bounded number of series."""

import asyncio
import re
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rota.apiserver.metrics import ClusterTotals
from rota.apiserver.routes import server as routes_server
from rota.engine.state.entries import JobEntry
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
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


async def test_gauges_are_totals_of_the_cluster(tmp_path: Path) -> None:
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


async def test_events_and_requests_are_counted(tmp_path: Path) -> None:
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


async def test_the_number_of_series_does_not_grow_with_jobs_nodes_and_namespaces(tmp_path: Path) -> None:
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


async def test_other_requests_are_served_between_the_batches_of_a_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterations = 0
    batches: list[int] = []
    add = ClusterTotals.add

    async def count_iterations() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    def record(totals: ClusterTotals, entries: Iterable[JobEntry]) -> None:
        batches.append(iterations)
        add(totals, entries)

    monkeypatch.setattr(routes_server, "JOBS_AT_ONCE", 1)
    monkeypatch.setattr(ClusterTotals, "add", record)
    async with serving(tmp_path, MemoryStore) as server, asyncio.TaskGroup() as tasks:
        for _ in range(3):
            await server.submit()
        counting = tasks.create_task(count_iterations())
        await scraped(server)
        counting.cancel()

    assert len(batches) == len(set(batches)) == 3


async def test_metrics_need_access_to_all_namespaces(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        viewer = await server.call("GET", "/metrics", Authorization=server.token_for(Role.VIEWER, "*"))
        narrow = await server.call("GET", "/metrics", Authorization=server.token_for(Role.ADMIN, "ci"))
        unauthenticated = await server.call("GET", "/metrics", Authorization="")

    assert (viewer.status, narrow.status, unauthenticated.status) == (200, 403, 401)


@needs("prometheus")
async def test_promtool_finds_no_error(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        text = (await server.call("GET", "/metrics")).body
    command = ["promtool", "check", "metrics"]
    checked = await asyncio.to_thread(partial(subprocess.run, command, input=text, capture_output=True))

    assert checked.returncode == 0
    assert not checked.stderr
