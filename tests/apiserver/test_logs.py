"""Output of one task and of whole arrays, over retries, read from real files."""

import asyncio
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.streams import logs
from rota.apiserver.streams.log_selection import STREAMS
from rota.model.attempt import OldAttempt, OldStatus
from rota.model.ids import JobId, NodeId
from rota.model.job import JobStatus
from rota.model.lifecycle import AttemptState, JobState, NodeState, TaskState
from rota.store.memory import MemoryStore
from tests.apiserver.builders import FAILED, RUNNING, SUCCEEDED, attempts, node, node_status, statuses, tasks
from tests.apiserver.serving import Serving, serving


async def job_with(server: Serving, count: int, **cells: Any) -> str:
    """A job whose tasks are placed on a node, with these attempts."""
    job = await server.submit(count=count)
    if not server.engine.mirror.nodes:
        await server.put("apiserver", node(1))
        await server.put("watcher", node_status(1))
    await server.put("scheduler", attempts(job, count, number=cells["number"]))
    await server.put("watcher", statuses(job, count, number=cells["number"], state=cells["state"]))
    return job


def texts(body: bytes) -> dict[tuple[int, int, str], bytes]:
    """The output of each stream of each attempt, joined by offset."""
    found: dict[tuple[int, int, str], bytes] = {}
    for line in body.splitlines():
        chunk = json.loads(line)
        key = (chunk["index"], chunk["attempt"], chunk["stream"])
        if "data" in chunk:
            assert chunk["offset"] == len(found.get(key, b""))
            found[key] = found.get(key, b"") + b64decode(chunk["data"])
    return found


