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


class Told:
    """Runs the reconciler as the engine does: applies its writes and follows its wakes."""

    def __init__(self) -> None:
        self.mirror = Mirror()
        self.found = UnplaceableJobs()
        self.looks = 0

    def look(self, key: str, ms: int = 0) -> Plan:
        self.mirror.now_ms = ms
        self.looks += 1
        plan = apply(self.mirror, self.found.decide(self.mirror, key, at(ms)))
        for record in plan.puts:
            for woken in self.found.wakes[type(record)](record):
                self.look(woken, ms)
        return plan

    def cause(self, job: str) -> UnplaceableCause:
        record = self.mirror.jobs[JobId(job)].unplaceable
        return UnplaceableCause.NONE if record is None else record.cause


@pytest.fixture
def told() -> Told:
    made = Told()
    add_node(made.mirror, "a", {"cpu": 4000})
    return made


def test_a_job_too_large_for_any_node_is_reported_once(told: Told) -> None:
    job = add_job(told.mirror, job_spec(1, needs=BIG))

    kinds = [[event.kind for event in told.look(job).events] for _ in range(2)]

    assert kinds == [["placement.impossible"], []]
    assert told.cause(job) is UnplaceableCause.INFEASIBLE


def test_without_any_node_nothing_is_reported() -> None:
    told = Told()
    job = add_job(told.mirror, job_spec(1, needs=BIG))

    assert told.look(job) == told.look(QUEUES_KEY).but(wake_at_ms=None) == Plan()


def test_a_gang_larger_than_all_nodes_together_is_reported(told: Told) -> None:
    job = add_job(told.mirror, job_spec(1, count=5, gang=True, needs={"cpu": 1000}))

    told.look(job)

    assert told.cause(job) is UnplaceableCause.INFEASIBLE
    assert "fewer than its 5 tasks" in told.mirror.jobs[job].unplaceable.reason  # type: ignore[union-attr]  # told


def test_the_next_job_of_a_queue_costs_one_check(told: Told) -> None:
    for number in range(1, 1001):
        told.look(add_job(told.mirror, job_spec(number, needs=BIG)))
    told.look(QUEUES_KEY)
    before = told.looks

    plan = told.look(add_job(told.mirror, job_spec(1001, needs=BIG)))

    assert [type(record) for record in plan.puts] == [Unplaceable]
    assert told.looks - before == 1


def test_reports_on_other_jobs_wake_no_pending_job(told: Told) -> None:
    told.look(add_job(told.mirror, job_spec(1, needs=BIG)))
    other = StatusBlock.new(JobId("2"), 0, 1)

    assert list(told.found.wakes[StatusBlock](other)) == []
    assert list(told.found.wakes[StatusBlock](StatusBlock.new(JobId("1"), 0, 1))) == ["1"]


def test_all_jobs_of_a_queue_are_reported_in_slices_when_the_last_capable_node_is_removed(
    told: Told,
) -> None:
    add_node(told.mirror, "big", BIG)
    many = UNPLACEABLE_JOBS_PER_CHECK + 10
    for number in range(1, many + 1):
        told.look(add_job(told.mirror, job_spec(number, needs=BIG)))
    told.look(QUEUES_KEY)
    assert {told.cause(job) for job in told.mirror.jobs} == {UnplaceableCause.NONE}

    told.mirror.apply(node_status("big", {"cpu": 1000}))
    assert list(told.found.wakes[NodeStatus](node_status("big"))) == [QUEUES_KEY]
    first, second = told.look(QUEUES_KEY, 5_000), told.look(QUEUES_KEY, 5_001)

    assert (len(first.puts), len(second.puts)) == (UNPLACEABLE_JOBS_PER_CHECK, 10)
    assert {told.cause(job) for job in told.mirror.jobs} == {UnplaceableCause.INFEASIBLE}


def test_all_queues_are_checked_at_most_once_a_second(told: Told) -> None:
    told.look(QUEUES_KEY)
    for number in range(50):
        add_node(told.mirror, f"n{number}", {"cpu": 4000})

    assert told.look(QUEUES_KEY, 10).wake_at_ms == 1_000


def test_a_job_asks_for_a_node_after_one_second(told: Told) -> None:
    told.mirror.node_table.reserve(0, (("cpu", 4000),), 1, 0)
    spec = job_spec(1, needs={"cpu": 1000}, when_unschedulable=Unschedulable.SCALE)
    told.found.wakes[type(spec)](spec)
    job = add_job(told.mirror, spec)

    at_first, later = told.look(job), told.look(job, 1_000)

    assert (at_first.events, at_first.wake_at_ms) == ((), 1_000)
    assert [event.kind for event in later.events] == ["placement.needs_node"]
    assert told.cause(job) is UnplaceableCause.NO_FREE_NODE


def test_recorded_causes_survive_a_restart(told: Told) -> None:
    job = add_job(told.mirror, job_spec(1, needs=BIG))
    told.look(job)
    told.found = UnplaceableJobs()

    keys = list(told.found.start(told.mirror))

    assert [event for key in (*keys, job) for event in told.look(key, 5_000).events] == []
    assert list(told.found.wakes[StatusBlock](StatusBlock.new(job, 0, 1))) == [job]


def test_an_ended_job_is_forgotten(told: Told) -> None:
    job = add_job(told.mirror, job_spec(1, needs=BIG))
    told.look(job)

    told.found.wakes[JobStatus](JobStatus(job, JobState.CANCELED))

    assert list(told.found.wakes[StatusBlock](StatusBlock.new(job, 0, 1))) == []


def test_a_node_of_another_cluster_neither_helps_nor_counts(told: Told) -> None:
    job = add_job(told.mirror, job_spec(1, needs=BIG))
    told.mirror.apply(JobCluster(job, "elsewhere"))

    assert told.look(job) == Plan()


def test_jobs_that_join_a_queue_together_are_checked_at_most_once_more(told: Told) -> None:
    jobs = [add_job(told.mirror, job_spec(number, needs=BIG)) for number in range(1, 1001)]
    for job in jobs:
        told.look(job)

    rest = [
        told.look(QUEUES_KEY, 10 + number) for number in range(len(jobs) // UNPLACEABLE_JOBS_PER_CHECK + 1)
    ]

    assert [plan.puts for plan in rest] == [()] * len(rest)
    assert rest[-1].wake_at_ms == 10 + len(rest) - 1 + UNPLACEABLE_CHECK_MS
