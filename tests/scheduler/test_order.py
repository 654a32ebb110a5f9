"""Ranking: priority, fair shares and deadlines; quotas; backfill reservations."""

import pytest

from rota.controllers import batch
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.messages import ReportedState
from rota.model.namespace import NamespaceRecord
from rota.model.shape import AffinityTerm, Constraint, Op, RunMode
from rota.scheduler.plan import Scheduler
from rota.scheduler.policy import deadline
from rota.scheduler.round import SchedulerSettings
from rota.testing.builders import WALL_MS, add_job, add_node, apply, at, job_spec, placements
from tests.scheduler.rounds import Rounds


def cluster(cpu: int = 4000, nodes: int = 1) -> Rounds:
    rounds = Rounds()
    for number in range(nodes):
        add_node(rounds.mirror, f"n{number}", {"cpu": cpu})
    return rounds


def submit(rounds: Rounds, *specs: JobSpec) -> list[JobId]:
    return [add_job(rounds.mirror, spec) for spec in specs]


def live(rounds: Rounds, *jobs: JobId) -> list[int]:
    return [len(placements(rounds.mirror, job)) for job in jobs]


def start_all(rounds: Rounds, job: JobId, ms: int = 0) -> None:
    for index, node in placements(rounds.mirror, job).items():
        rounds.report(node, int(job), ReportedState.RUNNING, (index, 1), ms=ms, started_at_ms=WALL_MS + ms)


# ---- shares


def test_users_of_equal_priority_take_turns_although_one_submitted_first() -> None:
    rounds = cluster(4000)
    jobs = [job_spec(n, user="a") for n in (1, 2, 3, 4)] + [job_spec(n, user="b") for n in (5, 6)]
    ids = submit(rounds, *jobs)
    rounds.go()

    assert live(rounds, *ids) == [1, 1, 0, 0, 1, 1]


def test_namespaces_share_by_weight() -> None:
    rounds = cluster(8000)
    rounds.mirror.apply(NamespaceRecord("big", weight=3))
    big = submit(rounds, *(job_spec(n, namespace="big") for n in range(1, 9)))
    small = submit(rounds, *(job_spec(n, namespace="small") for n in range(9, 17)))
    rounds.go()

    assert (sum(live(rounds, *big)), sum(live(rounds, *small))) == (6, 2)


def served(owners: list[dict[str, str]], turns: int) -> list[int]:
    """Number of tasks of each owner's array that a node with one slot gets, one after the other."""
    rounds = cluster(1000)
    once = RunMode.AT_MOST_ONCE  # which never uses lookahead
    jobs = submit(rounds, *(job_spec(n, count=50, run=once, **owner) for n, owner in enumerate(owners, 1)))
    for turn in range(turns):
        rounds.go(10 * turn)
        [(job, index)] = [(job, index) for job in jobs for index in placements(rounds.mirror, job)]
        rounds.report("n0", int(job), ReportedState.EXITED, (index, 1), ms=10 * turn, exit_code=0)
    return [rounds.mirror.jobs[job].task_counts.ended for job in jobs]


def test_namespaces_take_turns_when_there_are_fewer_slots_than_namespaces() -> None:
    assert served([{"namespace": "first"}, {"namespace": "second"}, {"namespace": "third"}], 9) == [3, 3, 3]


def test_users_of_a_namespace_take_turns_when_there_are_fewer_slots_than_users() -> None:
    owners = [{"namespace": "one", "user": "a"}, {"namespace": "one", "user": "b"}, {"namespace": "other"}]

    assert served(owners, 8) == [2, 2, 4]


def test_a_higher_priority_goes_before_any_share() -> None:
    rounds = cluster(1000)
    ids = submit(rounds, job_spec(1, user="idle"), job_spec(2, user="busy", priority=51))
    rounds.go()

    assert live(rounds, *ids) == [0, 1]


# ---- quotas


