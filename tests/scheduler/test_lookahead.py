"""Lookahead: only short tasks that may run twice wait on a node; they are bounded and reserve nothing."""

from typing import Any

import pytest

from rota.model.ids import JobId, NodeId
from rota.model.plan import NOTHING
from rota.model.shape import Constraint, Op, RunMode, Term
from rota.model.sync import Said
from rota.testing.builders import add_job, add_node, job_spec, placements
from tests.scheduler.rounds import Rounds

ONE_CPU = {"cpu": 1000}
A, B = NodeId("a"), NodeId("b")


def short_runs(run_us: float, **fields: Any) -> Rounds:
    """One slot, and a job whose first task has just run for so long."""
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU, labels={"leases": "pid-namespace"})
    add_job(rounds.mirror, job_spec(1, **({"count": 1000} | fields)))
    rounds.go()
    rounds.said("a", 1, Said.EXITED, (0, 1), exit_code=0, ran_us=round(run_us))
    rounds.go()
    return rounds


@pytest.mark.parametrize(
    ("run_us", "queued"),
    [
        (20_000, 3),  # 60 ms of work
        (50_000, 2),
        (50_001, 0),  # longer runs gain nothing
        (1, 256),  # bounded in tasks too
    ],
)
def test_short_runs_wait_on_the_node_for_as_much_work_as_bridges_a_round_trip(
    run_us: int, queued: int
) -> None:
    rounds = short_runs(run_us)

    assert len(placements(rounds.mirror, JobId("1"))) == 1 + queued
    assert rounds.mirror.room.queued[0] == queued


def test_what_waits_on_a_node_reserves_nothing() -> None:
    rounds = short_runs(1000)

    assert rounds.mirror.room.reserved[:, 0].tolist() == [1000]


def test_a_second_round_adds_nothing_to_what_waits() -> None:
    rounds = short_runs(1000)

    assert rounds.go() is NOTHING


def test_a_node_holds_no_more_waiting_tasks_of_two_jobs_than_of_one() -> None:
    rounds = short_runs(1000)
    add_job(rounds.mirror, job_spec(2, count=500, needs={"cpu": 900}, priority=55))
    rounds.mirror.jobs[JobId("2")].run_us = 1.0
    rounds.go()

    assert rounds.mirror.room.queued[0] == 256


@pytest.mark.parametrize("run", [RunMode.AT_MOST_ONCE, RunMode.ONE_AT_A_TIME])
def test_only_tasks_that_may_run_twice_wait_on_a_node(run: RunMode) -> None:
    rounds = short_runs(1000, run=run)

    assert len(placements(rounds.mirror, JobId("1"))) == 1


def test_lookahead_heeds_parallel() -> None:
    rounds = short_runs(1000, parallel=4)

    assert len(placements(rounds.mirror, JobId("1"))) == 4


def test_lookahead_goes_only_where_the_task_could_run() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_node(rounds.mirror, "b", {"cpu": 500})
    add_job(rounds.mirror, job_spec(count=10))
    rounds.mirror.jobs[JobId("1")].run_us = 1000.0
    rounds.go()

    assert rounds.mirror.nodes[B].assigned == {}
    assert len(rounds.mirror.nodes[A].assigned) == 10


def test_who_is_kept_away_from_others_does_not_wait_on_their_nodes() -> None:
    apart = Term(Constraint("app", Op.EQUAL, ("web",)))
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_node(rounds.mirror, "b", ONE_CPU)
    add_job(rounds.mirror, job_spec(1, apart=(apart,), where=(Constraint("node", Op.EQUAL, ("a",)),)))
    rounds.go()
    add_job(rounds.mirror, job_spec(2, count=10, labels={"app": "web"}))
    rounds.mirror.jobs[JobId("2")].run_us = 1000.0
    rounds.go()

    assert list(rounds.mirror.nodes[A].assigned) == [(JobId("1"), 0)]
    assert list(rounds.mirror.nodes[B].assigned) == [(JobId("2"), 0)]
