"""Forged: results of tasks that are changed, lost, accepted too late, not published, or ignored."""

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
from tests.sim.check_stage import ONE, STATUSES, CheckStage

CALL = ResultCall((ONE, 0, 1), 1, None)
FAILED = CALL._replace(failure="it diverged")


def write(
    stage: CheckStage, *results: ResultRecord, published: tuple[EventRecord, ...] | None = None
) -> None:
    """Write results with their events, or with others."""
    events = (
        tuple(admit_results._reported_event(result) for result in results) if published is None else published
    )
    row = codec.encode_events(0, events) if events else None
    puts = [(str(result.key), codec.encode(result)) for result in results]
    stage.checks.committed(Batch(1, 0, 0, 0, puts, [], row))


def running() -> CheckStage:
    stage = CheckStage()
    stage.place("n1")
    return stage


def a_report_is_changed() -> None:
    stage = running()
    write(stage, CALL.result)
    write(stage, FAILED.result)


def a_report_is_deleted() -> None:
    stage = running()
    write(stage, CALL.result)
    stage.write(deletes=(str(CALL.result.key),))


def a_stale_attempt_reports() -> None:
    stage = CheckStage()
    stage.place("n1", "n2")
    write(stage, CALL.result)


def an_ended_attempt_reports() -> None:
    stage = running()
    stage.write(reported(STATUSES, [0], AttemptState.STOPPED))
    write(stage, CALL.result)


def a_report_has_no_event() -> None:
    write(running(), CALL.result, published=())


def an_event_contradicts_its_report() -> None:
    write(running(), CALL.result, published=(admit_results._reported_event(FAILED.result),))


def a_report_is_acknowledged_and_not_stored() -> None:
    running().checks.reported.answered(CALL, admit_results.ResultReported(CALL.result, is_new=True))


def a_good_report_is_refused() -> None:
    running().checks.reported.answered(CALL, Conflict("no"))


def an_existing_attempt_is_not_found() -> None:
    stage = running()
    write(stage)
    stage.checks.reported.answered(CALL, NotFound("nobody"))


def a_report_is_lost() -> None:
    stage = running()
    write(stage, CALL.result)
    stage.checks.reported.answered(CALL, admit_results.ResultReported(CALL.result, is_new=True))
    del stage.checks.known[str(CALL.result.key)]
    stage.checks.reported.at_the_end()


def a_reported_failure_does_not_count() -> None:
    stage = running()
    child = stage.process_started("n1")
    write(stage, FAILED.result)
    stage.process_ended("n1", child, 0)
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))


def a_success_is_called_a_failure() -> None:
    """The attempt reported a result without a failure."""
    stage = running()
    child = stage.process_started("n1")
    write(stage, CALL.result)
    stage.process_ended("n1", child, 0)
    stage.write(reported(STATUSES, [0], AttemptState.FAILED))


NAME = "attempt 1 of task 0 of job 1"
FORGED: dict[Callable[[], None], str] = {
    a_report_is_changed: f"{NAME} reported",
    a_report_is_deleted: "is deleted, and its job is not",
    a_stale_attempt_reports: f"{NAME} has reported, and its task is at attempt 2",
    an_ended_attempt_reports: f"{NAME} has reported after its end",
    a_report_has_no_event: f"{NAME} has reported, and 0 events announce it",
    an_event_contradicts_its_report: "and the event says",
    a_report_is_acknowledged_and_not_stored: ", and nothing is stored",
    a_good_report_is_refused: f"{NAME} may report",
    an_existing_attempt_is_not_found: f"{NAME} exists, and was told: nobody",
    a_report_is_lost: f"{NAME} had reported",
    a_reported_failure_does_not_count: f"{NAME} is recorded as succeeded and reported: it diverged",
    a_success_is_called_a_failure: f"{NAME} is recorded as failed and ended with 0",
}


def a_reported_failure_counts() -> None:
    """Not a forgery: violates nothing."""
    stage = running()
    child = stage.process_started("n1")
    write(stage, FAILED.result)
    stage.checks.reported.answered(FAILED, admit_results.ResultReported(FAILED.result, is_new=False))
    stage.checks.reported.answered(CALL, Conflict("something else was said"))
    stage.process_ended("n1", child, 0)
    stage.write(reported(STATUSES, [0], AttemptState.FAILED))
    stage.checks.reported.at_the_end()