def test_a_namespace_gets_no_more_than_its_quota_and_more_when_something_ends() -> None:
    rounds = cluster(8000)
    rounds.mirror.apply(NamespaceRecord("default", quota={"cpu": 3000}))
    [job, other] = submit(rounds, job_spec(1, count=6), job_spec(2, namespace="free", count=2))
    rounds.go()
    before = live(rounds, job, other)
    rounds.report("n0", 1, ReportedState.EXITED, (0, 1), exit_code=0)
    rounds.go(10)

    assert (before, live(rounds, job)) == ([3, 2], [3])
    assert rounds.mirror.jobs[job].task_counts.ended == 1


def test_a_quota_of_tasks_counts_tasks() -> None:
    rounds = cluster(8000)
    rounds.mirror.apply(NamespaceRecord("default", quota={"tasks": 2}))
    ids = submit(rounds, job_spec(1), job_spec(2), job_spec(3))
    rounds.go()

    assert live(rounds, *ids) == [1, 1, 0]


def test_a_larger_quota_starts_pending_tasks() -> None:
    rounds = cluster(8000)
    rounds.mirror.apply(NamespaceRecord("default", quota={"cpu": 1000}))
    ids = submit(rounds, job_spec(1), job_spec(2))
    rounds.go()
    rounds.mirror.apply(NamespaceRecord("default", quota={"cpu": 2000}))
    rounds.go(10)

    assert live(rounds, *ids) == [1, 1]


# ---- deadlines


def test_the_earlier_deadline_is_first_inside_a_priority() -> None:
    rounds = cluster(1000)
    ids = submit(
        rounds,
        job_spec(1),
        job_spec(2, deadline_at_ms=WALL_MS + 9000),
        job_spec(3, deadline_at_ms=WALL_MS + 5000),
    )
    rounds.go()

    assert live(rounds, *ids) == [0, 0, 1]


def test_a_job_that_can_no_longer_meet_its_deadline_ends() -> None:
    rounds = cluster(1000)
    spec = job_spec(1, needs={"cpu": 9000}, deadline_at_ms=WALL_MS + 9000, expect_seconds=5.0)
    [job] = submit(rounds, spec)
    rounds.go()
    early = deadline.decide(rounds.mirror, job, at(0))
    apply(rounds.mirror, deadline.decide(rounds.mirror, job, at(4001)))
    apply(rounds.mirror, batch.decide(rounds.mirror, job, at(4001)))
    status = rounds.mirror.jobs[job].status

    assert (early.puts, early.wake_at_ms) == ((), 4001)
    assert status is not None
    assert (status.state, status.reason) == (JobState.TIMED_OUT, "it can no longer be over by its deadline")


# ---- gangs


def test_a_gang_starts_whole_or_not_at_all() -> None:
    rounds = cluster(2000, nodes=2)
    [gang, small] = submit(rounds, job_spec(1, count=5, gang=True), job_spec(2, expect_seconds=0.001))
    rounds.go()
    before = live(rounds, gang, small)
    add_node(rounds.mirror, "n9", {"cpu": 1000})
    rounds.go(10)

    assert before == [0, 1]
    assert live(rounds, gang) == [0]
    rounds.report(placements(rounds.mirror, small)[0], 2, ReportedState.EXITED, (0, 1), exit_code=0)
    rounds.go(20)
    assert live(rounds, gang) == [5]


def test_two_gangs_that_fit_only_one_after_the_other_do_not_block_each_other() -> None:
    rounds = cluster(1000, nodes=4)
    ids = submit(rounds, job_spec(1, count=3, gang=True), job_spec(2, count=3, gang=True))
    rounds.go()
    first = live(rounds, *ids)
    for index, node in placements(rounds.mirror, ids[0]).items():
        rounds.report(node, 1, ReportedState.EXITED, (index, 1), exit_code=0)
    rounds.go(10)

    assert (first, live(rounds, ids[1])) == ([3, 0], [3])


