"""A submit with an event stream: the job first, then its changes; refusals are the same as without."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rota.identity.tokens import Role
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import Reply, Serving, chunks_of, data_of, lines_of, serving

EVENTS = {"Accept": "text/event-stream"}
TRUE = {"command": ["true"]}


@asynccontextmanager
async def submitting(
    server: Serving, body: Any, **headers: str
) -> AsyncIterator[tuple[Reply, AsyncIterator[Any]]]:
    """The head of the response and the values of its events."""
    sent = {**EVENTS, **headers}
    async with (
        asyncio.timeout(5),
        server.connected("POST", "/v1/jobs", json.dumps(body).encode(), sent) as (reply, reader),
    ):
        yield reply, data_of(lines_of(chunks_of(reader)))


async def end(server: Serving, job: str) -> None:
    await server.put("controllers", JobStatus(JobId(job), JobState.SUCCEEDED, exit_code=0))


async def test_the_job_is_sent_first_and_its_end_last(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server, submitting(server, TRUE) as (reply, values):
        first = await anext(values)
        await end(server, first["id"])
        later = [status async for status in values]

    assert (reply.status, reply.headers["content-type"]) == (201, "text/event-stream; charset=utf-8")
    assert (first["id"], first["spec"]["command"]) == ("1", ["true"])
    assert [status["state"] for status in later] == ["succeeded"]


async def test_each_event_has_its_kind(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        async with submitting(server, TRUE, Idempotency_Key="once") as (_, values):
            await end(server, (await anext(values))["id"])
        again = await server.call("POST", "/v1/jobs", TRUE, Idempotency_Key="once", **EVENTS)
        job = await server.submit()
        async with server.stream(f"/v1/jobs/{job}/follow") as lines:
            followed = await anext(lines)

    assert again.body.startswith(b"event: job\ndata: ")
    assert followed == b"event: status"


async def test_a_repeated_submit_with_its_key_follows_the_same_job(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with submitting(server, TRUE, Idempotency_Key="once") as (_, values):
            first = await anext(values)
        async with submitting(server, TRUE, Idempotency_Key="once") as (reply, values):
            again = await anext(values)
            await end(server, again["id"])
            later = [status["state"] async for status in values]
        ended = await server.call("POST", "/v1/jobs", TRUE, Idempotency_Key="once", **EVENTS)
        differs = await server.call("POST", "/v1/jobs", {"command": ["b"]}, Idempotency_Key="once", **EVENTS)

    assert (first["id"], again["id"], reply.status) == ("1", "1", 200)
    assert later == ["succeeded"]
    assert (ended.status, ended.body.count(b"event: ")) == (200, 1)
    assert (differs.status, differs.json["code"]) == (409, "conflict")


async def test_refusals_are_problems_as_without_events(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        viewer = server.token_for(Role.VIEWER, "*")
        bad = await server.call("POST", "/v1/jobs", {"command": []}, **EVENTS)
        stranger = await server.call("POST", "/v1/jobs", TRUE, Authorization="Bearer nonsense", **EVENTS)
        forbidden = await server.call("POST", "/v1/jobs", TRUE, Authorization=viewer, **EVENTS)

    assert [reply.status for reply in (bad, stranger, forbidden)] == [400, 401, 403]
    assert bad.headers["content-type"] == "application/problem+json"
    assert bad.json["field"] == "command"


async def test_a_submit_is_audited_when_it_is_accepted_and_not_at_its_end(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server, submitting(server, TRUE) as (_, values):
        first = await anext(values)
        audited = server.audited()
        await end(server, first["id"])
        later = [status async for status in values]
        in_the_end = server.audited()

    assert [(line["action"], line["target"], line["outcome"]) for line in audited] == [
        ("submit_job", "job 1", "201")
    ]
    assert len(later) == 1
    assert in_the_end == audited


async def test_a_client_that_disconnects_leaves_the_job_and_no_follower(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        async with submitting(server, TRUE) as (_, values):
            first = await anext(values)
        async with asyncio.timeout(5):
            while server.api.event_hub._followers:  # noqa: ASYNC110  # nothing tells when a socket was noticed
                await asyncio.sleep(0.01)
        shown = await server.call("GET", f"/v1/jobs/{first['id']}")

    assert shown.json["state"] == "active"


async def test_warnings_are_sent_with_the_job_and_not_again(tmp_path: Path) -> None:
    body = {**TRUE, "region": "moon"}
    async with serving(tmp_path, MemoryStore) as server:
        await server.put("apiserver", node(1))
        await server.put("watcher", node_status(1))
        plain = await server.call("POST", "/v1/jobs", body)
        async with submitting(server, body) as (_, values):
            first = await anext(values)
            await end(server, first["id"])
            later = [status async for status in values]
        shown = await server.call("GET", "/v1/jobs/1")

    warning = {"field": "region", "text": "no node has the label region now"}
    assert plain.json["warnings"] == first["warnings"] == [warning]
    assert all("warnings" not in status for status in (*later, shown.json))
