"""A job's way: begun, tried, tried again, canceled, ended."""

from rota.controllers import batch
from rota.engine.state.mirror import Mirror
from rota.model.columns import column
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobIntent, JobStatus, Recovery, Unschedulable
from rota.model.lifecycle import JobState, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import NO_CHANGE
from rota.model.recovery import Retry
from rota.model.task import TaskBlock
from rota.testing.builders import at, job_spec
from tests.controllers.one_node_stage import end, job, stage, state

ONE = JobId("1")


def tasks(entry_tasks: TaskBlock, name: str) -> list[int]:
    found: list[int] = column(entry_tasks, name).tolist()
    return found


# ---- beginning


def test_a_job_begins_when_its_cluster_is_chosen() -> None:
    mirror = Mirror()
    mirror.apply(job_spec(count=3))
    before = batch.decide(mirror, "1", at(0))
    mirror.apply(JobCluster(ONE, "default"))
    plan = batch.decide(mirror, "1", at(0))

    assert before is NO_CHANGE
    assert plan.puts == (JobStatus(ONE, JobState.ACTIVE),)
    assert plan.why == "3 tasks of job 1 wanted"


def test_a_job_begins_once() -> None:
    mirror = Mirror()
    for record in (job_spec(), JobCluster(ONE, "default"), JobStatus(ONE, JobState.ACTIVE)):
        mirror.apply(record)

    assert batch.decide(mirror, "1", at(0)) is NO_CHANGE


def test_a_job_that_is_not_there_is_left_alone() -> None:
    assert batch.decide(Mirror(), "1", at(0)) is NO_CHANGE
    assert batch.decide(Mirror(), "1/0", at(0)) is NO_CHANGE


def test_a_job_canceled_before_it_began_never_begins() -> None:
    mirror = Mirror()
    for record in (job_spec(), JobCluster(ONE, "default"), JobIntent(ONE, cancel=True, reason="oops")):
        mirror.apply(record)
    (status,) = batch.decide(mirror, "1", at(7)).puts

    assert isinstance(status, JobStatus)
    assert (status.state, status.reason, status.exit_code) == (JobState.CANCELED, "oops", None)


def test_after_a_start_every_job_that_has_not_ended_is_looked_at() -> None:
    made = stage(cpu=1)
    made.submit(job_spec(1))
    made.submit(job_spec(2, count=BLOCK_TASKS + 1))
    end(made, 0, 0)

    assert list(batch.start(made.mirror)) == ["2/0", "2"]


# ---- trying again


def test_a_failure_is_tried_again_after_its_pause_and_the_next_pause_is_longer() -> None:
    made = stage()
    made.submit(job_spec(retries=2, retry=Retry(jitter_percent=0)))
    end(made, 0, 1)
    first = tasks(job(made).tasks[0], "not_before")
    made.wait(1000)
    end(made, 0, 1)

    task = job(made).tasks[0]
    assert (first, tasks(task, "not_before")) == ([1000], [3000])
    assert (tasks(task, "wanted"), tasks(task, "failures"), tasks(task, "state")) == (
        [2],
        [2],
        [TaskState.WANTED],
    )


def test_the_last_failure_is_the_result() -> None:
    made = stage()
    made.submit(job_spec(retries=1))
    end(made, 0, 1)
    made.wait(1000)
    end(made, 0, 9)

    status = job(made).status
    assert status is not None
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, 9, "exit 9")


def test_a_lost_node_costs_no_retry_and_no_pause() -> None:
    made = stage(b=1)
    made.submit(job_spec(retries=1))
    made.cut(made.machines["a"])
    made.wait(30_000)

    task = job(made).tasks[0]
    assert (tasks(task, "failures"), tasks(task, "not_before")) == ([0], [made.now_ms])
    assert list(made.machines["b"].held) == [(ONE, 0)]


def test_a_lost_node_ends_a_task_whose_owner_shall_not_recover_it() -> None:
    made = stage(b=1)
    made.submit(job_spec(recovery=Recovery.NONE))
    made.cut(made.machines["a"])
    made.wait(30_000)

    status = job(made).status
    assert status is not None
    assert status.state is JobState.FAILED
    assert status.reason == "node a was lost: silent for 30 s"
    assert status.exit_code is None


def test_a_lost_node_cancels_a_task_whose_owner_says_so() -> None:
    made = stage(b=1)
    made.submit(job_spec(recovery=Recovery.CANCEL))
    made.cut(made.machines["a"])
    made.wait(30_000)

    assert state(made) is JobState.CANCELED


def test_a_refusal_is_not_a_try() -> None:
    made = stage(b=1)
    made.machines["a"].refuses = "no"
    made.submit(job_spec())
    end(made, 0, 0)

    assert state(made) is JobState.SUCCEEDED
    assert tasks(job(made).tasks[0], "wanted") == [0]