def test_a_gang_whose_lost_task_fits_nowhere_restarts_as_a_whole() -> None:
    rounds = cluster(1000, nodes=3)
    [gang] = submit(rounds, job_spec(1, count=3, gang=True))
    rounds.go()
    start_all(rounds, gang)
    where = placements(rounds.mirror, gang)
    rounds.report(where[0], 1, ReportedState.LOST, (0, 1))
    add_node(rounds.mirror, where[0], {"cpu": 500})
    plan = rounds.go(10)

    assert [event.kind for event in plan.events] == ["task.evicted"]
    assert plan.why == "tasks 1-2 of job 1 stop: the gang starts again as a whole"
    assert rounds.go(20).puts == ()


# ---- backfill reservations


def test_small_jobs_do_not_delay_the_head_of_line() -> None:
    rounds = cluster(4000)
    [running] = submit(rounds, job_spec(1, needs={"cpu": 3000}, expect_seconds=10.0))
    rounds.go()
    start_all(rounds, running)
    [large, long, short] = submit(
        rounds,
        job_spec(2, needs={"cpu": 4000}),
        job_spec(3, expect_seconds=60.0),
        job_spec(4, expect_seconds=5.0),
    )
    rounds.go(10)
    behind = live(rounds, large, long, short)
    rounds.report("n0", 4, ReportedState.EXITED, (0, 1), exit_code=0, ms=5000)
    rounds.report("n0", 1, ReportedState.EXITED, (0, 1), exit_code=0, ms=10_000)
    rounds.go(10_000)

    assert behind == [0, 0, 1]
    assert live(rounds, large, long) == [1, 0]


def test_only_jobs_that_fit_beside_the_head_of_line_start() -> None:
    rounds = cluster(9000)
    [running] = submit(rounds, job_spec(1, needs={"cpu": 4000}, expect_seconds=10.0))
    rounds.go()
    start_all(rounds, running)
    [large, many] = submit(rounds, job_spec(2, needs={"cpu": 8000}), job_spec(3, count=5))
    rounds.go(10)

    assert live(rounds, large, many) == [0, 1]


def test_the_reservation_of_a_canceled_job_is_released() -> None:
    rounds = cluster(4000)
    [running] = submit(rounds, job_spec(1, needs={"cpu": 3000}, expect_seconds=10.0))
    rounds.go()
    start_all(rounds, running)
    beside = AffinityTerm(Constraint("job", Op.EQUAL, ("job-1",)))
    [large, small] = submit(rounds, job_spec(2, needs={"cpu": 4000}, near=(beside,)), job_spec(3))
    rounds.go(10)
    held_back = live(rounds, small)
    rounds.mirror.apply(JobStatus(large, JobState.CANCELED))
    rounds.go(20)

    assert held_back == [0]
    assert live(rounds, small) == [1]


def test_later_jobs_may_use_nodes_without_a_reservation() -> None:
    rounds = cluster(4000, nodes=2)
    [running] = submit(rounds, job_spec(1, count=2, needs={"cpu": 2000}, expect_seconds=10.0))
    rounds.go()
    start_all(rounds, running)
    [large, small] = submit(rounds, job_spec(2, needs={"cpu": 4000}), job_spec(3, count=4))
    rounds.go(10)

    assert live(rounds, large, small) == [0, 2]


def test_a_job_too_large_for_every_node_delays_no_other() -> None:
    rounds = cluster(4000)
    ids = submit(rounds, job_spec(1, needs={"cpu": 5000}), job_spec(2, count=4))
    rounds.go()

    assert live(rounds, *ids) == [0, 4]


@pytest.mark.parametrize(("backfill", "started"), [(True, 1), (False, 0)])
def test_without_backfill_no_job_overtakes_the_head_of_line(backfill: bool, started: int) -> None:
    rounds = cluster(4000)
    rounds.scheduler = Scheduler(SchedulerSettings(backfill=backfill))
    [running] = submit(rounds, job_spec(1, needs={"cpu": 3000}, expect_seconds=10.0))
    rounds.go()
    start_all(rounds, running)
    [_, short] = submit(rounds, job_spec(2, needs={"cpu": 4000}), job_spec(3, expect_seconds=1.0))
    rounds.go(10)

    assert live(rounds, short) == [started]
