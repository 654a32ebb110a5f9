"""The life of a job: start, attempts, retries, cancellation and end."""

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


# ---- start


def test_a_job_starts_when_its_cluster_is_chosen() -> None:
    mirror = Mirror()
    mirror.apply(job_spec(count=3))
    before = batch.decide(mirror, "1", at(0))
    mirror.apply(JobCluster(ONE, "default"))
    plan = batch.decide(mirror, "1", at(0))

    assert before is NO_CHANGE
    assert plan.puts == (JobStatus(ONE, JobState.ACTIVE),)
    assert plan.why == "3 tasks of job 1 wanted"


def test_a_job_starts_once() -> None:
    mirror = Mirror()
    for record in (job_spec(), JobCluster(ONE, "default"), JobStatus(ONE, JobState.ACTIVE)):
        mirror.apply(record)

    assert batch.decide(mirror, "1", at(0)) is NO_CHANGE


def test_a_key_of_an_unknown_job_is_ignored() -> None:
    assert batch.decide(Mirror(), "1", at(0)) is NO_CHANGE
    assert batch.decide(Mirror(), "1/0", at(0)) is NO_CHANGE


def test_a_job_canceled_before_its_start_never_starts() -> None:
    mirror = Mirror()
    for record in (job_spec(), JobCluster(ONE, "default"), JobIntent(ONE, cancel=True, reason="oops")):
        mirror.apply(record)
    (status,) = batch.decide(mirror, "1", at(7)).puts

    assert isinstance(status, JobStatus)
    assert (status.state, status.reason, status.exit_code) == (JobState.CANCELED, "oops", None)


def test_after_a_restart_every_unfinished_job_is_decided() -> None:
    cluster = stage(cpu=1)
    cluster.submit(job_spec(1))
    cluster.submit(job_spec(2, count=BLOCK_TASKS + 1))
    end(cluster, 0, 0)

    assert list(batch.start(cluster.mirror)) == ["2/0", "2"]


# ---- retries


def test_a_failure_is_retried_after_a_growing_backoff() -> None:
    cluster = stage()
    cluster.submit(job_spec(retries=2, retry=Retry(jitter_percent=0)))
    end(cluster, 0, 1)
    first = tasks(job(cluster).tasks[0], "not_before")
    cluster.wait(1000)
    end(cluster, 0, 1)

    task = job(cluster).tasks[0]
    assert (first, tasks(task, "not_before")) == ([1000], [3000])
    assert (tasks(task, "wanted"), tasks(task, "failures"), tasks(task, "state")) == (
        [2],
        [2],
        [TaskState.WANTED],
    )


def test_the_last_failure_is_the_result() -> None:
    cluster = stage()
    cluster.submit(job_spec(retries=1))
    end(cluster, 0, 1)
    cluster.wait(1000)
    end(cluster, 0, 9)

    status = job(cluster).status
    assert status is not None
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, 9, "exit 9")


def test_a_lost_node_costs_no_retry_and_no_backoff() -> None:
    cluster = stage(b=1)
    cluster.submit(job_spec(retries=1))
    cluster.cut(cluster.machines["a"])
    cluster.wait(30_000)

    task = job(cluster).tasks[0]
    assert (tasks(task, "failures"), tasks(task, "not_before")) == ([0], [cluster.now_ms])
    assert list(cluster.machines["b"].held) == [(ONE, 0)]


def test_a_lost_node_ends_a_task_with_recovery_none() -> None:
    cluster = stage(b=1)
    cluster.submit(job_spec(recovery=Recovery.NONE))
    cluster.cut(cluster.machines["a"])
    cluster.wait(30_000)

    status = job(cluster).status
    assert status is not None
    assert status.state is JobState.FAILED
    assert status.reason == "node a was lost: silent for 30 s"
    assert status.exit_code is None


def test_a_lost_node_cancels_a_task_with_recovery_cancel() -> None:
    cluster = stage(b=1)
    cluster.submit(job_spec(recovery=Recovery.CANCEL))
    cluster.cut(cluster.machines["a"])
    cluster.wait(30_000)

    assert state(cluster) is JobState.CANCELED


def test_a_refusal_is_not_a_try() -> None:
    cluster = stage(b=1)
    cluster.machines["a"].refuses = "no"
    cluster.submit(job_spec())
    end(cluster, 0, 0)

    assert state(cluster) is JobState.SUCCEEDED
    assert tasks(job(cluster).tasks[0], "wanted") == [0]


def test_processing_the_same_report_twice_changes_nothing() -> None:
    cluster = stage()
    cluster.submit(job_spec(retries=5))
    end(cluster, 0, 1)

    assert batch.decide(cluster.mirror, "1/0", cluster.now) is NO_CHANGE


