"""Preemption: a job of higher priority evicts the least work of lower priority, and only where permitted."""

from typing import Any

import pytest

from rota.model.attempt import EVICTED
from rota.model.ids import JobId
from rota.model.limits import NOMINATED_MS, PREEMPT_MARGIN
from rota.model.messages import ReportedState
from rota.model.node import Eligibility, NodeIntent
from rota.model.shape import RunMode
from rota.rules.phases import Phase
from rota.testing.builders import add_job, add_node, job_spec, placements, where
from rota.watcher.dispatch import DispatchState
from tests.scheduler.rounds import Rounds

HIGH = 50 + PREEMPT_MARGIN


def full(*jobs: Any, nodes: int = 1, cpu: int = 4000) -> Rounds:
    """A cluster whose nodes run these jobs."""
    rounds = Rounds()
    for number in range(nodes):
        add_node(rounds.mirror, f"n{number}", {"cpu": cpu})
    for spec in jobs:
        add_job(rounds.mirror, spec)
    rounds.go()
    for spec in jobs:
        for index, node in placements(rounds.mirror, spec.id).items():
            rounds.report(node, int(spec.id), ReportedState.RUNNING, (index, 1))
    return rounds


def evicted(rounds: Rounds) -> list[tuple[str, int]]:
    return [
        (str(job), block * 256 + position)
        for job, entry in rounds.mirror.jobs.items()
        for block, attempt in entry.attempts.items()
        for position, flags in enumerate(attempt.flags)
        if flags & EVICTED
    ]


def test_the_fewest_tasks_are_preempted_and_the_preemptor_starts_when_they_have_ended() -> None:
    rounds = full(job_spec(1, count=2), job_spec(2, needs={"cpu": 2000}))
    urgent = add_job(rounds.mirror, job_spec(3, priority=HIGH, needs={"cpu": 2000}))

    plan = rounds.go(10)
    before = placements(rounds.mirror, urgent)
    rounds.report("n0", 2, ReportedState.STOPPED, (0, 1), ms=20)
    rounds.go(20)

    assert evicted(rounds) == [("2", 0)]
    assert plan.why == "task 0 of job 2 gives way to job 3: priority 60 over 50"
    assert (before, placements(rounds.mirror, urgent)) == ({}, {0: "n0"})


def test_a_preempted_task_is_pending_again_and_has_used_no_retry() -> None:
    rounds = full(job_spec(1, needs={"cpu": 4000}))
    add_job(rounds.mirror, job_spec(2, priority=HIGH, needs={"cpu": 4000}))
    rounds.go(10)
    phase = rounds.mirror.jobs[JobId("1")].phases[0][0]
    rounds.report("n0", 1, ReportedState.STOPPED, (0, 1), ms=20)
    job = rounds.mirror.jobs[JobId("1")]

    assert (phase, job.phases[0][0]) == (Phase.STOPPING, Phase.PENDING)
    assert list(job.tasks[0].failures) == [0, 0]


def test_the_node_is_ordered_to_stop_preempted_tasks() -> None:
    rounds = full(job_spec(1, needs={"cpu": 4000}))
    dispatch = DispatchState([])
    dispatch.orders(rounds.mirror, rounds.mirror.node_table.ids[0])
    add_job(rounds.mirror, job_spec(2, priority=HIGH))
    rounds.go(10)

    orders = dispatch.orders(rounds.mirror, rounds.mirror.node_table.ids[0])

    assert [
        (job_orders.job, [stop.index for stop in job_orders.stop], job_orders.start) for job_orders in orders
    ] == [("1", [0], [])]


@pytest.mark.parametrize(
    "spared",
    [
        {"preemptible": False},
        {"run": RunMode.AT_MOST_ONCE},
        {"priority": HIGH - PREEMPT_MARGIN + 1},
        {"evict_at_most": 0},
    ],
)
def test_tasks_that_may_not_be_preempted_stay(spared: dict[str, Any]) -> None:
    rounds = full(job_spec(1, needs={"cpu": 4000}, **spared))
    add_job(rounds.mirror, job_spec(2, priority=HIGH))
    rounds.go(10)

    assert evicted(rounds) == []


def test_the_lowest_priority_is_preempted_even_if_it_is_more_tasks() -> None:
    rounds = full(job_spec(1, priority=20, count=2), job_spec(2, priority=40, needs={"cpu": 2000}))
    add_job(rounds.mirror, job_spec(3, priority=HIGH, needs={"cpu": 2000}))
    rounds.go(10)

    assert evicted(rounds) == [("1", 0), ("1", 1)]


