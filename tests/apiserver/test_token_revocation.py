"""A stream ends when its token is revoked or expires; nothing is submitted on it afterwards."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from rota.apiserver.api import wall_ms
from rota.identity.tokens import Role
from rota.store.memory import MemoryStore
from rota.wire.generated import controller_pb2 as pb
from tests.apiserver.builders import RUNNING, attempts, node, node_status, statuses
from tests.apiserver.outside_controller import Controller, controller
from tests.apiserver.serving import Serving, serving

EVENTS = "text/event-stream"
STREAMS = [
    ("/v1/events", EVENTS),
    ("/v1/jobs", EVENTS),
    ("/v1/nodes", EVENTS),
    ("/v1/jobs/1/follow", ""),
    ("/v1/jobs/1/logs?follow=true", ""),
]
T = TypeVar("T")
LIFE_MS = 1_500  # long enough to open every stream


async def start_task(server: Serving) -> None:
    await server.submit()
    await server.put("apiserver", node(1))
    await server.put("watcher", node_status(1))
    await server.put("scheduler", attempts("1", 1, number=[1]))
    await server.put("watcher", statuses("1", 1, number=[1], state=[RUNNING]))
    server.source.write("1.0.1.stdout", b"hello\n")


async def read_until_cut(reader: asyncio.StreamReader) -> None:
    """Return when the server has closed the connection before the end of the response."""
    with contextlib.suppress(ConnectionError):
        data = await reader.read()
        while data:
            assert not data.endswith(b"0\r\n\r\n")
            data = await reader.read()


async def all_of(running: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(coroutine) for coroutine in running]
    return [task.result() for task in started]


async def open_all(server: Serving, token: str, opened: contextlib.AsyncExitStack) -> list[Any]:
    readers = []
    for path, accept in STREAMS:
        headers = {"Authorization": token, "Accept": accept}
        reply, reader = await opened.enter_async_context(server.connected("GET", path, b"", headers))
        assert reply.status == 200, (path, reply)
        readers.append(reader)
    return readers


def revoke_named(server: Serving, name: str) -> None:
    (found,) = [token for token in server.api.vault.list_api_tokens() if token.name == name]
    server.api.vault.revoke_api_token(found.id)


async def test_every_http_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server, asyncio.timeout(30):
        await start_task(server)
        token = server.token_for(Role.VIEWER, "*")
        async with contextlib.AsyncExitStack() as opened:
            readers = await open_all(server, token, opened)
            revoke_named(server, "viewer-token")

            await all_of(read_until_cut(reader) for reader in readers)


async def test_every_http_stream_ends_when_its_token_expires(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server, asyncio.timeout(30):
        await start_task(server)
        now_ms = wall_ms()
        secret = server.api.vault.make_api_token("short", Role.VIEWER, ("*",), now_ms, now_ms + LIFE_MS)
        async with contextlib.AsyncExitStack() as opened:
            readers = await open_all(server, f"Bearer {secret}", opened)

            await all_of(read_until_cut(reader) for reader in readers)


async def test_a_stream_of_another_token_continues(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server, asyncio.timeout(30):
        await start_task(server)
        revoked, other = server.token_for(Role.VIEWER, "*"), f"Bearer {server.token}"
        async with contextlib.AsyncExitStack() as opened:
            ending = await open_all(server, revoked, opened)
            continuing = await open_all(server, other, opened)
            revoke_named(server, "viewer-token")
            await all_of(read_until_cut(reader) for reader in ending)
            await server.submit(name="later")

            while b"later" not in await continuing[1].readline():
                pass


def revoke(outside: Controller) -> None:
    vault = outside.server.api.vault
    for token in vault.list_api_tokens():
        vault.revoke_api_token(token.id)


async def calls_of(outside: Controller) -> AsyncIterator[Any]:
    """A started call of every method that answers with a stream and does not end by itself."""
    for method in pb.DESCRIPTOR.services_by_name["Controller"].methods:
        if not method.server_streaming or method.name == "State":
            continue
        request: Any = {
            "Schedule": pb.ScheduleRequest(spec_json=json.dumps({"command": ["true"]}), logs=True),
            "Follow": pb.FollowRequest(job="1", logs=True),
            "Watch": pb.WatchRequest(after="0.0", subscriber="a", statistics_interval_ms=1000),
            "ScheduleMany": None,
        }[method.name]
        call = getattr(outside.stub, method.name)(request, metadata=outside.metadata)
        if method.client_streaming:
            await call.write(bulk("first"))
        await call.read()
        yield call


def bulk(name: str) -> pb.BulkRequest:
    spec = json.dumps({"command": ["true"], "name": name})
    return pb.BulkRequest(id=name, schedule=pb.BulkJob(spec_json=spec, follow=True))


async def test_every_grpc_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(30):
        calls = [call async for call in calls_of(outside)]
        revoke(outside)
        codes = await all_of(_ended(call) for call in calls)

    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * len(calls)


async def _ended(call: Any) -> Any:
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code()


async def test_a_bulk_stream_submits_nothing_after_its_token_was_revoked(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(30):
        call = outside.stub.ScheduleMany(metadata=outside.metadata)
        await call.write(bulk("before"))
        await call.read()
        revoke(outside)
        await call.write(bulk("after"))
        code = await _ended(call)
        names = [job.spec.name for job in outside.server.engine.mirror.jobs.values()]
        audited = [(line["action"], line["outcome"]) for line in outside.server.audited()]

    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert names == ["before"]
    assert audited[-1] == ("schedule", "unauthenticated")


async def test_a_bulk_stream_stops_nothing_after_its_token_was_revoked(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(30):
        call = outside.stub.ScheduleMany(metadata=outside.metadata)
        await call.write(bulk("before"))
        await call.read()
        revoke(outside)
        await call.write(pb.BulkRequest(id="stop", stop=pb.StopRequest(job="1")))
        await _ended(call)

    assert outside.server.engine.mirror.jobs["1"].intent is None  # type: ignore[index]


@pytest.mark.parametrize("state", ["revoked", "expired"])
async def test_an_ended_stream_is_audited(tmp_path: Path, state: str) -> None:
    async with serving(tmp_path, MemoryStore) as server, asyncio.timeout(30):
        now_ms = wall_ms()
        ends_at_ms = now_ms + LIFE_MS if state == "expired" else None
        secret = server.api.vault.make_api_token("short", Role.VIEWER, ("*",), now_ms, ends_at_ms)
        headers = {"Authorization": f"Bearer {secret}", "Accept": EVENTS}
        async with server.connected("GET", "/v1/events", b"", headers) as (_, reader):
            if state == "revoked":
                revoke_named(server, "short")
            await read_until_cut(reader)

        (line,) = server.audited()
    assert (line["who"], line["action"], line["outcome"]) == ("short", "list_events", "401 unauthenticated")
