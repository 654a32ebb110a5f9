"""A cursor and the committed events -> each event after it once and in order, or that it has expired."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from rota.apiserver.admission.recovery import subscribe
from rota.apiserver.streams import event_cursor
from rota.apiserver.streams.event_cursor import (
    AFTER_LAST_EVENT,
    BEGINNING,
    CommitEvents,
    CursorExpired,
    EventCursor,
    RecentEvents,
)
from rota.apiserver.streams.event_hub import EventHub
from rota.engine import run
from rota.model.errors import Unavailable
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.plan import EventRecord, Plan
from rota.model.subscriber import Subscriber
from rota.store.memory import MemoryStore
from tests.apiserver.builders import spec
from tests.engine.driving import running, submit
from tests.engine.lossy_store import LossyStore

MOST = 100


def row(revision: int, events: int = 1) -> CommitEvents:
    return CommitEvents(revision, 0, [EventRecord("test", f"{revision}.{index}") for index in range(events)])


def recent_events(*rows: CommitEvents, events_max: int = MOST) -> RecentEvents:
    recent = RecentEvents(events_max)
    recent.on_reload(rows[0].revision - 1)
    for commit in rows:
        recent.on_commit(commit)
    return recent


def whys_after(recent: RecentEvents, position: EventCursor, most: int = MOST) -> list[str] | None:
    found = recent.page_after(position, most)
    return None if found is None else [happened.event.why for happened in found]


def test_a_reader_in_the_middle_of_a_commit_gets_the_rest_of_it() -> None:
    recent = recent_events(row(1, 3), row(2, 0), row(3))

    assert whys_after(recent, EventCursor(1, 0)) == ["1.1", "1.2", "3.0"]
    assert whys_after(recent, EventCursor(1, 2)) == ["3.0"]
    assert whys_after(recent, EventCursor(3, 0)) == []


def test_a_page_has_at_most_the_requested_rows_and_the_next_one_follows_it() -> None:
    recent = recent_events(*[row(revision) for revision in range(1, 6)])
    page = recent.page_after(EventCursor(1, 0), 2)

    assert page is not None
    assert [happened.event.why for happened in page] == ["2.0"]  # the first row is the reader's own
    assert whys_after(recent, page[-1].at) == ["3.0", "4.0", "5.0"]


def test_events_that_are_not_in_memory_are_left_to_the_store() -> None:
    assert whys_after(RecentEvents(), BEGINNING) is None
    assert whys_after(recent_events(row(5)), EventCursor(4, 0)) is None
    assert whys_after(recent_events(row(5)), BEGINNING) is None


def test_after_a_missed_commit_events_are_left_to_the_store() -> None:
    recent = recent_events(row(1), row(2), row(4))

    assert whys_after(recent, EventCursor(2, 0)) is None
    assert whys_after(recent, EventCursor(4, 0)) == []


def test_after_a_reload_events_are_left_to_the_store_if_commits_were_missed() -> None:
    same, more = recent_events(row(1), row(2)), recent_events(row(1), row(2))
    same.on_reload(2)
    more.on_reload(3)

    assert whys_after(same, EventCursor(1, 0)) == ["2.0"]
    assert whys_after(more, EventCursor(1, 0)) is None
    more.on_commit(row(4))
    assert whys_after(more, EventCursor(4, 0)) == []


def test_memory_holds_only_the_last_events_and_knows_their_first_revision() -> None:
    recent = recent_events(*[row(revision) for revision in range(1, 10)], events_max=4)

    assert [commit.revision for commit in recent.rows] == [6, 7, 8, 9]
    assert whys_after(recent, EventCursor(5, 0)) is None
    assert whys_after(recent, EventCursor(6, 0)) == ["7.0", "8.0", "9.0"]


def test_memory_is_bounded_in_events_however_many_a_commit_has() -> None:
    recent = recent_events(row(1), row(2, 5), row(3), row(4, 5), row(5), events_max=4)

    assert [commit.revision for commit in recent.rows] == [5]
    assert whys_after(recent, EventCursor(4, 4)) is None
    recent.on_commit(row(6, 20))
    assert recent.rows == []
    assert whys_after(recent, EventCursor(6, 19)) is None


def test_a_reader_resumes_from_the_store_while_its_own_row_is_stored() -> None:
    rows = [row(3, 2), row(5)]

    assert event_cursor.revision_before(EventCursor(3, 0)) == 2
    assert [happened.event.why for happened in event_cursor.resume_from_store(EventCursor(3, 0), rows)] == [
        "3.1",
        "5.0",
    ]
    with pytest.raises(CursorExpired):
        event_cursor.resume_from_store(EventCursor(2, 0), rows)
    with pytest.raises(CursorExpired):
        event_cursor.resume_from_store(EventCursor(2, 0), [])


def test_a_cursor_from_the_beginning_never_expires() -> None:
    rows = [row(3)]

    assert (
        len(event_cursor.resume_from_store(BEGINNING, rows))
        == len(event_cursor.resume_from_store(EventCursor(2, AFTER_LAST_EVENT), rows))
        == 1
    )


def test_a_cursor_from_the_future_is_refused() -> None:
    event_cursor.check_cursor(EventCursor(4, 7), 4)
    with pytest.raises(CursorExpired):
        event_cursor.check_cursor(EventCursor(5, 0), 4)


def test_the_latest_cursor_is_that_of_the_last_event_if_it_is_in_memory() -> None:
    assert recent_events(row(1), row(2, 3), row(3, 0)).latest_cursor(3) == EventCursor(2, 2)
    assert RecentEvents().latest_cursor(3) == EventCursor(3, AFTER_LAST_EVENT)


def test_a_subscriber_resumes_after_its_acknowledged_event_and_starts_at_the_present() -> None:
    known = {"old": Subscriber("old", 3, 1)}
    again, first = (subscribe(known, name, EventCursor(7, 2)) for name in ("old", "new"))

    assert (again.answer, again.puts, again.fenced) == (known["old"], (), True)
    assert first.puts == (first.answer,) == (Subscriber("new", 7, 2),)


async def test_readers_and_followers_see_a_commit_whose_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.0)
    store = LossyStore(MemoryStore(tmp_path))
    async with running(store) as engine:
        changes = EventHub(engine)
        await engine.ask("apiserver", lambda *_: Plan((spec(1),), events=(EventRecord("test", "first"),)))
        end = Plan((JobStatus(JobId("1"), JobState.FAILED),), events=(EventRecord("test", "second"),))
        with changes.follow_job(JobId("1")) as signal:
            async with (
                aclosing(changes.events_after(EventCursor(1, 0))) as pages,
                asyncio.TaskGroup() as group,
            ):
                page = group.create_task(anext(pages))
                changed = group.create_task(signal.wait())
                await asyncio.sleep(0)
                store.answers_lost = 1
                with pytest.raises(Unavailable):
                    await engine.ask("controllers", lambda *_: end)

                assert [happened.event.why for happened in await page] == ["second"]
                assert await changed
                assert signal.ended.is_set()
        await engine.ask("apiserver", submit(2))
