"""Lookahead: only short at-least-once tasks are queued on a node; they are bounded and reserve nothing."""

from typing import Any

import pytest

from rota.model.ids import JobId, NodeId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import PREEMPT_MARGIN
from rota.model.messages import ReportedState
from rota.model.plan import NO_CHANGE
from rota.model.shape import AffinityTerm, Constraint, Op, RunMode
from rota.testing.builders import add_job, add_node, job_spec, placements
from tests.scheduler.rounds import Rounds

ONE_CPU = {"cpu": 1000}
A, B = NodeId("a"), NodeId("b")


def short_runs(run_us: float, **fields: Any) -> Rounds:
    """One slot, and a job whose first task has just run for this long."""
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU, labels={"leases": "pid-namespace"})
    add_job(rounds.mirror, job_spec(1, **({"count": 1000} | fields)))
    rounds.go()
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0, ran_us=round(run_us))
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
def test_lookahead_queues_enough_short_tasks_to_bridge_a_round_trip(run_us: int, queued: int) -> None:
    rounds = short_runs(run_us)

    assert len(placements(rounds.mirror, JobId("1"))) == 1 + queued
    assert rounds.mirror.node_table.queued[0] == queued


def test_lookahead_tasks_reserve_nothing() -> None:
    rounds = short_runs(1000)

    assert rounds.mirror.node_table.reserved[:, 0].tolist() == [1000]


def test_a_second_round_adds_no_lookahead_tasks() -> None:
    rounds = short_runs(1000)

    assert rounds.go() is NO_CHANGE


def test_two_jobs_together_get_no_more_lookahead_than_one() -> None:
    rounds = short_runs(1000)
    add_job(rounds.mirror, job_spec(2, count=500, needs={"cpu": 900}, priority=55))
    rounds.mirror.jobs[JobId("2")].run_us = 1.0
    rounds.go()

    assert rounds.mirror.node_table.queued[0] == 256


@pytest.mark.parametrize("run", [RunMode.AT_MOST_ONCE, RunMode.ONE_AT_A_TIME])
def test_only_at_least_once_tasks_use_lookahead(run: RunMode) -> None:
    rounds = short_runs(1000, run=run)

    assert len(placements(rounds.mirror, JobId("1"))) == 1


def test_lookahead_respects_parallel() -> None:
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


def test_tasks_excluded_by_anti_affinity_use_no_lookahead() -> None:
    apart = AffinityTerm(Constraint("app", Op.EQUAL, ("web",)))
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


def promised_to_another() -> Rounds:
    """A node that is full for 30 s, a job with a reservation on it, and short tasks behind that job."""
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_job(rounds.mirror, job_spec(1, needs={"cpu": 2000}, expect_seconds=30.0))
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1))
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 2000}, priority=55))
    add_job(rounds.mirror, job_spec(3, count=5))
    rounds.mirror.jobs[JobId("3")].run_us = 1000.0
    rounds.go(1)
    return rounds


def test_lookahead_resumes_when_a_reservation_on_the_node_ends() -> None:
    rounds = promised_to_another()
    head = rounds.cache.head_of_line
    before = placements(rounds.mirror, JobId("3"))
    assert head is not None
    rounds.go(head.until_ms)

    assert (head.job, before) == ("2", {})
    assert placements(rounds.mirror, JobId("3")) == dict.fromkeys(range(5), "a")


def test_lookahead_resumes_when_a_nomination_on_the_node_ends() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_job(rounds.mirror, job_spec(1, needs={"cpu": 2000}))
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1))
    urgent = add_job(rounds.mirror, job_spec(2, needs={"cpu": 2000}, priority=50 + PREEMPT_MARGIN))
    add_job(rounds.mirror, job_spec(3, count=5))
    rounds.mirror.jobs[JobId("3")].run_us = 1000.0
    rounds.go(1)
    before = placements(rounds.mirror, JobId("3")), rounds.scheduler.nominated_slots(urgent)
    rounds.mirror.apply(JobStatus(urgent, JobState.CANCELED))
    rounds.go(2)

    assert before == ({}, [0])
    assert placements(rounds.mirror, JobId("3")) == dict.fromkeys(range(5), "a")


@pytest.mark.parametrize("said", [ReportedState.WITHDRAWN, ReportedState.RUNNING])
def test_a_freed_lookahead_place_goes_to_the_next_short_task(said: ReportedState) -> None:
    rounds = short_runs(20_000, count=5)  # one runs, three wait on the node
    add_job(rounds.mirror, job_spec(2))
    rounds.mirror.jobs[JobId("2")].run_us = 20_000.0
    rounds.go(1)
    before = placements(rounds.mirror, JobId("2"))
    rounds.mirror.apply(JobStatus(JobId("1"), JobState.CANCELING))
    rounds.report("a", 1, said, (4, 1), ms=2)
    rounds.go(2)

    assert (before, placements(rounds.mirror, JobId("2"))) == ({}, {0: "a"})
