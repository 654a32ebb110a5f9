"""EventHub: events by cursor without loss or repetition, and changes of followed jobs."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from rota.apiserver.streams import event_cursor, event_hub
from rota.apiserver.streams.event_cursor import (
    BEGINNING,
    CursorExpired,
    EventCursor,
    RecentEvents,
    SequencedEvent,
)
from rota.apiserver.streams.event_hub import EventHub
from rota.engine.run import Engine
from rota.model.errors import BadField
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.plan import EventRecord, Plan
from rota.store.memory import MemoryStore
from rota.store.sqlite import SqliteStore
from tests.apiserver.builders import spec
from tests.apiserver.serving import data_of, running, serving


async def commit_events(engine: Engine, *whys: str) -> None:
    """One commit with these events."""
    await engine.ask(
        "apiserver", lambda _view, _now: Plan(events=tuple(EventRecord("test", why) for why in whys))
    )


async def put(engine: Engine, status: JobStatus) -> None:
    await engine.ask("controllers", lambda _view, _now: Plan((status,)))


async def read_events(hub: EventHub, position: EventCursor, count: int) -> list[SequencedEvent]:
    found: list[SequencedEvent] = []
    async with asyncio.timeout(5), aclosing(hub.events_after(position)) as pages:
        async for page in pages:
            found += page
            if len(found) >= count:
                return found
    return found


async def test_every_cursor_resumes_with_the_remaining_events_exactly_once(tmp_path: Path) -> None:
    async with running(SqliteStore(tmp_path), []) as engine:
        await commit_events(engine, "before the hub")
        hub = EventHub(engine)
        for number in range(5):
            await commit_events(engine, f"{number}a", f"{number}b")
        everything = await read_events(hub, BEGINNING, 11)

        assert [happened.event.why for happened in everything] == [
            "before the hub",
            *(f"{number}{letter}" for number in range(5) for letter in "ab"),
        ]
        for place, happened in enumerate(everything[:-1], start=1):
            assert await read_events(hub, happened.at, 11 - place) == everything[place:]
        assert await hub.page_after(everything[-1].at) == []


async def test_after_a_restart_events_continue_from_the_store(tmp_path: Path) -> None:
    async with running(SqliteStore(tmp_path), []) as engine:
        hub = EventHub(engine)
        await commit_events(engine, "one", "two")
        seen = await read_events(hub, BEGINNING, 2)
    async with running(SqliteStore(tmp_path), []) as engine:
        hub = EventHub(engine)
        later = await read_events(hub, seen[0].at, 1)
        await commit_events(engine, "three")
        last = await read_events(hub, later[-1].at, 1)

    assert [happened.event.why for happened in (*later, *last)] == ["two", "three"]


async def test_a_reader_waits_for_new_events(tmp_path: Path) -> None:
    async with running(MemoryStore(tmp_path), []) as engine:
        hub = EventHub(engine)
        await commit_events(engine, "past")
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(read_events(hub, hub.latest_cursor(), 50)) for _ in range(3)]
            await asyncio.sleep(0)
            for number in range(50):
                await commit_events(engine, str(number))

    for reader in readers:
        assert [happened.event.why for happened in reader.result()] == [str(number) for number in range(50)]


async def test_memory_is_bounded_and_older_events_come_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "RecentEvents", lambda: RecentEvents(4))
    monkeypatch.setattr(event_cursor, "ROWS_AT_ONCE", 3)
    async with running(MemoryStore(tmp_path), []) as engine:
        hub = EventHub(engine)
        for number in range(30):
            await commit_events(engine, str(number))
        everything = await read_events(hub, BEGINNING, 30)

        assert len(hub._recent.rows) <= 8
    assert [happened.event.why for happened in everything] == [str(number) for number in range(30)]


async def test_a_cursor_that_is_no_longer_stored_has_expired(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    async with running(store, []) as engine:
        await commit_events(engine, "old")
        await commit_events(engine, "older than the hub, still kept")
        hub = EventHub(engine)
        first = (await hub.page_after(BEGINNING))[0].at
        await store.forget_events(2**62)

        with pytest.raises(CursorExpired):
            await hub.page_after(first)
        with pytest.raises(CursorExpired):
            hub.check_cursor(EventCursor(10**6, 0))
        assert await hub.page_after(BEGINNING) == []


async def test_a_cursor_parses_as_it_is_formatted() -> None:
    assert str(EventCursor.parse("since", "12.3")) == "12.3"
    assert EventCursor.parse("since", "12") == EventCursor(12, 0)
    for text in ("", "a", "-1.0", "1.2.3", "1.x", "9" * 30, "١.٢"):
        with pytest.raises(BadField):
            EventCursor.parse("since", text)


async def test_the_event_stream_resumes_by_the_last_id(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for _ in range(3):
            await server.submit()
        listed = (await server.call("GET", "/v1/events?limit=1000")).json["events"]
        seen = []
        async with server.stream("/v1/events?since=0", Accept="text/event-stream") as lines:
            async for event in data_of(lines):
                seen.append(event)
                if len(seen) == 2:
                    break
        async with server.stream(
            "/v1/events", Accept="text/event-stream", Last_Event_ID=seen[-1]["seq"]
        ) as lines:
            async for event in data_of(lines):
                seen.append(event)
                if len(seen) == len(listed):
                    break

    assert seen == listed


async def test_pages_of_events_follow_each_other_and_can_be_filtered(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        for _ in range(4):
            await server.submit()
        seen, since = [], "0"
        for _ in range(10):
            page = (await server.call("GET", f"/v1/events?since={since}&kind=job.submitted&limit=3")).json
            seen += page["events"]
            since = page["next"]
        of_one = (await server.call("GET", "/v1/events?job=2")).json["events"]
        newest = (await server.call("GET", "/v1/events?limit=1&kind=job.submitted")).json["events"]

    assert [event["job"] for event in seen] == ["1", "2", "3", "4"]
    assert {event["job"] for event in of_one} == {"2"}
    assert [event["job"] for event in newest] == ["4"]


async def test_a_follower_gets_every_state_of_a_short_job_and_then_its_end(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit()
        states = []
        async with asyncio.timeout(5), server.stream(f"/v1/jobs/{job}/follow") as lines:
            async for status in data_of(lines):
                states.append(status["state"])
                if status["state"] == "active":
                    await server.put("controllers", JobStatus(JobId(job), JobState.SUCCEEDED, exit_code=0))

    assert states == ["active", "succeeded"]


async def test_a_follower_of_an_ended_job_gets_one_event(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit()
        await server.call("POST", f"/v1/jobs/{job}/cancel")
        reply = await server.call("GET", f"/v1/jobs/{job}/follow")

    assert reply.body.count(b"event: status") == 1


async def test_changes_are_sent_at_a_bounded_rate_and_the_end_immediately(tmp_path: Path) -> None:
    async with running(MemoryStore(tmp_path), []) as engine:
        hub = EventHub(engine)
        await engine.ask("apiserver", lambda _view, _now: Plan((spec(1),)))
        clock = asyncio.get_running_loop()
        updates = 0
        with hub.follow_job(JobId("1")) as signal:
            started = clock.time()
            while clock.time() - started < 0.5:
                await put(engine, JobStatus(JobId("1"), JobState.ACTIVE, str(updates)))
                await signal.wait()
                updates += 1
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(signal.wait())
                await put(engine, JobStatus(JobId("1"), JobState.FAILED))
                since = clock.time()
                await waiting
                lag = clock.time() - since

    assert updates <= event_hub.UPDATES_AT_ONCE + 0.6 * event_hub.UPDATES_PER_SECOND + 2
    assert lag < 1 / event_hub.UPDATES_PER_SECOND


async def test_a_stalled_reader_delays_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        async with server.connected("GET", "/v1/events?since=0", b"", {"Accept": "text/event-stream"}):
            for _ in range(20):  # the client reads nothing of its response
                await commit_events(server.engine, "x" * 100_000)
            job = await server.submit()

        assert job == "1"


async def test_followers_are_removed_when_they_disconnect(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit()
        async with server.stream(f"/v1/jobs/{job}/follow") as lines:
            await anext(data_of(lines))
            assert server.api.event_hub._followers
        async with asyncio.timeout(5):
            while server.api.event_hub._followers:  # noqa: ASYNC110  # nothing tells when a socket was noticed
                await asyncio.sleep(0.01)