async def test_the_text_of_one_stream_is_sent_as_it_was_written(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 100
    async with serving(tmp_path, MemoryStore) as server:
        job = await job_with(server, 2, number=[1, 1], state=[RUNNING, RUNNING])
        server.source.write(f"{job}.1.1.stdout", raw)
        server.source.write(f"{job}.1.1.stderr", b"oops")
        out = await server.call("GET", f"/v1/jobs/{job}/logs?index=1")
        error = await server.call("GET", f"/v1/jobs/{job}/logs?index=1&stream=stderr&attempt=1&offset=2")
        silent = await server.call("GET", f"/v1/jobs/{job}/logs")

    assert out.body == raw
    assert out.headers["content-type"] == "text/plain; charset=utf-8"
    assert out.headers["x-content-type-options"] == "nosniff"
    assert error.body == b"ps"
    assert (silent.status, silent.body) == (200, b"")


async def test_all_streams_of_an_array_are_sent_as_chunks(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await job_with(server, 200, number=[1] * 200, state=[RUNNING] * 200)
        for index in range(200):
            server.source.write(f"{job}.{index}.1.stdout", b"%d" % index)
        reply = await server.call("GET", f"/v1/jobs/{job}/logs?format=chunks")
        single = await server.call("GET", f"/v1/jobs/{job}/logs?format=chunks&index=7&stream=stdout")

    assert texts(reply.body) == {(index, 1, "stdout"): b"%d" % index for index in range(200)}
    assert texts(single.body) == {(7, 1, "stdout"): b"7"}
    assert 1 < server.source.most_open <= logs.OPEN_AT_ONCE


async def test_following_continues_over_retries_until_the_task_has_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit(retries=1)
        await server.put("apiserver", node(1))
        await server.put("watcher", node_status(1))
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks_:
            path = f"/v1/jobs/{job}/logs?follow=true"
            chunks = tasks_.create_task(server.call("GET", f"{path}&format=chunks"))
            text = tasks_.create_task(server.call("GET", f"{path}&index=0"))
            await server.put("scheduler", attempts(job, 1, number=[1]))
            await server.put("watcher", statuses(job, 1, number=[1], state=[RUNNING]))
            for stream in ("stdout", "stderr"):
                server.source.write(f"{job}.0.1.{stream}", b"first ", ended=True)
            older = OldStatus(0, 1, FAILED, 1, 0, 1, 2, 0, 0, 0, None)
            await server.put(
                "scheduler", attempts(job, 1, number=[2], older=(OldAttempt(0, 1, NodeId("n1"), 1),))
            )
            await server.put("watcher", statuses(job, 1, number=[2], state=[RUNNING], older=(older,)))
            server.source.write(f"{job}.0.2.stderr", b"", ended=True)
            server.source.write(f"{job}.0.2.stdout", b"second")
            await server.put("watcher", statuses(job, 1, number=[2], state=[SUCCEEDED], older=(older,)))
            server.source.write(f"{job}.0.2.stdout", b" end", ended=True)
            await server.put("controllers", tasks(job, 1, state=[TaskState.SUCCEEDED]))

    assert texts(chunks.result().body) == {
        (0, 1, "stdout"): b"first ",
        (0, 1, "stderr"): b"first ",
        (0, 2, "stdout"): b"second end",
    }
    assert text.result().body in (b"first second end", b"second end")


async def test_following_an_array_ends_with_the_job(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await job_with(server, 2, number=[1, 0], state=[RUNNING])
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks_:
            reply = tasks_.create_task(server.call("GET", f"/v1/jobs/{job}/logs?format=chunks&follow=true"))
            for stream in STREAMS:
                server.source.write(f"{job}.0.1.{stream}", b"x", ended=True)
                server.source.write(f"{job}.1.1.{stream}", b"y", ended=True)
            await server.put("scheduler", attempts(job, 2, number=[1, 1]))
            await server.put("watcher", statuses(job, 2, number=[1, 1], state=[SUCCEEDED, SUCCEEDED]))
            await server.put("controllers", JobStatus(JobId(job), JobState.SUCCEEDED))

    assert sorted(texts(reply.result().body)) == [
        (index, 1, stream) for index in (0, 1) for stream in ("stderr", "stdout")
    ]


async def test_an_unreachable_node_is_reported_and_does_not_affect_others(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit(count=2)
        await server.put("apiserver", node(1), node(2, "desk"))
        await server.put("watcher", node_status(1), node_status(2))
        placed = attempts(job, 2, number=[1, 1], node=[0, 1], nodes=(NodeId("n1"), NodeId("n2")))
        await server.put("scheduler", placed)
        await server.put("watcher", statuses(job, 2, number=[1, 1], state=[RUNNING, RUNNING]))
        server.source.away.add(NodeId("n1"))
        server.source.write(f"{job}.1.1.stdout", b"here")
        reply = await server.call("GET", f"/v1/jobs/{job}/logs?format=chunks&stream=stdout")
        alone = await server.call("GET", f"/v1/jobs/{job}/logs?index=0")

    sent = [json.loads(line) for line in reply.body.splitlines()]
    assert {
        "index": 0,
        "attempt": 1,
        "stream": "stdout",
        "offset": 0,
        "missing": 0,
        "reason": "node n1 is not connected",
    } in sent
    assert texts(reply.body) == {(1, 1, "stdout"): b"here"}
    assert (alone.status, alone.json["code"]) == (503, "unavailable")


async def test_a_follower_waits_for_a_node_that_reconnects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "RETRY_SECONDS", 0.01)
    async with serving(tmp_path, MemoryStore) as server:
        job = await job_with(server, 1, number=[1], state=[RUNNING])
        server.source.write(f"{job}.0.1.stdout", b"before\n")
        path = f"/v1/jobs/{job}/logs?follow=true"
        async with asyncio.timeout(5), server.stream(path) as lines:
            assert await anext(lines) == b"before"
            server.source.away.add(NodeId("n1"))
            server.source.write(f"{job}.0.1.stdout", b"while away\n", ended=True)
            await server.source.missed.wait()
            server.source.away.clear()
            assert await anext(lines) == b"while away"


async def test_output_read_before_a_disconnect_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "RETRY_SECONDS", 0.0)
    async with serving(tmp_path, MemoryStore) as server:
        job = await job_with(server, 1, number=[1], state=[SUCCEEDED])
        server.source.write(f"{job}.0.1.stdout", b"whole", ended=True)
        server.source.write(f"{job}.0.1.stderr", b"", ended=True)
        await server.put("controllers", JobStatus(JobId(job), JobState.SUCCEEDED))
        server.source.cuts[f"{job}.0.1.stdout"] = 2
        async with asyncio.timeout(5):
            reply = await server.call("GET", f"/v1/jobs/{job}/logs?format=chunks&follow=true")

    assert texts(reply.body) == {(0, 1, "stdout"): b"whole"}
    assert server.source.cuts == {}


async def test_a_follower_does_not_wait_for_a_lost_node(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await job_with(server, 1, number=[1], state=[AttemptState.LOST])
        await server.put("controllers", JobStatus(JobId(job), JobState.FAILED))
        await server.put("watcher", node_status(1, NodeState.LOST))
        server.source.away.add(NodeId("n1"))
        async with asyncio.timeout(5):
            reply = await server.call("GET", f"/v1/jobs/{job}/logs?format=chunks&follow=true&stream=stdout")

    assert json.loads(reply.body)["reason"] == "node n1 is not connected"


async def test_a_refused_attempt_has_no_output_and_an_unknown_one_is_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await job_with(server, 1, number=[1], state=[AttemptState.REFUSED])
        server.source.write(f"{job}.0.1.stdout", b"never")
        replies = {
            query: await server.call("GET", f"/v1/jobs/{job}/logs?{query}")
            for query in (
                "index=0",
                "index=1",
                "attempt=2",
                "stream=x",
                "format=x",
                "follow=maybe",
                "offset=-1",
            )
        }

    assert replies["index=0"].body == b""
    assert [reply.status for reply in replies.values()] == [200, 404, 404, 400, 400, 400, 400]


async def test_a_reader_that_disconnects_closes_its_streams(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await job_with(server, 1, number=[1], state=[RUNNING])
        server.source.write(f"{job}.0.1.stdout", b"x\n")
        async with server.stream(f"/v1/jobs/{job}/logs?follow=true") as lines:
            assert await anext(lines) == b"x"
            assert server.source.open_now == 1
        async with asyncio.timeout(5):
            while server.source.open_now:  # noqa: ASYNC110  # nothing tells when a socket was noticed
                await asyncio.sleep(0.01)
