"""Forged: what tasks report is changed, lost, taken too late, told to nobody, or does not count."""

from collections.abc import Callable

from rota.apiserver.admission import results as admit_results
from rota.model.errors import Conflict, NotFound
from rota.model.lifecycle import AttemptState
from rota.model.plan import EventRecord
from rota.model.result import ResultRecord
from rota.sim.cluster.task_results import ResultCall
from rota.store import codec
from rota.store.protocol import Batch
from rota.testing.records import reported
from tests.sim.stage import ONE, STATUSES, Stage

SAID = ResultCall((ONE, 0, 1), 1, None)
FAILED = SAID._replace(failure="it diverged")


def write(stage: Stage, *results: ResultRecord, told: tuple[EventRecord, ...] | None = None) -> None:
    """With the events that tell of it, or with others."""
    events = tuple(admit_results._reported_event(result) for result in results) if told is None else told
    row = codec.encode_events(0, events) if events else None
    puts = [(str(result.key), codec.encode(result)) for result in results]
    stage.checks.committed(Batch(1, 0, 0, 0, puts, [], row))


def running() -> Stage:
    stage = Stage()
    stage.place("n1")
    return stage


def a_report_is_changed() -> None:
    stage = running()
    write(stage, SAID.result)
    write(stage, FAILED.result)


def a_report_is_deleted() -> None:
    stage = running()
    write(stage, SAID.result)
    stage.write(deletes=(str(SAID.result.key),))


def a_stale_attempt_reports() -> None:
    stage = Stage()
    stage.place("n1", "n2")
    write(stage, SAID.result)


def one_reports_after_its_end() -> None:
    stage = running()
    stage.write(reported(STATUSES, [0], AttemptState.STOPPED))
    write(stage, SAID.result)


def nobody_is_told_of_a_report() -> None:
    write(running(), SAID.result, told=())


def others_are_told_something_else() -> None:
    write(running(), SAID.result, told=(admit_results._reported_event(FAILED.result),))


def a_report_is_acknowledged_and_not_kept() -> None:
    running().checks.reported.answered(SAID, admit_results.ResultReported(SAID.result, is_new=True))


def a_good_report_is_refused() -> None:
    running().checks.reported.answered(SAID, Conflict("no"))


def who_is_there_is_not_known() -> None:
    stage = running()
    write(stage)
    stage.checks.reported.answered(SAID, NotFound("nobody"))


def a_report_is_lost() -> None:
    stage = running()
    write(stage, SAID.result)
    stage.checks.reported.answered(SAID, admit_results.ResultReported(SAID.result, is_new=True))
    del stage.checks.known[str(SAID.result.key)]
    stage.checks.reported.at_the_end()


def a_reported_failure_does_not_count() -> None:
    stage = running()
    child = stage.born("n1")
    write(stage, FAILED.result)
    stage.died("n1", child, 0)
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))


def a_success_is_called_a_failure() -> None:
    """It reported, but no failure."""
    stage = running()
    child = stage.born("n1")
    write(stage, SAID.result)
    stage.died("n1", child, 0)
    stage.write(reported(STATUSES, [0], AttemptState.FAILED))


NAME = "attempt 1 of task 0 of job 1"
FORGED: dict[Callable[[], None], str] = {
    a_report_is_changed: f"{NAME} reported",
    a_report_is_deleted: "is deleted, and its job is not",
    a_stale_attempt_reports: f"{NAME} has reported, and its task is at attempt 2",
    one_reports_after_its_end: f"{NAME} has reported after its end",
    nobody_is_told_of_a_report: f"{NAME} has reported, and 0 events tell of it",
    others_are_told_something_else: "and others are told",
    a_report_is_acknowledged_and_not_kept: "is kept, and kept is nothing",
    a_good_report_is_refused: f"{NAME} may report",
    who_is_there_is_not_known: f"{NAME} is there, and was told: nobody",
    a_report_is_lost: f"{NAME} had reported",
    a_reported_failure_does_not_count: f"{NAME} is said to have succeeded and reported: it diverged",
    a_success_is_called_a_failure: f"{NAME} is said to have failed and ended with 0",
}


def a_failure_that_was_reported_counts() -> None:
    """And breaks nothing."""
    stage = running()
    child = stage.born("n1")
    write(stage, FAILED.result)
    stage.checks.reported.answered(FAILED, admit_results.ResultReported(FAILED.result, is_new=False))
    stage.checks.reported.answered(SAID, Conflict("something else was said"))
    stage.died("n1", child, 0)
    stage.write(reported(STATUSES, [0], AttemptState.FAILED))
    stage.checks.reported.at_the_end()
