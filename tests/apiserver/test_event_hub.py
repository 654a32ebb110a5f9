"""Events by sequence number without loss or repeat, and jobs as they change."""

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


async def happen(engine: Engine, *whys: str) -> None:
    """One commit with these events."""
    await engine.ask(
        "apiserver", lambda _view, _now: Plan(events=tuple(EventRecord("test", why) for why in whys))
    )


async def put(engine: Engine, status: JobStatus) -> None:
    await engine.ask("controllers", lambda _view, _now: Plan((status,)))


async def take(changes: EventHub, position: EventCursor, count: int) -> list[SequencedEvent]:
    found: list[SequencedEvent] = []
    async with asyncio.timeout(5), aclosing(changes.events_after(position)) as pages:
        async for page in pages:
            found += page
            if len(found) >= count:
                return found
    return found


async def test_every_place_to_resume_from_gives_the_rest_exactly_once(tmp_path: Path) -> None:
    async with running(SqliteStore(tmp_path), []) as engine:
        await happen(engine, "before the hub")
        changes = EventHub(engine)
        for number in range(5):
            await happen(engine, f"{number}a", f"{number}b")
        everything = await take(changes, BEGINNING, 11)

        assert [one.event.why for one in everything] == [
            "before the hub",
            *(f"{number}{letter}" for number in range(5) for letter in "ab"),
        ]
        for place, one in enumerate(everything[:-1], start=1):
            assert await take(changes, one.at, 11 - place) == everything[place:]
        assert await changes.page_after(everything[-1].at) == []


async def test_after_a_restart_events_go_on_from_the_store(tmp_path: Path) -> None:
    async with running(SqliteStore(tmp_path), []) as engine:
        changes = EventHub(engine)
        await happen(engine, "one", "two")
        seen = await take(changes, BEGINNING, 2)
    async with running(SqliteStore(tmp_path), []) as engine:
        changes = EventHub(engine)
        later = await take(changes, seen[0].at, 1)
        await happen(engine, "three")
        last = await take(changes, later[-1].at, 1)

    assert [one.event.why for one in (*later, *last)] == ["two", "three"]


async def test_a_reader_waits_for_what_is_to_come(tmp_path: Path) -> None:
    async with running(MemoryStore(tmp_path), []) as engine:
        changes = EventHub(engine)
        await happen(engine, "past")
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(take(changes, changes.latest_cursor(), 50)) for _ in range(3)]
            await asyncio.sleep(0)
            for number in range(50):
                await happen(engine, str(number))

    for reader in readers:
        assert [one.event.why for one in reader.result()] == [str(number) for number in range(50)]


async def test_memory_is_bounded_and_older_events_come_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "RecentEvents", lambda: RecentEvents(4))
    monkeypatch.setattr(event_cursor, "ROWS_AT_ONCE", 3)
    async with running(MemoryStore(tmp_path), []) as engine:
        changes = EventHub(engine)
        for number in range(30):
            await happen(engine, str(number))
        everything = await take(changes, BEGINNING, 30)

        assert len(changes._recent.rows) <= 8
    assert [one.event.why for one in everything] == [str(number) for number in range(30)]


async def test_who_is_too_far_behind_is_told_so(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    async with running(store, []) as engine:
        await happen(engine, "old")
        await happen(engine, "older than the hub, still kept")
        changes = EventHub(engine)
        first = (await changes.page_after(BEGINNING))[0].at
        await store.forget_events(2**62)

        with pytest.raises(CursorExpired):
            await changes.page_after(first)
        with pytest.raises(CursorExpired):
            changes.check_cursor(EventCursor(10**6, 0))
        assert await changes.page_after(BEGINNING) == []


async def test_a_sequence_number_reads_as_it_was_written() -> None:
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


async def test_pages_of_events_lead_on_and_can_be_filtered(tmp_path: Path) -> None:
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


async def test_a_follower_hears_every_state_of_a_short_job_and_then_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit()
        heard = []
        async with asyncio.timeout(5), server.stream(f"/v1/jobs/{job}/follow") as lines:
            async for status in data_of(lines):
                heard.append(status["state"])
                if status["state"] == "active":
                    await server.put("controllers", JobStatus(JobId(job), JobState.SUCCEEDED, exit_code=0))

    assert heard == ["active", "succeeded"]


async def test_a_follower_of_an_ended_job_hears_it_once(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit()
        await server.call("POST", f"/v1/jobs/{job}/cancel")
        reply = await server.call("GET", f"/v1/jobs/{job}/follow")

    assert reply.body.count(b"event: status") == 1


async def test_many_changes_are_told_at_a_bounded_rate_and_the_end_at_once(tmp_path: Path) -> None:
    async with running(MemoryStore(tmp_path), []) as engine:
        changes = EventHub(engine)
        await engine.ask("apiserver", lambda _view, _now: Plan((spec(1),)))
        clock = asyncio.get_running_loop()
        told = 0
        with changes.follow_job(JobId("1")) as news:
            began = clock.time()
            while clock.time() - began < 0.5:
                await put(engine, JobStatus(JobId("1"), JobState.ACTIVE, str(told)))
                await news.wait()
                told += 1
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(news.wait())
                await put(engine, JobStatus(JobId("1"), JobState.FAILED))
                since = clock.time()
                await waiting
                lag = clock.time() - since

    assert told <= event_hub.UPDATES_AT_ONCE + 0.6 * event_hub.UPDATES_PER_SECOND + 2
    assert lag < 1 / event_hub.UPDATES_PER_SECOND


async def test_a_reader_that_stalls_delays_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        async with server.connected("GET", "/v1/events?since=0", b"", {"Accept": "text/event-stream"}):
            for _ in range(20):  # nobody reads what the first one is sent
                await happen(server.engine, "x" * 100_000)
            job = await server.submit()

        assert job == "1"


async def test_followers_are_forgotten_when_they_go(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit()
        async with server.stream(f"/v1/jobs/{job}/follow") as lines:
            await anext(data_of(lines))
            assert server.api.event_hub._followers
        async with asyncio.timeout(5):
            while server.api.event_hub._followers:  # noqa: ASYNC110  # nothing tells when a socket was noticed
                await asyncio.sleep(0.01)
