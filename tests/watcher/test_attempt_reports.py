"""A report is applied only to a live attempt of the reporting node, and only in a legal order."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.attempt import NO_EXIT_CODE
from rota.model.columns import column
from rota.model.lifecycle import ATTEMPT, AttemptState
from rota.model.limits import BLOCK_TASKS, SUPERSEDED_KEPT
from rota.model.messages import AttemptReport, JobReports, ReportedState
from rota.model.plan import Plan
from rota.testing.builders import job_reports
from rota.watcher.attempt_reports import event_of
from tests.watcher.placed_work import ONE, place, placed, report, report_state, states, status


def test_a_report_is_stored_with_all_its_fields() -> None:
    mirror = placed()
    report_state(
        mirror,
        ReportedState.EXITED,
        (0, 1),
        exit_code=7,
        signal=0,
        started_at_ms=11,
        ended_at_ms=12,
        ran_us=13,
        cpu_us=14,
        peak_kib=15,
        reason="because",
    )

    block = status(mirror)
    names = (
        "number",
        "state",
        "exit_code",
        "signal",
        "started_at_ms",
        "ended_at_ms",
        "ran_us",
        "cpu_us",
        "peak_kib",
    )
    assert [int(column(block, name)[0]) for name in names] == [
        1,
        AttemptState.FAILED,
        7,
        0,
        11,
        12,
        13,
        14,
        15,
    ]
    assert block.reasons == {0: "because"}


@pytest.mark.parametrize(
    ("reported", "fields", "state"),
    [
        (ReportedState.QUEUED, {}, AttemptState.QUEUED),
        (ReportedState.ACCEPTED, {}, AttemptState.ACCEPTED),
        (ReportedState.RUNNING, {}, AttemptState.RUNNING),
        (ReportedState.STOPPING, {}, AttemptState.STOPPING),
        (ReportedState.EXITED, {"exit_code": 0}, AttemptState.SUCCEEDED),
        (ReportedState.EXITED, {"exit_code": 1}, AttemptState.FAILED),
        (ReportedState.EXITED, {"exit_code": 0, "signal": 9}, AttemptState.FAILED),
        (ReportedState.EXITED, {"signal": 9}, AttemptState.FAILED),
        (ReportedState.STOPPED, {}, AttemptState.STOPPED),
        (ReportedState.TIMED_OUT, {}, AttemptState.TIMED_OUT),
        (ReportedState.LOST, {}, AttemptState.LOST),
        (ReportedState.UNKNOWN, {}, AttemptState.WITHDRAWN),
        (ReportedState.REFUSED, {}, AttemptState.REFUSED),
        (ReportedState.WITHDRAWN, {}, AttemptState.WITHDRAWN),
    ],
)
def test_each_reported_state_of_an_offer_means_one_attempt_state(
    reported: ReportedState, fields: dict[str, Any], state: AttemptState
) -> None:
    mirror = placed()
    report_state(mirror, reported, (0, 1), **fields)

    assert states(mirror) == [state]


@pytest.mark.parametrize(
    ("before", "state"),
    [
        (ReportedState.QUEUED, AttemptState.WITHDRAWN),
        (ReportedState.ACCEPTED, AttemptState.WITHDRAWN),
        (ReportedState.RUNNING, AttemptState.LOST),
        (ReportedState.STOPPING, AttemptState.LOST),
    ],
)
def test_an_attempt_unknown_to_its_node_is_lost_only_if_it_ran_there(
    before: ReportedState, state: AttemptState
) -> None:
    mirror = placed()
    report_state(mirror, before, (0, 1))
    report_state(mirror, ReportedState.UNKNOWN, (0, 1))

    assert states(mirror) == [state]


def test_a_reported_state_of_a_newer_version_is_ignored() -> None:
    mirror = placed()

    assert report(mirror, "a", JobReports(ONE, [AttemptReport(0, 1, 99)])) == nothing(ended=True)


# ---- reports that are ignored


@pytest.mark.parametrize(
    "pair",
    [
        (0, 2),  # an attempt that was never placed
        (0, 0),
        (5, 1),  # a task the job does not have
        (BLOCK_TASKS, 1),  # in a block that was never placed
        (2**31, 1),
    ],
)
def test_a_report_on_an_attempt_never_placed_is_ignored(pair: tuple[int, int]) -> None:
    assert report_state(placed(), ReportedState.RUNNING, pair) == nothing()


def test_a_report_on_an_unknown_job_is_ignored() -> None:
    assert report(placed(), "a", job_reports(99, ReportedState.RUNNING, (0, 1))) == nothing()


def test_a_report_of_another_node_is_ignored() -> None:
    mirror = placed()

    assert report_state(mirror, ReportedState.EXITED, (0, 1), node="b", exit_code=0) == nothing(
        "b", ended=True
    )


def test_a_report_on_a_superseded_attempt_is_ignored() -> None:
    mirror = placed()
    report_state(mirror, ReportedState.REFUSED, (0, 1))
    place(mirror)

    assert report_state(mirror, ReportedState.EXITED, (0, 1), exit_code=0) == nothing(ended=True)
    assert report_state(mirror, ReportedState.RUNNING, (0, 2), node="b").puts != ()


def test_a_repeated_report_changes_nothing() -> None:
    mirror = placed()
    report_state(mirror, ReportedState.RUNNING, (0, 1))

    assert report_state(mirror, ReportedState.RUNNING, (0, 1)) == nothing()


def test_a_report_out_of_order_is_ignored() -> None:
    mirror = placed()
    report_state(mirror, ReportedState.EXITED, (0, 1), exit_code=0)

    assert report_state(mirror, ReportedState.RUNNING, (0, 1)) == nothing()
    assert report_state(mirror, ReportedState.EXITED, (0, 1), exit_code=5) == nothing(ended=True)
    assert states(mirror) == [AttemptState.SUCCEEDED]


@given(
    st.lists(
        st.tuples(st.sampled_from(ReportedState), st.integers(0, 1), st.sampled_from([0, 3])), max_size=8
    )
)
@settings(deadline=None)
def test_any_sequence_of_reports_moves_states_as_the_table_allows(
    reports: list[tuple[ReportedState, int, int]],
) -> None:
    mirror = placed(count=2)
    before = [AttemptState.OFFERED, AttemptState.OFFERED]
    for state, index, code in reports:
        event = event_of(AttemptReport(index, 1, state, exit_code=code))
        assert event is not None
        report_state(mirror, state, (index, 1), exit_code=code)
        before[index] = ATTEMPT.get((before[index], event), before[index])

    assert (states(mirror) if mirror.jobs[ONE].statuses else [AttemptState.OFFERED] * 2) == before


@pytest.mark.parametrize("fields", [{"exit_code": 2**20}, {"exit_code": -(2**20)}, {"signal": 300}])
def test_impossible_exit_codes_and_signals_do_no_harm(fields: dict[str, Any]) -> None:
    mirror = placed()
    report_state(mirror, ReportedState.EXITED, (0, 1), **fields)

    assert states(mirror) == [AttemptState.FAILED]


# ---- several in one report


def test_one_report_may_cover_the_whole_life_of_an_attempt() -> None:
    mirror = placed()
    plan = report(
        mirror,
        "a",
        job_reports(1, ReportedState.ACCEPTED, (0, 1)),
        job_reports(1, ReportedState.RUNNING, (0, 1), started_at_ms=5),
        job_reports(1, ReportedState.EXITED, (0, 1), exit_code=0, started_at_ms=5),
    )

    assert states(mirror) == [AttemptState.SUCCEEDED]
    assert len(plan.puts) == 1


def test_tasks_with_equal_changes_share_one_event() -> None:
    mirror = placed(count=6)
    plan = report(
        mirror,
        "a",
        job_reports(1, ReportedState.EXITED, (0, 1), (1, 1), (2, 1), (5, 1), exit_code=0),
        job_reports(1, ReportedState.EXITED, (3, 1), exit_code=2, reason="no luck"),
        job_reports(1, ReportedState.ACCEPTED, (4, 1)),
    )

    assert [
        (event.kind, event.why, event.indices, event.exit_code, event.state) for event in plan.events
    ] == [
        ("task.ended", "tasks 0-2, 5 of job 1 succeeded on a", ((0, 2), (5, 5)), 0, "succeeded"),
        ("task.ended", "task 3 of job 1 failed with 2 on a: no luck", ((3, 3),), 2, "failed"),
    ]


def test_only_the_blocks_a_report_changes_are_written() -> None:
    mirror = placed(count=3 * BLOCK_TASKS)
    plan = report_state(mirror, ReportedState.RUNNING, (1, 1), (2 * BLOCK_TASKS, 1))

    assert [record.key for record in plan.puts] == ["status/1/0", "status/1/2"]


# ---- older attempts


def test_the_end_of_an_older_attempt_is_kept_when_the_next_is_reported() -> None:
    mirror = placed()
    report_state(mirror, ReportedState.REFUSED, (0, 1), reason="no such directory")
    place(mirror)
    report_state(mirror, ReportedState.RUNNING, (0, 2), node="b", started_at_ms=9)

    (old,) = status(mirror).older
    assert (old.position, old.number, AttemptState(old.state)) == (0, 1, AttemptState.REFUSED)
    assert (old.exit_code, old.reason) == (NO_EXIT_CODE, "no such directory")
    assert status(mirror).reasons == {}
    assert states(mirror) == [AttemptState.RUNNING]


def test_sixty_four_older_attempts_are_kept_and_more_are_counted() -> None:
    mirror = placed()
    for number in range(1, 71):
        mirror.now_ms = number * 100_000
        node = next(name for name, entry in mirror.nodes.items() if entry.assigned)
        report_state(mirror, ReportedState.REFUSED, (0, number), node=node)
        place(mirror, ms=number * 100_000)

    block = status(mirror)
    assert len(block.older) == SUPERSEDED_KEPT
    assert [old.number for old in block.older] == list(range(6, 70))
    assert block.older_dropped == 5


def nothing(node: str = "a", *, ended: bool = False) -> Plan:
    """The plan of an ignored report; an end is fenced, because the node deletes its result on the answer."""
    return Plan(why=f"node {node} reported", fenced=ended)
