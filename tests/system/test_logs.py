"""Output of real tasks: within its cap, with gaps reported, and readable when its node is disconnected."""

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.machine import needs

MIB = 1 << 20
KIB = 1 << 10


def records(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    ran = cluster.rota("logs", *arguments, "-o", "jsonl")
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def counted(found: list[dict[str, Any]]) -> tuple[int, int]:
    """Bytes received, and bytes reported as missing."""
    return sum(len(record.get("text", "")) for record in found), sum(
        record.get("missing", 0) for record in found
    )


def test_the_server_shows_the_tail_of_output_on_a_lost_node(cluster: LocalCluster) -> None:
    script = "head -c 100000 /dev/zero | tr '\\0' x; echo last; echo oops >&2"
    ended = cluster.submit("sh", "-c", script)
    until(lambda: cluster.count(ended, "succeeded") == 1, "the end")
    number = int(cluster.call("GET", f"/v1/jobs/{ended}/tasks/0").body["node"].removeprefix("node-"))
    live = cluster.submit("sh", "-c", f"{script}; exec sleep 600", where=[f"number == {number}"])
    tails = cluster.directory / "server/tails"
    until(lambda: is_whole(tails / ended) and is_whole(tails / f"{live}.live"), "both tails")
    cluster.kill_node(number)
    cluster.kill_server()
    cluster.start_server()
    kept = records(cluster, ended)
    of_live = records(cluster, live)

    assert counted([record for record in kept if record["stream"] == "stdout"]) == (
        16 * KIB,
        100_005 - 16 * KIB,
    )
    assert kept[-1]["text"].endswith("xlast\n") or kept[-1]["text"] == "oops\n"
    assert {"oops\n"} == {record["text"] for record in kept if record["stream"] == "stderr"}
    assert counted([record for record in of_live if record["stream"] == "stdout"]) == (
        16 * KIB,
        100_005 - 16 * KIB,
    )
    assert any(record.get("missing") == 0 for record in of_live)  # at least; the exact number is unknown


def is_whole(tail: Path) -> bool:
    """Whether the whole tail has arrived; it is sent in pieces."""
    content = tail.read_bytes() if tail.exists() else b""
    return b"last\n" in content and b"oops\n" in content


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The data directory of the only node."""
    disk = tmp_path / "node-1"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@needs("root")
def test_a_node_with_a_full_disk_reports_it_and_gets_no_tasks_meanwhile(
    tmp_path: Path, small_disk: Path
) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        flag = tmp_path / "flag"
        writer = f"cat /dev/zero; while [ ! -e {flag} ]; do sleep 0.05; done; exit 3"
        running = cluster.submit("sh", "-c", writer)
        until(lambda: cluster.node(1)["shortage"] is not None, "the shortage")
        shown = cluster.rota("node", "show", "node-1").out
        waiting = cluster.submit("true")
        why = cluster.rota("why", waiting).out
        events = cluster.rota("event", "ls").out
        flag.touch()
        until(lambda: cluster.count(running, "failed") == 1, "the end of what ran")
        still = cluster.count(waiting, "pending")
        cluster.call("DELETE", f"/v1/jobs/{running}")
        until(lambda: cluster.count(waiting, "succeeded") == 1, "the end of what waited")

        assert "accepts no new tasks: its disk is full" in shown
        assert "1 of 1 nodes takes nothing new" in why
        assert "node node-1 takes nothing new: its disk is full" in events
        assert still == 1
        assert cluster.node(1)["shortage"] is None


FOLLOWERS, STALLED = 200, 20
BYTES = 6 * MIB
# Begins when the gate is open.
STEADY = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
for _ in range(96):
    os.write(1, b"." * (64 << 10))
    time.sleep(0.02)
"""


async def test_followers_that_stop_reading_slow_down_no_task_and_no_other_follower(
    shared: LocalCluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = shared.submit("python3", "-c", STEADY, str(gate))
    followers = [await follow(shared, job, stalls=number < STALLED) for number in range(FOLLOWERS)]
    gate.touch()
    async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
        read = [tasks.create_task(count(reader)) for reader, _ in followers[STALLED:]]
    ended = shared.count(job, "succeeded")
    late = [await count(reader) for reader, _ in followers[:2]]
    for _, writer in followers:
        writer.close()

    assert [task.result() for task in read] == [BYTES] * (FOLLOWERS - STALLED)
    assert ended == 1
    assert late == [BYTES] * 2  # the other readers miss nothing


async def follow(
    cluster: LocalCluster, job: str, *, stalls: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A follower that has been answered; of one that stalls the buffers are small."""
    door = socket.socket()
    if stalls:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    host, _, port = cluster.http.partition(":")
    door.connect((host, int(port)))
    reader, writer = await asyncio.open_connection(sock=door, limit=64 * KIB)
    path = f"/v1/jobs/{job}/logs?index=0&follow=true"
    request = f"GET {path} HTTP/1.1\r\nhost: {cluster.http}\r\nauthorization: Bearer {cluster.token}\r\n\r\n"
    writer.write(request.encode())
    assert b" 200 " in await reader.readline()
    while (await reader.readline()).strip():
        pass
    return reader, writer


async def count(reader: asyncio.StreamReader) -> int:
    """The bytes of the chunks of an answer."""
    total = 0
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size)
        await reader.readline()
        total += size
    return total
