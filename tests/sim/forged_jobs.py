"""Forged: wrong versions, ignored pauses and dependencies, and errors of services, system jobs and crons."""

from collections.abc import Callable

from rota.model.cron import CronRecord, CronStatus, MissedRuns
from rota.model.dependency import Dependency
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobIntent, JobKind, JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.sim.cluster.machine_os import SimChild, TaskBehaviour
from rota.testing.builders import job_spec
from rota.testing.records import placed, reported
from tests.sim.check_stage import ATTEMPTS, ONE, STATUSES, TASKS, CheckStage

TWO = JobId("2")
MINUTE_MS = 60_000


def a_paused_job_is_placed() -> None:
    stage = CheckStage()
    stage.write(JobIntent(ONE, paused=True))
    stage.place("n1")


def start(stage: CheckStage, version: int, index: int = 0, restart: int = 0) -> None:
    child = SimChild((ONE, index, 1), TaskBehaviour(1000), 0, (), restart=restart)
    child.version = version
    stage.checks.process_started("n1", child)


def of_two_versions() -> CheckStage:
    stage = CheckStage(job_spec(1, count=2, version=2, needs={}))
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))
    return stage


def a_version_runs_that_is_not_on_disk() -> None:
    start(of_two_versions(), version=3)


def an_attempt_continues_as_another_version() -> None:
    stage = of_two_versions()
    start(stage, version=1)
    start(stage, version=2, restart=1)


def a_node_goes_back_to_an_older_version() -> None:
    stage = of_two_versions()
    start(stage, version=2)
    start(stage, version=1, index=1)


def cron(missed: MissedRuns) -> CronRecord:
    return CronRecord("default", "nightly", "* * * * *", job_spec(1), missed=missed)


def a_cron_goes_back() -> None:
    stage = CheckStage()
    stage.write(cron(MissedRuns.SKIP), CronStatus("default", "nightly", 2 * MINUTE_MS))
    stage.write(CronStatus("default", "nightly", MINUTE_MS))


def a_cron_skips_a_run() -> None:
    CheckStage().write(cron(MissedRuns.ALL), CronStatus("default", "nightly", MINUTE_MS))


def depends_on_one() -> CheckStage:
    stage = CheckStage()
    stage.write(job_spec(2, after=(Dependency(ONE),)), JobStatus(TWO, JobState.WAITING))
    return stage


def a_waiting_job_is_canceled() -> None:
    depends_on_one().write(JobStatus(TWO, JobState.CANCELED))


def a_waiting_job_is_canceled_with_its_failed_cluster() -> None:
    """Not a forgery: violates nothing."""
    stage = depends_on_one()
    stage.write(JobCluster(TWO, "cloud", failed="cluster-failed: cloud"), JobStatus(TWO, JobState.CANCELED))


def a_job_starts_before_its_dependency() -> None:
    depends_on_one().write(JobStatus(TWO, JobState.ACTIVE))


def a_service_succeeds() -> None:
    stage = CheckStage(job_spec(1, count=2, kind=JobKind.SERVICE))
    stage.place("n1")
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))


def an_attempt_is_started_while_it_runs() -> None:
    stage = of_two_versions()
    start(stage, version=2)
    start(stage, version=2, restart=1)


def a_node_has_two_tasks_of_a_system_job() -> None:
    stage = CheckStage(job_spec(1, count=2, kind=JobKind.SYSTEM, needs={}))
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))
    start(stage, version=1)
    start(stage, version=1, index=1)


def too_many_tasks_are_replaced() -> None:
    stage = CheckStage(job_spec(1, count=2, version=2, kind=JobKind.SERVICE, needs={}))
    stage.write(JobIntent(ONE, replace=2))
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.write(reported(STATUSES, [0], AttemptState.RUNNING))
    stage.write(TASKS.with_replacements({0: 1}))


FORGED: dict[Callable[[], None], str] = {
    a_paused_job_is_placed: "task 0 of job 1 is placed while its job is paused",
    a_version_runs_that_is_not_on_disk: "runs version 3, and version 2 is on disk",
    an_attempt_continues_as_another_version: "started as version 1 and continues as 2",
    a_node_goes_back_to_an_older_version: "runs version 1 on n1, which has run 2",
    a_cron_goes_back: "cron nightly went back from 120000 to 60000",
    a_cron_skips_a_run: "cron nightly skipped the run for",
    a_waiting_job_is_canceled: "job 2 was canceled while",
    a_job_starts_before_its_dependency: "job 2 became active before its dependencies",
    a_service_succeeds: "of a service, is recorded as SUCCEEDED",
    an_attempt_is_started_while_it_runs: "was started again on n1 while it ran",
    too_many_tasks_are_replaced: (
        "tasks [0] of job 1 are replaced while [1] are unavailable: at most 1 may be"
    ),
    a_node_has_two_tasks_of_a_system_job: "tasks 0 and 1 of job 1 both run on n1",
}
