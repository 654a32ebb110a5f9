"""Where a reader stands + what was committed -> all of it once and in order, or that it is gone."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from rota.apiserver.admission.subscribers import subscribe
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


def heard(*rows: CommitEvents, events_most: int = MOST) -> RecentEvents:
    one = RecentEvents(events_most)
    one.on_reload(rows[0].revision - 1)
    for each in rows:
        one.on_commit(each)
    return one


def told(one: RecentEvents, position: EventCursor, most: int = MOST) -> list[str] | None:
    found = one.page_after(position, most)
    return None if found is None else [happened.event.why for happened in found]


def test_a_reader_in_the_middle_of_a_commit_gets_the_rest_of_it() -> None:
    one = heard(row(1, 3), row(2, 0), row(3))

    assert told(one, EventCursor(1, 0)) == ["1.1", "1.2", "3.0"]
    assert told(one, EventCursor(1, 2)) == ["3.0"]
    assert told(one, EventCursor(3, 0)) == []


def test_a_page_is_as_long_as_was_asked_for_and_the_next_one_goes_on_behind_it() -> None:
    one = heard(*[row(revision) for revision in range(1, 6)])
    page = one.page_after(EventCursor(1, 0), 2)

    assert page is not None
    assert [happened.event.why for happened in page] == ["2.0"]  # the first row is the reader's own
    assert told(one, page[-1].at) == ["3.0", "4.0", "5.0"]


def test_what_is_not_in_memory_the_store_has_to_tell() -> None:
    assert told(RecentEvents(), BEGINNING) is None
    assert told(heard(row(5)), EventCursor(4, 0)) is None
    assert told(heard(row(5)), BEGINNING) is None


def test_after_a_commit_that_was_never_heard_of_the_store_is_asked() -> None:
    one = heard(row(1), row(2), row(4))

    assert told(one, EventCursor(2, 0)) is None
    assert told(one, EventCursor(4, 0)) == []


def test_after_everything_was_read_again_the_store_is_asked_if_there_is_more() -> None:
    same, more = heard(row(1), row(2)), heard(row(1), row(2))
    same.on_reload(2)
    more.on_reload(3)

    assert told(same, EventCursor(1, 0)) == ["2.0"]
    assert told(more, EventCursor(1, 0)) is None
    more.on_commit(row(4))
    assert told(more, EventCursor(4, 0)) == []


def test_memory_holds_the_last_ones_only_and_knows_from_where_on() -> None:
    one = heard(*[row(revision) for revision in range(1, 10)], events_most=4)

    assert [each.revision for each in one.rows] == [6, 7, 8, 9]
    assert told(one, EventCursor(5, 0)) is None
    assert told(one, EventCursor(6, 0)) == ["7.0", "8.0", "9.0"]


def test_memory_is_bounded_in_events_however_many_a_commit_has() -> None:
    one = heard(row(1), row(2, 5), row(3), row(4, 5), row(5), events_most=4)

    assert [each.revision for each in one.rows] == [5]
    assert told(one, EventCursor(4, 4)) is None
    one.on_commit(row(6, 20))
    assert one.rows == []
    assert told(one, EventCursor(6, 19)) is None


def test_from_the_store_a_reader_goes_on_where_its_own_row_is_still_there() -> None:
    rows = [row(3, 2), row(5)]

    assert event_cursor.revision_before(EventCursor(3, 0)) == 2
    assert [one.event.why for one in event_cursor.resume_from_store(EventCursor(3, 0), rows)] == [
        "3.1",
        "5.0",
    ]
    with pytest.raises(CursorExpired):
        event_cursor.resume_from_store(EventCursor(2, 0), rows)
    with pytest.raises(CursorExpired):
        event_cursor.resume_from_store(EventCursor(2, 0), [])


def test_who_has_been_told_nothing_yet_is_never_gone() -> None:
    rows = [row(3)]

    assert (
        len(event_cursor.resume_from_store(BEGINNING, rows))
        == len(event_cursor.resume_from_store(EventCursor(2, AFTER_LAST_EVENT), rows))
        == 1
    )


def test_a_position_that_no_server_can_have_given_out_is_refused() -> None:
    event_cursor.check_cursor(EventCursor(4, 7), 4)
    with pytest.raises(CursorExpired):
        event_cursor.check_cursor(EventCursor(5, 0), 4)


def test_now_is_where_the_last_event_is_if_that_is_known() -> None:
    assert heard(row(1), row(2, 3), row(3, 0)).latest_cursor(3) == EventCursor(2, 2)
    assert RecentEvents().latest_cursor(3) == EventCursor(3, AFTER_LAST_EVENT)


def test_a_subscriber_goes_on_behind_what_it_acknowledged_and_the_first_time_from_now() -> None:
    known = {"old": Subscriber("old", 3, 1)}
    again, first = (subscribe(known, name, EventCursor(7, 2)) for name in ("old", "new"))

    assert (again.answer, again.puts, again.fenced) == (known["old"], (), True)
    assert first.puts == (first.answer,) == (Subscriber("new", 7, 2),)


async def test_readers_and_followers_hear_of_what_was_written_though_the_store_said_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.0)
    store = LossyStore(MemoryStore(tmp_path))
    async with running(store) as engine:
        changes = EventHub(engine)
        await engine.ask("apiserver", lambda *_: Plan((spec(1),), events=(EventRecord("test", "first"),)))
        end = Plan((JobStatus(JobId("1"), JobState.FAILED),), events=(EventRecord("test", "second"),))
        with changes.follow_job(JobId("1")) as news:
            async with (
                aclosing(changes.events_after(EventCursor(1, 0))) as pages,
                asyncio.TaskGroup() as group,
            ):
                page = group.create_task(anext(pages))
                changed = group.create_task(news.wait())
                await asyncio.sleep(0)
                store.answers_lost = 1
                with pytest.raises(Unavailable):
                    await engine.ask("controllers", lambda *_: end)

                assert [happened.event.why for happened in await page] == ["second"]
                assert await changed
                assert news.ended.is_set()
        await engine.ask("apiserver", submit(2))