# ---- cancel


def test_a_canceled_job_is_over_when_the_last_task_has_stopped() -> None:
    cluster = stage(cpu=2)
    cluster.submit(job_spec(count=4))
    cluster.machines["a"].silent = True
    cluster.cancel(ONE, "enough")
    meanwhile = state(cluster)
    cluster.end_silence(cluster.machines["a"])

    status = job(cluster).status
    assert status is not None
    assert meanwhile is JobState.CANCELING
    assert (status.state, status.reason) == (JobState.CANCELED, "enough")
    assert cluster.machines["a"].held == {}


def test_a_canceled_job_without_a_placed_task_ends_immediately() -> None:
    cluster = stage(cpu=1)
    cluster.submit(job_spec(needs={"cpu": 64_000}, count=BLOCK_TASKS * 2))
    cluster.cancel(ONE)

    status = job(cluster).status
    assert status is not None
    assert (status.state, status.reason) == (JobState.CANCELED, "canceled by its user")
    assert job(cluster).tasks == {}


def test_a_task_that_ended_before_the_stop_keeps_its_result() -> None:
    cluster = stage(cpu=2)
    cluster.submit(job_spec(count=3))
    end(cluster, 0, 0)
    machine = cluster.machines["a"]
    machine.silent = True
    cluster.cancel(ONE)
    machine.end((ONE, 1), 0, 60_000)
    cluster.end_silence(machine)

    found = tasks(job(cluster).tasks[0], "state")
    assert found == [TaskState.SUCCEEDED, TaskState.SUCCEEDED, TaskState.CANCELED]
    assert state(cluster) is JobState.CANCELED


def test_a_task_in_backoff_is_canceled_with_its_job() -> None:
    cluster = stage()
    cluster.submit(job_spec(retries=5))
    end(cluster, 0, 1)
    cluster.cancel(ONE)
    cluster.wait(5000)

    assert state(cluster) is JobState.CANCELED
    assert cluster.machines["a"].held == {}


def test_a_cancel_is_over_when_the_node_that_should_stop_it_is_lost() -> None:
    cluster = stage()
    cluster.submit(job_spec())
    cluster.cut(cluster.machines["a"])
    cluster.cancel(ONE)
    meanwhile = state(cluster)
    cluster.wait(30_000)

    assert (meanwhile, state(cluster)) == (JobState.CANCELING, JobState.CANCELED)


def test_a_cancel_is_over_when_queued_attempts_are_withdrawn() -> None:
    cluster = stage(cpu=1)
    cluster.submit(job_spec(count=6))
    end(cluster, 0, 0, ran_ms=20)
    cluster.cancel(ONE)

    assert state(cluster) is JobState.CANCELED


def test_a_cancel_is_over_when_the_offer_was_refused_meanwhile() -> None:
    cluster = stage(cpu=1)
    machine = cluster.machines["a"]
    machine.silent = True
    cluster.submit(job_spec())
    cluster.cancel(ONE)
    machine.refuses = "no such directory"
    cluster.end_silence(machine)

    assert state(cluster) is JobState.CANCELED


def test_a_cancel_is_over_when_the_offer_was_never_answered_and_its_node_is_suspect() -> None:
    cluster = stage(cpu=1)
    machine = cluster.machines["a"]
    machine.silent = True
    cluster.submit(job_spec())
    cluster.cancel(ONE)
    cluster.cut(machine)
    cluster.wait(60_000)

    assert state(cluster) is JobState.CANCELED


def test_a_cancel_is_over_when_the_offer_was_never_sent() -> None:
    cluster = stage(cpu=1)
    machine = cluster.machines["a"]
    machine.silent = True
    cluster.submit(job_spec())
    machine.inbox.clear()
    cluster.restart()  # the offer is on disk and was never sent
    cluster.cancel(ONE)
    cluster.call(machine)
    cluster.wait(60_000)

    assert state(cluster) is JobState.CANCELED


# ---- end


def test_a_job_ends_once_and_its_result_never_changes() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=2))
    end(cluster, 0, 0)
    end(cluster, 1, 0)
    before = job(cluster).status
    cluster.put(JobIntent(ONE, cancel=True))
    cluster.wait(1000)

    assert before is not None
    assert before.state is JobState.SUCCEEDED
    assert job(cluster).status == before


def test_a_job_that_must_start_now_and_cannot_is_rejected_with_the_reason() -> None:
    cluster = stage(cpu=1)
    cluster.submit(job_spec(count=2, when_unschedulable=Unschedulable.REJECT))
    status = job(cluster).status

    assert status is not None
    assert status.state is JobState.REJECTED
    assert status.reason == "only 1 of its 2 tasks could start now"
