"""Forged: servers with a memory store that stop, lose or repeat what their nodes run."""

from collections.abc import Callable

from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.sim.checks.adoption import ADOPTED_MS, AdoptionChecks
from rota.testing.records import placed, reported
from tests.sim.check_stage import ATTEMPTS, ONE, SPEC, STATUSES, CheckStage


class Forgetful(CheckStage):
    """A stage with the checks of a memory store."""

    def __init__(self) -> None:
        super().__init__(checks=AdoptionChecks)

    def forget(self) -> None:
        assert isinstance(self.checks, AdoptionChecks)
        self.checks.forget()


def one_number_for_two_submits() -> None:
    stage = Forgetful()
    stage.checks.acknowledged("a", ONE, None)
    stage.checks.acknowledged("b", ONE, None)


def a_succeeded_task_runs_again() -> None:
    stage = Forgetful()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.process_ended("n1", stage.process_started("n1"), 0)
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))
    stage.checks.forgotten([(ONE, 0, 1)])
    stage.forget()
    stage.write(SPEC, JobStatus(ONE, JobState.ACTIVE), placed(placed(ATTEMPTS, [0], "n1"), [0], "n2"))
    stage.process_started("n2", attempt=2)


def a_process_is_stopped_without_an_order() -> None:
    stage = Forgetful()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    child = stage.process_started("n1")
    stage.process_ended("n1", child, -15)


def a_result_of_an_unknown_job_is_acknowledged() -> None:
    stage = Forgetful()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.process_ended("n1", stage.process_started("n1"), 0)
    stage.forget()
    stage.checks.forgotten([(ONE, 0, 1)])


def a_running_attempt_is_not_adopted() -> None:
    stage = Forgetful()
    stage.checks.nodes.is_healthy = lambda _: True
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.process_started("n1")
    stage.forget()
    stage.checks.check()
    stage.world.run(stage.world.now_ms + ADOPTED_MS + 1)
    stage.checks.check()


def an_attempt_is_adopted_and_succeeds() -> None:
    """Not a forgery: violates nothing."""
    stage = Forgetful()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    child = stage.process_started("n1")
    stage.forget()
    stage.write(SPEC, JobStatus(ONE, JobState.ACTIVE), placed(ATTEMPTS, [0], "n1"))
    stage.process_ended("n1", child, 0)
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))
    stage.checks.forgotten([(ONE, 0, 1)])
    stage.checks.acknowledged("a", JobId("1"), None)
    stage.checks.check()


FORGED: dict[Callable[[], None], str] = {
    one_number_for_two_submits: "job 1 was made by submit a and by submit b",
    a_succeeded_task_runs_again: "task 0 of job 1 has succeeded, and runs again as attempt 2",
    a_process_is_stopped_without_an_order: "attempt 1 of task 0 of job 1 was stopped without an order",
    a_result_of_an_unknown_job_is_acknowledged: (
        "the result of attempt 1 of task 0 of job 1 is acknowledged, and the job is not known"
    ),
    a_running_attempt_is_not_adopted: (
        "attempt 1 of task 0 of job 1 runs on n1, which is healthy, and is not known"
    ),
}
