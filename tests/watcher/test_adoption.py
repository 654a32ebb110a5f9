"""Jobs that nodes bring back to a server started without records are adopted."""

import msgspec
import pytest

from rota.engine.state.mirror import Mirror
from rota.model.adoption import JobAdoption, attempts_before, jobs_before
from rota.model.attempt import LOOKAHEAD
from rota.model.columns import ints
from rota.model.ids import JobId, NodeId
from rota.model.job import JobKind, JobSpec
from rota.model.lifecycle import JobState, TaskState
from rota.model.limits import ADOPTION_MS, BLOCK_TASKS
from rota.model.messages import AttemptReport, JobReports, ReportedState
from rota.model.plan import Plan
from rota.model.shape import RunMode
from rota.testing.builders import add_job, add_node, apply, at, job_reports, job_spec
from rota.testing.stage import Stage, StageMachine
from rota.watcher.adoption import BroughtJob, unknown
from tests.controllers.one_node_stage import end, job, stage, state

A, B, ONE = NodeId("a"), NodeId("b"), JobId("1")
EPOCH = 2


def restarted(*nodes: NodeId) -> Mirror:
    """The mirror of a server that was just started: it knows its nodes only."""
    mirror = Mirror()
    for node in nodes or (A, B):
        add_node(mirror, node)
    return mirror


def bring(mirror: Mirror, node: NodeId, spec: JobSpec, *brought: AttemptReport) -> Plan:
    return apply(mirror, BroughtJob(node, spec, brought, EPOCH).adopt(mirror, at(5_000)))


def runs(index: int, attempt: int = 1, state: ReportedState = ReportedState.RUNNING) -> AttemptReport:
    return AttemptReport(index, attempt, state)


def assigned(mirror: Mirror, node: NodeId) -> dict[tuple[JobId, int], int]:
    return dict(mirror.nodes[node].assigned)


def task_states(mirror: Mirror) -> list[TaskState]:
    return [TaskState(state) for state in mirror.jobs[ONE].tasks[0].state]


def test_an_adopted_job_is_active_and_its_missing_tasks_are_held() -> None:
    mirror, spec = restarted(), job_spec(1, count=3, home="default", user="ann", namespace="films")
    plan = bring(mirror, A, spec, runs(1, 4))

    adopted = mirror.jobs[ONE]
    assert adopted.spec == spec
    assert adopted.status is not None
    assert adopted.status.state is JobState.ACTIVE
    assert adopted.adoption == JobAdoption(ONE, at(5_000).wall_ms, ADOPTION_MS, attempts_before(EPOCH))
    assert task_states(mirror) == [TaskState.HELD, TaskState.WANTED, TaskState.HELD]
    assert assigned(mirror, A) == {(ONE, 1): 4}
    assert [event.kind for event in plan.events] == ["job.adopted"]


def test_a_second_node_adds_its_tasks_to_the_same_job() -> None:
    mirror, spec = restarted(), job_spec(1, count=3)
    bring(mirror, A, spec, runs(0))
    bring(mirror, B, spec, runs(2, 7, ReportedState.QUEUED))

    assert list(mirror.jobs) == [ONE]
    assert (assigned(mirror, A), assigned(mirror, B)) == ({(ONE, 0): 1}, {(ONE, 2): 7})
    assert list(mirror.jobs[ONE].attempts[0].flags) == [0, 0, LOOKAHEAD]
    assert task_states(mirror) == [TaskState.WANTED, TaskState.HELD, TaskState.WANTED]


def test_the_higher_attempt_of_a_task_on_two_nodes_counts() -> None:
    mirror, spec = restarted(), job_spec(1)
    bring(mirror, A, spec, runs(0, 2))
    bring(mirror, B, spec, runs(0, 3))
    late = bring(mirror, A, spec, runs(0, 2))
    same = bring(mirror, A, spec, runs(0, 3))

    assert (assigned(mirror, A), assigned(mirror, B)) == ({}, {(ONE, 0): 3})
    assert [old.number for old in mirror.jobs[ONE].attempts[0].older] == [2]
    assert (late.puts, same.puts) == ((), ())


