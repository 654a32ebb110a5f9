"""Watches on lists: changes are sent, over restarts and disconnects, without loss or repetition."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rota.identity.tokens import Role
from rota.model.lifecycle import AttemptState, NodeState
from rota.store.memory import MemoryStore
from tests.apiserver.builders import attempts, node, node_status, statuses
from tests.apiserver.serving import Serving, serving

EVENTS = "text/event-stream"


class WatchEvent(NamedTuple):
    kind: str
    at: str | None
    value: Any


@asynccontextmanager
async def watch(server: Serving, path: str, **headers: str) -> AsyncIterator[AsyncIterator[WatchEvent]]:
    async with server.stream(path, Accept=EVENTS, **headers) as lines:
        yield _parse_events(lines)


async def _parse_events(lines: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent]:
    at, kind = None, ""
    async for raw in lines:
        name, _, value = raw.decode().partition(": ")
        if name == "id":
            at = value
        elif name == "event":
            kind = value
        elif name == "data":
            yield WatchEvent(kind, at, json.loads(value))
            at = None


async def read_some(stream: AsyncIterator[WatchEvent], count: int) -> list[WatchEvent]:
    async with asyncio.timeout(30):
        return [await anext(stream) for _ in range(count)]


async def test_a_watch_continues_a_list_of_jobs_from_its_cursor(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.submit()
        listed = await server.call("GET", "/v1/jobs")
        await server.submit(name="second")
        await server.call("POST", "/v1/jobs/1/cancel")
        await server.call("DELETE", "/v1/jobs/1")
        async with watch(server, f"/v1/jobs?since={listed.json['seq']}") as stream:
            first, second = await read_some(stream, 2)

    assert (first.kind, first.value["name"]) == ("job", "second")
    assert (second.kind, second.value) == ("gone", {"id": "1"})


async def test_a_job_that_no_longer_fits_is_sent_as_gone(tmp_path: Path) -> None:
    path = "/v1/jobs?state=active&since=0&fields=id,state"
    async with serving(tmp_path, MemoryStore) as server, watch(server, path) as stream:
        await server.submit()
        first = (await read_some(stream, 1))[0]
        await server.call("POST", "/v1/jobs/1/cancel")
        second = (await read_some(stream, 1))[0]

    assert (first.kind, first.value) == ("job", {"id": "1", "state": "active"})
    assert (second.kind, second.value) == ("gone", {"id": "1"})


async def test_jobs_of_other_namespaces_are_not_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        mine = server.token_for(Role.SUBMITTER, "mine")
        async with watch(server, "/v1/jobs?since=0", Authorization=mine) as stream:
            await server.submit(namespace="theirs")
            await server.call("POST", "/v1/jobs/1/cancel")
            await server.call("DELETE", "/v1/jobs/1")
            await server.submit(namespace="mine")
            event = (await read_some(stream, 1))[0]

    assert event.value["namespace"] == "mine"


async def test_nodes_are_sent_when_their_state_changes(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.put("apiserver", node(1, "n1"))
        await server.put("watcher", node_status(1, NodeState.LOST))
        async with watch(server, "/v1/nodes?fields=name,eligibility,state") as stream:
            await server.call("POST", "/v1/nodes/n1/cordon")
            cordoned = (await read_some(stream, 1))[0]
            await server.call("DELETE", "/v1/nodes/n1")
            gone = (await read_some(stream, 1))[0]

    assert cordoned.value == {"name": "n1", "eligibility": "cordoned", "state": "lost"}
    assert (gone.kind, gone.value) == ("gone", {"id": "n1"})


async def test_tasks_are_sent_one_by_one_and_the_last_of_an_event_has_its_id(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.put("apiserver", node(1, "n1"))
        await server.put("watcher", node_status(1))
        await server.submit(count=3)
        await server.put("scheduler", attempts("1", 3, number=[1, 1, 1], placed_at_ms=[5, 5, 5]))
        await server.put("watcher", statuses("1", 3, number=[1, 1, 1], state=[AttemptState.RUNNING] * 3))
        async with watch(server, "/v1/jobs/1/tasks?fields=index") as stream:
            await server.call("POST", "/v1/jobs/1/kill", {"signal": "USR1", "indices": [0, 1]})
            found = await read_some(stream, 2)

    assert [event.value for event in found] == [{"index": 0}, {"index": 1}]
    assert found[0].at is None
    assert found[1].at is not None


async def test_a_watch_over_a_restart_neither_loses_nor_repeats(tmp_path: Path) -> None:
    """Each event is sent exactly once, each changed job as it is now, and no unchanged job."""
    events: list[WatchEvent] = []
    jobs: list[WatchEvent] = []
    for _ in range(3):
        last_event = {"Last_Event_ID": events[-1].at or ""} if events else {}
        last_job = {"Last_Event_ID": jobs[-1].at or ""} if jobs else {}
        async with serving(tmp_path) as server:
            number = int(await server.submit(name=f"round-{len(jobs)}"))
            async with watch(server, "/v1/events?since=0&kind=job.submitted", **last_event) as stream:
                events += await read_some(stream, 1)
            async with watch(server, "/v1/jobs?since=0", **last_job) as stream:
                jobs += await read_some(stream, 1)
            await server.submit(name=f"unread-{number}")
            async with watch(
                server, "/v1/events?kind=job.submitted", Last_Event_ID=events[-1].at or ""
            ) as stream:
                events += await read_some(stream, 1)
            async with watch(server, "/v1/jobs", Last_Event_ID=jobs[-1].at or "") as stream:
                jobs += await read_some(stream, 1)

    assert [event.value["job"] for event in events] == ["1", "2", "3", "4", "5", "6"]
    assert [event.value["id"] for event in jobs] == ["1", "2", "3", "4", "5", "6"]


async def test_events_are_filtered_by_kind_or_group(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.put("apiserver", node(1, "n1"))
        await server.put("watcher", node_status(1))
        await server.submit()
        await server.call("POST", "/v1/nodes/n1/cordon")
        jobs = await server.call("GET", "/v1/events?kind=job&fields=kind")
        both = await server.call("GET", "/v1/events?kind=node,job.submitted")

    assert {event["kind"] for event in jobs.json["events"]} == {"job.submitted", "job.active"}
    assert {event["kind"] for event in both.json["events"]} == {"job.submitted", "node.changed"}
    assert all(set(event) == {"kind"} for event in jobs.json["events"])