def test_an_eviction_budget_limits_simultaneous_preemptions() -> None:
    rounds = full(job_spec(1, count=2, needs={"cpu": 4000}, evict_at_most=1), nodes=2)
    add_job(rounds.mirror, job_spec(2, count=2, priority=HIGH, needs={"cpu": 4000}))
    rounds.go(10)
    first = evicted(rounds)
    rounds.go(20)

    assert len(first) == len(evicted(rounds)) == 1


def test_a_gang_is_preempted_as_a_whole_or_not_at_all() -> None:
    rounds = full(job_spec(1, count=2, gang=True, needs={"cpu": 4000}), nodes=2)
    add_job(rounds.mirror, job_spec(2, priority=HIGH))
    rounds.go(10)

    assert evicted(rounds) == [("1", 0), ("1", 1)]


def test_nominated_slots_are_given_to_no_other_job() -> None:
    rounds = full(job_spec(1, count=2, needs={"cpu": 2000}))
    urgent = add_job(rounds.mirror, job_spec(2, priority=HIGH, needs={"cpu": 4000}))
    rounds.go(10)
    rounds.report("n0", 1, ReportedState.STOPPED, (0, 1), ms=20)
    small = add_job(rounds.mirror, job_spec(3))
    rounds.go(20)
    meanwhile = placements(rounds.mirror, small)
    rounds.report("n0", 1, ReportedState.STOPPED, (1, 1), ms=30)
    rounds.go(30)

    assert (meanwhile, placements(rounds.mirror, urgent)) == ({}, {0: "n0"})


def test_no_more_tasks_are_preempted_while_victims_are_stopping() -> None:
    rounds = full(job_spec(1, count=2, needs={"cpu": 4000}), nodes=2)
    add_job(rounds.mirror, job_spec(2, priority=HIGH))
    for ms in (10, 20, 30):
        rounds.go(ms)
        rounds.mirror.node_table.capacity_version += 1

    assert len(evicted(rounds)) == 1


@pytest.mark.parametrize(
    "urgent",
    [
        (job_spec(2, count=2, priority=HIGH, needs={"cpu": 2000}),),
        (job_spec(2, priority=HIGH, needs={"cpu": 2000}), job_spec(3, priority=HIGH, needs={"cpu": 1900})),
    ],
    ids=["of one job", "of two jobs"],
)
def test_two_tasks_preempt_on_one_node_without_waiting_for_the_first_victims(urgent: Any) -> None:
    rounds = full(job_spec(1, count=2, needs={"cpu": 2000}))
    for spec in urgent:
        add_job(rounds.mirror, spec)
    first = rounds.go(10)
    early = len(evicted(rounds))
    rounds.go(first.wake_at_ms or 0)
    rested = rounds.go(20)

    assert (early, first.wake_at_ms) == (1, 11)
    assert evicted(rounds) == [("1", 0), ("1", 1)]
    assert rested.wake_at_ms == 10 + NOMINATED_MS


def test_after_a_restart_stopping_victims_are_waited_for() -> None:
    rounds = full(job_spec(1, count=2, needs={"cpu": 4000}), nodes=2)
    add_job(rounds.mirror, job_spec(2, priority=HIGH))
    rounds.go(10)
    fresh = Rounds()
    fresh.mirror = rounds.mirror
    fresh.go(20)

    assert len(evicted(fresh)) == 1


def test_a_nomination_lapses_when_its_node_closes_and_other_tasks_are_preempted() -> None:
    rounds = full(job_spec(1, count=2, needs={"cpu": 4000}), nodes=2)
    add_job(rounds.mirror, job_spec(2, priority=HIGH))
    rounds.go(10)
    [(_, first)] = evicted(rounds)
    node = placements(rounds.mirror, JobId("1"))[first]
    rounds.mirror.apply(NodeIntent(rounds.mirror.nodes[node].id, Eligibility.CORDONED))  # type: ignore[index]
    rounds.go(20)

    assert len(evicted(rounds)) == 2


def test_a_nomination_lapses_with_time_and_the_next_try_makes_another() -> None:
    rounds = full(job_spec(1, count=2, needs={"cpu": 4000}), nodes=2)
    add_job(rounds.mirror, job_spec(2, priority=HIGH, needs={"cpu": 4000}))
    first = rounds.go(10)
    rounds.go(10 + NOMINATED_MS)

    assert first.wake_at_ms == 10 + NOMINATED_MS
    assert len(evicted(rounds)) == 1  # what victims are leaving is enough, however long it takes


def test_no_task_is_preempted_on_a_node_that_refuses_the_job() -> None:
    rounds = full(job_spec(1, needs={"cpu": 4000}))
    add_job(rounds.mirror, job_spec(2, priority=HIGH, where=(where("region", "==", "eu"),)))
    add_job(rounds.mirror, job_spec(3, priority=HIGH, needs={"cpu": 8000}))
    rounds.go(10)

    assert evicted(rounds) == []