def test_the_newest_version_of_a_spec_counts_and_its_new_tasks_are_held() -> None:
    mirror, old = restarted(), job_spec(1, count=2)
    new = msgspec.structs.replace(old, count=4, version=2, priority=90)
    bring(mirror, A, old, runs(0))
    bring(mirror, B, new, runs(3))
    bring(mirror, A, old, runs(1))

    assert mirror.jobs[ONE].spec == new
    assert task_states(mirror) == [
        *(TaskState.WANTED, TaskState.WANTED, TaskState.HELD, TaskState.WANTED),
    ]


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(runs(3), id="a task that the job does not have"),
        pytest.param(runs(0, 0), id="no attempt"),
        pytest.param(runs(0, attempts_before(EPOCH + 1) + 1), id="a number that no server has given out"),
    ],
)
def test_an_impossible_attempt_is_not_adopted(report: AttemptReport) -> None:
    mirror = restarted()
    plan = bring(mirror, A, job_spec(1, count=3), report)

    assert plan == Plan()
    assert not mirror.jobs


def test_only_jobs_of_an_earlier_server_are_requested() -> None:
    mirror = restarted()
    add_job(mirror, job_spec(7))
    own = jobs_before(EPOCH) + 1
    inventory = [job_reports(number, ReportedState.RUNNING, (0, 1)) for number in (own, 9, 7, 3)]
    inventory += [JobReports(JobId(name), [runs(0)]) for name in ("", "x", "-1", "²")]

    assert [found.job for found in unknown(mirror, A, inventory, EPOCH)] == ["3", "9"]


def test_an_adopted_attempt_is_not_requested_again() -> None:
    mirror = restarted()
    bring(mirror, A, job_spec(1, count=2), runs(0))

    assert unknown(mirror, A, [job_reports(1, ReportedState.RUNNING, (0, 1))], EPOCH) == []
    assert len(unknown(mirror, B, [job_reports(1, ReportedState.RUNNING, (1, 1))], EPOCH)) == 1


def test_adopted_jobs_are_listed_by_number_in_any_order_of_arrival() -> None:
    mirror = restarted()
    for number in (5, 12, 3, 7, 4):
        bring(mirror, A, job_spec(number), runs(0))

    assert list(mirror.jobs) == ["3", "4", "5", "7", "12"]


def test_all_tasks_of_an_array_are_held_except_those_brought_back() -> None:
    mirror = restarted()
    bring(mirror, A, job_spec(1, count=3 * BLOCK_TASKS - 1), runs(BLOCK_TASKS + 3))

    adopted = mirror.jobs[ONE]
    assert (adopted.task_counts.held, adopted.task_counts.live) == (3 * BLOCK_TASKS - 2, 1)
    assert adopted.ready(0, 10) == []


def test_tasks_carried_by_a_rerun_succeeded_and_undesired_ones_are_not_held() -> None:
    mirror = restarted()
    bring(mirror, A, job_spec(1, count=6, desired_count=4, carried=((0, 1),)), runs(2))

    assert task_states(mirror) == [
        *(TaskState.SUCCEEDED, TaskState.SUCCEEDED, TaskState.WANTED, TaskState.HELD),
        *(TaskState.WANTED, TaskState.WANTED),
    ]
    assert mirror.jobs[ONE].task_counts.pending == 0


def test_gpus_of_an_adopted_attempt_stay_allocated() -> None:
    mirror = Mirror()
    add_node(mirror, A, {"cpu": 4000, "gpu": 2000})
    bring(mirror, A, job_spec(1, needs={"gpu": 1000}), runs(0).with_gpus(0b10))

    assert mirror.jobs[ONE].attempts[0].gpus == {0: 0b10}
    assert mirror.jobs[ONE].devices[0].devices == 0b10


def test_a_system_job_keeps_the_indices_of_its_nodes() -> None:
    mirror, spec = restarted(), job_spec(1, count=4, kind=JobKind.SYSTEM)
    bring(mirror, B, spec, runs(3))
    bring(mirror, A, spec, runs(1))
    other = bring(mirror, A, spec, runs(0))

    assert list(mirror.jobs[ONE].task_by_node) == ["?0", "a", "?2", "b"]
    assert (assigned(mirror, A), assigned(mirror, B)) == ({(ONE, 1): 1}, {(ONE, 3): 1})
    assert other == Plan()


