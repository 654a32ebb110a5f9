"""Odd jobs and unreadable records: the server survives, reports them, and all other jobs continue."""

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.store import codec
from rota.store.sqlite import SqliteStore
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.testing.records import job
from rota.testing.store_contract import batch, commit
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system

LINKS = 1_101  # each end of a job wakes the same two keys again, which was bounded by 1,000
GPU = {"ROTA_RESOURCES": "gpu=2"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", nodes=1, settings=GPU) as running:
        yield running


def state(cluster: LocalCluster, name: str) -> str:
    return str(cluster.call("GET", f"/v1/jobs/{name}").body["state"])


def runs_a_job(cluster: LocalCluster) -> bool:
    """Whether a new job gets through from its submit to its end."""
    return cluster.rota("run", "--", "echo", "hello").out == "hello\n"


def is_as_it_was(cluster: LocalCluster, pid: int) -> bool:
    return cluster.server_pid == pid and cluster.call("GET", "/v1/server").body["parked_count"] == 0


def test_a_chain_of_jobs_is_canceled_when_its_first_fails(node: LocalCluster, gate: Gate) -> None:
    first = last = node.submit("sh", "-c", f"{gate.wait}; exit 1")
    for _ in range(LINKS - 1):
        last = node.submit("true", after=[last])
    pid = node.server_pid
    gate.open()
    until(lambda: state(node, last) == "canceled", "the last of the chain is canceled")

    assert state(node, first) == "failed"
    assert is_as_it_was(node, pid)
    node.kill_server()
    node.start_server()
    node.wait_for_nodes()
    assert runs_a_job(node)


def test_canceling_the_first_of_a_long_chain_cancels_all(node: LocalCluster) -> None:
    first = last = node.submit("sleep", "600")
    for _ in range(LINKS - 1):
        last = node.submit("true", after=[last])
    pid = node.server_pid
    node.rota("cancel", first)
    until(lambda: state(node, last) == "canceled", "the last of the chain is canceled")

    assert is_as_it_was(node, pid)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_retry_after_an_update_that_removes_the_gpu(
    node: LocalCluster, witness: Witness, *, is_restarted: bool
) -> None:
    retry = {"attempts": 20, "delay": "2s"}
    odd = node.submit(*witness.script("exit 1"), gpu=1, retry=retry)
    witness.wait_for(1)
    until(lambda: node.call("PATCH", f"/v1/jobs/{odd}", {"gpu": None}).status == 200, "its pause has begun")
    if is_restarted:
        node.kill_server()
        node.start_server()
    pid = node.server_pid
    before = len(witness.seen())
    witness.wait_for(before + 2)

    assert is_as_it_was(node, pid)
    assert runs_a_job(node)


def test_an_unreadable_job_is_shown_and_the_server_starts_without_it(node: LocalCluster) -> None:
    before = node.submit("true")
    node.kill_server()
    bad = {"job/77/spec": b"\xc1", "job/78/spec": codec.encode(job(79))}
    asyncio.run(write(node, bad))
    node.start_server()
    node.wait_for_nodes()

    status = node.rota("server", "status").out
    assert "parked    job/77: load failed with DecodeError" in status
    assert "parked    job/78: load failed with ValueError: it holds the record job/79/spec" in status
    assert "faults    2 in load; the server's log has each\n" in status
    assert "\nrota_parked 2.0\n" in metrics(node)
    assert 'rota_faults_total{stage="load"} 2.0\n' in metrics(node)
    assert "engine.parked" in node.rota("event", "ls", "--job", "77").out
    assert node.rota("wait", before).code == 0
    assert runs_a_job(node)
    node.kill_server()
    assert asyncio.run(read(node, *bad)) == bad, "its bytes are untouched"


async def write(cluster: LocalCluster, records: dict[str, bytes]) -> None:
    """Write a record into the store of a stopped server."""
    store = SqliteStore(cluster.directory / "server")
    await commit(store, batch(await store.acquire_epoch(), puts=records))
    await store.close()


async def read(cluster: LocalCluster, *keys: str) -> dict[str, bytes]:
    store = SqliteStore(cluster.directory / "server")
    records = (await store.read()).records
    await store.close()
    return {key: records[key] for key in keys}


def metrics(cluster: LocalCluster) -> str:
    request = urllib.request.Request(
        f"http://{cluster.http}/metrics", headers={"authorization": f"Bearer {cluster.token}"}
    )
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())
