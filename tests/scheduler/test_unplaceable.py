"""Jobs that no node can run: which jobs are checked when, and what is recorded."""

import pytest

from rota.engine.state.mirror import Mirror
from rota.model.attempt import StatusBlock
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobStatus, Unplaceable, UnplaceableCause, Unschedulable
from rota.model.lifecycle import JobState
from rota.model.limits import UNPLACEABLE_CHECK_MS, UNPLACEABLE_JOBS_PER_CHECK
from rota.model.node import NodeStatus
from rota.model.plan import Plan
from rota.scheduler.unplaceable import QUEUES_KEY, UnplaceableJobs
from rota.testing.builders import add_job, add_node, apply, at, job_spec, node_status

BIG = {"cpu": 64_000}


class ReconcilerRun:
    """Runs the reconciler as the engine does: applies its writes and follows its wakes."""

    def __init__(self) -> None:
        self.mirror = Mirror()
        self.reconciler = UnplaceableJobs()
        self.decisions = 0

    def decide(self, key: str, ms: int = 0) -> Plan:
        self.mirror.now_ms = ms
        self.decisions += 1
        plan = apply(self.mirror, self.reconciler.decide(self.mirror, key, at(ms)))
        for record in plan.puts:
            for woken in self.reconciler.wakes[type(record)](record):
                self.decide(woken, ms)
        return plan

    def cause(self, job: str) -> UnplaceableCause:
        record = self.mirror.jobs[JobId(job)].unplaceable
        return UnplaceableCause.NONE if record is None else record.cause


@pytest.fixture
def run() -> ReconcilerRun:
    started = ReconcilerRun()
    add_node(started.mirror, "a", {"cpu": 4000})
    return started


def test_a_job_too_large_for_any_node_is_reported_once(run: ReconcilerRun) -> None:
    job = add_job(run.mirror, job_spec(1, needs=BIG))

    kinds = [[event.kind for event in run.decide(job).events] for _ in range(2)]

    assert kinds == [["placement.impossible"], []]
    assert run.cause(job) is UnplaceableCause.INFEASIBLE


def test_without_any_node_nothing_is_reported() -> None:
    run = ReconcilerRun()
    job = add_job(run.mirror, job_spec(1, needs=BIG))

    assert run.decide(job) == run.decide(QUEUES_KEY).but(wake_at_ms=None) == Plan()


def test_a_gang_larger_than_all_nodes_together_is_reported(run: ReconcilerRun) -> None:
    job = add_job(run.mirror, job_spec(1, count=5, gang=True, needs={"cpu": 1000}))

    run.decide(job)

    assert run.cause(job) is UnplaceableCause.INFEASIBLE
    assert "fewer than its 5 tasks" in run.mirror.jobs[job].unplaceable.reason  # type: ignore[union-attr]  # recorded above


def test_the_next_job_of_a_queue_costs_one_check(run: ReconcilerRun) -> None:
    for number in range(1, 1001):
        run.decide(add_job(run.mirror, job_spec(number, needs=BIG)))
    run.decide(QUEUES_KEY)
    before = run.decisions

    plan = run.decide(add_job(run.mirror, job_spec(1001, needs=BIG)))

    assert [type(record) for record in plan.puts] == [Unplaceable]
    assert run.decisions - before == 1


def test_reports_on_other_jobs_wake_no_pending_job(run: ReconcilerRun) -> None:
    run.decide(add_job(run.mirror, job_spec(1, needs=BIG)))
    other = StatusBlock.new(JobId("2"), 0, 1)

    assert list(run.reconciler.wakes[StatusBlock](other)) == []
    assert list(run.reconciler.wakes[StatusBlock](StatusBlock.new(JobId("1"), 0, 1))) == ["1"]


def test_all_jobs_of_a_queue_are_reported_in_slices_when_the_last_capable_node_is_removed(
    run: ReconcilerRun,
) -> None:
    add_node(run.mirror, "big", BIG)
    many = UNPLACEABLE_JOBS_PER_CHECK + 10
    for number in range(1, many + 1):
        run.decide(add_job(run.mirror, job_spec(number, needs=BIG)))
    run.decide(QUEUES_KEY)
    assert {run.cause(job) for job in run.mirror.jobs} == {UnplaceableCause.NONE}

    run.mirror.apply(node_status("big", {"cpu": 1000}))
    assert list(run.reconciler.wakes[NodeStatus](node_status("big"))) == [QUEUES_KEY]
    first, second = run.decide(QUEUES_KEY, 5_000), run.decide(QUEUES_KEY, 5_001)

    assert (len(first.puts), len(second.puts)) == (UNPLACEABLE_JOBS_PER_CHECK, 10)
    assert {run.cause(job) for job in run.mirror.jobs} == {UnplaceableCause.INFEASIBLE}


def test_all_queues_are_checked_at_most_once_a_second(run: ReconcilerRun) -> None:
    run.decide(QUEUES_KEY)
    for number in range(50):
        add_node(run.mirror, f"n{number}", {"cpu": 4000})

    assert run.decide(QUEUES_KEY, 10).wake_at_ms == 1_000


def test_a_job_asks_for_a_node_after_one_second(run: ReconcilerRun) -> None:
    run.mirror.node_table.reserve(0, (("cpu", 4000),), 1, 0)
    spec = job_spec(1, needs={"cpu": 1000}, when_unschedulable=Unschedulable.SCALE)
    run.reconciler.wakes[type(spec)](spec)
    job = add_job(run.mirror, spec)

    at_first, later = run.decide(job), run.decide(job, 1_000)

    assert (at_first.events, at_first.wake_at_ms) == ((), 1_000)
    assert [event.kind for event in later.events] == ["placement.needs_node"]
    assert run.cause(job) is UnplaceableCause.NO_FREE_NODE


def test_recorded_causes_survive_a_restart(run: ReconcilerRun) -> None:
    job = add_job(run.mirror, job_spec(1, needs=BIG))
    run.decide(job)
    run.reconciler = UnplaceableJobs()

    keys = list(run.reconciler.start(run.mirror))

    assert [event for key in (*keys, job) for event in run.decide(key, 5_000).events] == []
    assert list(run.reconciler.wakes[StatusBlock](StatusBlock.new(job, 0, 1))) == [job]


def test_an_ended_job_is_forgotten(run: ReconcilerRun) -> None:
    job = add_job(run.mirror, job_spec(1, needs=BIG))
    run.decide(job)

    run.reconciler.wakes[JobStatus](JobStatus(job, JobState.CANCELED))

    assert list(run.reconciler.wakes[StatusBlock](StatusBlock.new(job, 0, 1))) == []


def test_a_node_of_another_cluster_neither_helps_nor_counts(run: ReconcilerRun) -> None:
    job = add_job(run.mirror, job_spec(1, needs=BIG))
    run.mirror.apply(JobCluster(job, "elsewhere"))

    assert run.decide(job) == Plan()


def test_jobs_that_join_a_queue_together_are_checked_at_most_once_more(run: ReconcilerRun) -> None:
    jobs = [add_job(run.mirror, job_spec(number, needs=BIG)) for number in range(1, 1001)]
    for job in jobs:
        run.decide(job)

    rest = [
        run.decide(QUEUES_KEY, 10 + number) for number in range(len(jobs) // UNPLACEABLE_JOBS_PER_CHECK + 1)
    ]

    assert [plan.puts for plan in rest] == [()] * len(rest)
    assert rest[-1].wake_at_ms == 10 + len(rest) - 1 + UNPLACEABLE_CHECK_MS