# ---- with the other components, on a stage


def test_missing_tasks_of_a_service_restart_with_higher_attempt_numbers() -> None:
    made = stage(cpu=4, b=4)
    made.submit(job_spec(1, count=2, kind=JobKind.SERVICE))
    made.machines["b"].crash()
    made.restart_without_jobs()
    made.call(made.machines["a"])
    made.call(made.machines["b"])
    before = job(made).task_counts.live
    made.wait(ADOPTION_MS)

    assert (before, job(made).task_counts.live) == (1, 2)
    assert max(ints(job(made).attempts[0], "number")) > attempts_before(made.epoch)


def test_a_one_at_a_time_task_is_not_replaced_before_its_lease_expires() -> None:
    made = Stage()
    for name in ("a", "b"):
        made.join(StageMachine(name, {"cpu": 4000}, {"leases": "pid-namespace"}))
    made.submit(job_spec(1, count=2, kind=JobKind.SERVICE, run=RunMode.ONE_AT_A_TIME, lease_seconds=90.0))
    made.restart_without_jobs()
    made.call(made.machines["a"])
    here = job(made).task_counts.live
    made.wait(ADOPTION_MS + 30_000)
    then = job(made).task_counts.live
    made.wait(90_000)

    assert (here, then, job(made).task_counts.live) == (1, 1, 2)


def test_new_nodes_get_system_tasks_when_no_other_node_can_bring_them() -> None:
    made = stage(cpu=4, b=4)
    made.submit(job_spec(1, count=0, kind=JobKind.SYSTEM))
    made.restart_without_jobs()
    made.call(made.machines["a"])
    made.join(StageMachine("c", {"cpu": 4000}, {}))
    early = list(job(made).task_by_node)
    made.call(made.machines["b"])
    made.wait(ADOPTION_MS)

    assert early == ["a"]
    assert list(job(made).task_by_node) == ["a", "b", "c"]
    assert job(made).task_counts.live == 3


def test_a_late_node_brings_its_tasks_as_long_as_others_of_the_job_run() -> None:
    made = stage(cpu=1, b=1)
    made.submit(job_spec(1, count=2))
    made.restart_without_jobs()
    made.call(made.machines["a"])
    made.wait(10 * ADOPTION_MS)
    made.call(made.machines["b"])
    for index in (0, 1):
        end(made, index, 0)

    assert state(made) is JobState.SUCCEEDED


def test_tasks_that_no_node_brings_back_are_lost_and_fail_the_job() -> None:
    made = stage(cpu=1, b=1)
    made.submit(job_spec(1, count=3))
    made.restart_without_jobs()
    made.call(made.machines["a"])
    end(made, next(index for _, index in made.machines["a"].held), 0)
    before = state(made)
    made.wait(ADOPTION_MS)
    made.call(made.machines["b"])

    assert (before, state(made)) == (JobState.ACTIVE, JobState.FAILED)
    assert job(made).task_counts.as_dict()["lost"] == 2
    assert made.machines["b"].held == {}


def test_a_missing_task_is_started_again_when_its_user_releases_it() -> None:
    made = stage(cpu=4, b=1)
    made.submit(job_spec(1, count=2))
    made.restart_without_jobs()
    made.call(made.machines["a"])
    made.wait(2 * ADOPTION_MS)
    made.release(ONE)

    assert job(made).task_counts.live == 2


def test_a_canceled_job_is_stopped_also_on_nodes_that_bring_it_later() -> None:
    made = stage(cpu=1, b=1)
    made.submit(job_spec(1, count=2))
    made.restart_without_jobs()
    made.call(made.machines["a"])
    made.cancel(ONE)
    made.call(made.machines["b"])

    assert state(made) is JobState.CANCELED
    assert not made.machines["a"].held
    assert not made.machines["b"].held


def test_with_a_durable_store_unknown_attempts_are_stopped() -> None:
    made: Stage = stage(cpu=1)
    made.submit(job_spec(1))
    made.records = {key: value for key, value in made.records.items() if "node/" in key}
    made.restart()
    made.call(made.machines["a"])

    assert not made.mirror.jobs
    assert not made.machines["a"].held
