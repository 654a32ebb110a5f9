"""count_accepted(): number of tasks of a job that a node has accepted, regardless of cancellations."""

import pytest

from rota.engine.state.entries import JobEntry
from rota.model.ids import JobId
from rota.model.job import JobIntent, UnplaceableCause, Unschedulable
from rota.model.lifecycle import JobState
from rota.model.recovery import Retry
from rota.scheduler.order import count_accepted
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine

JOB = JobId("1")
ONE_CPU = {"cpu": 1000}


@pytest.fixture
def machine() -> StageMachine:
    return StageMachine("a", {"cpu": 1000}, {})


@pytest.fixture
def stage(machine: StageMachine) -> Stage:
    made = Stage()
    made.join(machine)
    made.run_to_quiescence()
    return made


def job_of(stage: Stage) -> JobEntry:
    return stage.mirror.jobs[JOB]


def cancel_task(stage: Stage, index: int) -> None:
    stage.put(JobIntent(JOB, cancel_tasks={index: False}))
    stage.run_to_quiescence()


def test_a_task_canceled_while_every_node_refuses_it_was_not_accepted(
    stage: Stage, machine: StageMachine
) -> None:
    machine.refuses = "no such directory"
    stage.submit(job_spec(1, count=3, needs=ONE_CPU))
    stage.run_to_quiescence()

    cancel_task(stage, 0)
    stage.restart()
    stage.run_to_quiescence()

    record = job_of(stage).unplaceable
    assert count_accepted(job_of(stage)) == 0
    assert record is not None
    assert record.cause is UnplaceableCause.REFUSED


def test_a_canceled_running_task_was_accepted(stage: Stage) -> None:
    stage.submit(job_spec(1, count=3, needs=ONE_CPU, when_unschedulable=Unschedulable.SCALE))
    stage.run_to_quiescence()

    cancel_task(stage, 0)

    assert job_of(stage).task_counts.as_dict()["canceled"] == 1
    assert count_accepted(job_of(stage)) == 2


def test_a_task_canceled_between_two_tries_was_not_accepted(stage: Stage, machine: StageMachine) -> None:
    retry = Retry(delay_ms=600_000, delay_max_ms=600_000)
    stage.submit(job_spec(1, count=2, needs=ONE_CPU, retries=3, retry=retry))
    stage.run_to_quiescence()
    machine.end((JOB, 0), 1, 1000)
    stage.run_to_quiescence()
    before = count_accepted(job_of(stage))

    cancel_task(stage, 0)

    assert job_of(stage).task_counts.as_dict()["canceled"] == 1
    assert count_accepted(job_of(stage)) == before


def test_a_job_that_must_start_now_is_rejected_although_a_refused_task_was_canceled() -> None:
    stage, machine = Stage(), StageMachine("a", {"cpu": 3000}, {})
    stage.join(machine)
    machine.deaf = True
    stage.submit(job_spec(1, count=3, needs=ONE_CPU, when_unschedulable=Unschedulable.REJECT))
    stage.run_to_quiescence()
    assert job_of(stage).task_counts.as_dict()["offered"] == 3
    cancel_task(stage, 0)
    machine.deaf, machine.refuses = False, "no such directory"
    stage.call(machine)
    stage.wait(1000)

    status = job_of(stage).status
    assert status is not None
    assert status.state is JobState.REJECTED
