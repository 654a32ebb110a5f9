"""Forged: servers with a store in memory that stop, lose or repeat what their nodes run."""

from collections.abc import Callable

from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.sim.checks.adoption import ADOPTED_MS, AdoptionChecks
from rota.testing.records import placed, reported
from tests.sim.stage import ATTEMPTS, ONE, SPEC, STATUSES, Stage


class Forgetful(Stage):
    def __init__(self) -> None:
        super().__init__(made=AdoptionChecks)

    def forget(self) -> None:
        assert isinstance(self.checks, AdoptionChecks)
        self.checks.forget()


def one_number_for_two_submits() -> None:
    stage = Forgetful()
    stage.checks.acknowledged("a", ONE, None)
    stage.checks.acknowledged("b", ONE, None)


def what_has_succeeded_runs_again() -> None:
    stage = Forgetful()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.died("n1", stage.born("n1"), 0)
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))
    stage.checks.forgotten([(ONE, 0, 1)])
    stage.forget()
    stage.write(SPEC, JobStatus(ONE, JobState.ACTIVE), placed(placed(ATTEMPTS, [0], "n1"), [0], "n2"))
    stage.born("n2", attempt=2)


def work_that_nobody_stopped_is_stopped() -> None:
    stage = Forgetful()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    child = stage.born("n1")
    stage.died("n1", child, -15)


def a_result_is_stored_for_a_job_that_is_not_known() -> None:
    stage = Forgetful()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.died("n1", stage.born("n1"), 0)
    stage.forget()
    stage.checks.forgotten([(ONE, 0, 1)])


def what_runs_is_not_known() -> None:
    stage = Forgetful()
    stage.checks.nodes.is_well = lambda _: True
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.born("n1")
    stage.forget()
    stage.checks.check()
    stage.world.run(stage.world.now_ms + ADOPTED_MS + 1)
    stage.checks.check()


def work_is_adopted_and_ends_well() -> None:
    """Nothing is wrong with this."""
    stage = Forgetful()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    child = stage.born("n1")
    stage.forget()
    stage.write(SPEC, JobStatus(ONE, JobState.ACTIVE), placed(ATTEMPTS, [0], "n1"))
    stage.died("n1", child, 0)
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))
    stage.checks.forgotten([(ONE, 0, 1)])
    stage.checks.acknowledged("a", JobId("1"), None)
    stage.checks.check()


FORGED: dict[Callable[[], None], str] = {
    one_number_for_two_submits: "job 1 was made by submit a and by submit b",
    what_has_succeeded_runs_again: "task 0 of job 1 has succeeded, and runs again as attempt 2",
    work_that_nobody_stopped_is_stopped: "attempt 1 of task 0 of job 1 was stopped, for which nobody asked",
    a_result_is_stored_for_a_job_that_is_not_known: (
        "the result of attempt 1 of task 0 of job 1 is said to be stored, and the job is not known"
    ),
    what_runs_is_not_known: "attempt 1 of task 0 of job 1 runs on n1, which is well, and is not known",
}