def test_the_same_report_settled_twice_changes_nothing() -> None:
    made = stage()
    made.submit(job_spec(retries=5))
    end(made, 0, 1)

    assert batch.decide(made.mirror, "1/0", made.now) is NO_CHANGE


# ---- canceling


def test_a_canceled_job_is_over_when_the_last_task_has_stopped() -> None:
    made = stage(cpu=2)
    made.submit(job_spec(count=4))
    made.machines["a"].silent = True
    made.cancel(ONE, "enough")
    meanwhile = state(made)
    made.speak(made.machines["a"])

    status = job(made).status
    assert status is not None
    assert meanwhile is JobState.CANCELING
    assert (status.state, status.reason) == (JobState.CANCELED, "enough")
    assert made.machines["a"].held == {}


def test_a_canceled_job_without_a_placed_task_is_over_at_once() -> None:
    made = stage(cpu=1)
    made.submit(job_spec(needs={"cpu": 64_000}, count=BLOCK_TASKS * 2))
    made.cancel(ONE)

    status = job(made).status
    assert status is not None
    assert (status.state, status.reason) == (JobState.CANCELED, "canceled by its user")
    assert job(made).tasks == {}


def test_what_ended_before_the_stop_keeps_its_result() -> None:
    made = stage(cpu=2)
    made.submit(job_spec(count=3))
    end(made, 0, 0)
    machine = made.machines["a"]
    machine.silent = True
    made.cancel(ONE)
    machine.end((ONE, 1), 0, 60_000)
    made.speak(machine)

    found = tasks(job(made).tasks[0], "state")
    assert found == [TaskState.SUCCEEDED, TaskState.SUCCEEDED, TaskState.CANCELED]
    assert state(made) is JobState.CANCELED


def test_a_task_that_pauses_after_a_failure_is_canceled_with_its_job() -> None:
    made = stage()
    made.submit(job_spec(retries=5))
    end(made, 0, 1)
    made.cancel(ONE)
    made.wait(5000)

    assert state(made) is JobState.CANCELED
    assert made.machines["a"].held == {}


def test_a_cancel_is_over_when_the_node_that_should_stop_it_is_lost() -> None:
    made = stage()
    made.submit(job_spec())
    made.cut(made.machines["a"])
    made.cancel(ONE)
    meanwhile = state(made)
    made.wait(30_000)

    assert (meanwhile, state(made)) == (JobState.CANCELING, JobState.CANCELED)


def test_a_cancel_is_over_when_what_waited_on_a_node_is_withdrawn() -> None:
    made = stage(cpu=1)
    made.submit(job_spec(count=6))
    end(made, 0, 0, ran_ms=20)
    made.cancel(ONE)

    assert state(made) is JobState.CANCELED


def test_a_cancel_is_over_when_the_offer_was_refused_meanwhile() -> None:
    made = stage(cpu=1)
    machine = made.machines["a"]
    machine.silent = True
    made.submit(job_spec())
    made.cancel(ONE)
    machine.refuses = "no such directory"
    made.speak(machine)

    assert state(made) is JobState.CANCELED


def test_a_cancel_is_over_when_the_offer_was_never_answered_and_its_node_is_suspect() -> None:
    made = stage(cpu=1)
    machine = made.machines["a"]
    machine.silent = True
    made.submit(job_spec())
    made.cancel(ONE)
    made.cut(machine)
    made.wait(60_000)

    assert state(made) is JobState.CANCELED


def test_a_cancel_is_over_when_the_offer_was_never_sent() -> None:
    made = stage(cpu=1)
    machine = made.machines["a"]
    machine.silent = True
    made.submit(job_spec())
    machine.inbox.clear()
    made.restart()  # the offer is on disk and was never sent
    made.cancel(ONE)
    made.call(machine)
    made.wait(60_000)

    assert state(made) is JobState.CANCELED


# ---- ending


def test_a_job_ends_once_and_its_result_never_changes() -> None:
    made = stage()
    made.submit(job_spec(count=2))
    end(made, 0, 0)
    end(made, 1, 0)
    before = job(made).status
    made.put(JobIntent(ONE, cancel=True))
    made.wait(1000)

    assert before is not None
    assert before.state is JobState.SUCCEEDED
    assert job(made).status == before


def test_a_job_that_cannot_start_and_does_not_want_to_wait_is_rejected_with_the_reason() -> None:
    made = stage(cpu=1)
    made.submit(job_spec(count=2, when_unschedulable=Unschedulable.REJECT))
    status = job(made).status

    assert status is not None
    assert status.state is JobState.REJECTED
    assert status.reason == "only 1 of its 2 tasks could start now"
