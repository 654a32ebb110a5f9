"""How a job ended: its state, its exit code, its times, and one sentence."""

from typing import Any

import pytest

from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import BLOCK_TASKS
from rota.model.messages import AttemptReport, ReportedState
from rota.testing.builders import WALL_MS, job_spec
from rota.testing.stage import Stage
from tests.controllers.one_node_stage import job, stage

ONE = JobId("1")


def ended(cluster: Stage) -> JobStatus:
    status = job(cluster).status
    assert status is not None
    assert status.ended
    return status


def says(cluster: Stage, *reports: AttemptReport) -> None:
    """Node a reports these ends of its tasks."""
    machine = cluster.machines["a"]
    for report in reports:
        machine.held.pop((ONE, report.index))
        machine.unreported.append((ONE, report))
    cluster.run_to_quiescence()


def exited(index: int, code: int = 0, **more: Any) -> AttemptReport:
    return AttemptReport(index, 1, ReportedState.EXITED, exit_code=code, ran_us=10**8, **more)


@pytest.mark.parametrize(
    ("claim", "state", "exit_code", "signal", "sentence"),
    [
        (exited(0), JobState.SUCCEEDED, 0, None, "exit 0"),
        (exited(0, 3), JobState.FAILED, 3, None, "exit 3"),
        (exited(0, -1, signal=9), JobState.FAILED, None, 9, "killed by signal 9"),
        (
            AttemptReport(
                0, 1, ReportedState.EXITED, signal=9, ran_us=10**8, reason="out of memory: limit 1.0 GiB"
            ),
            JobState.FAILED,
            None,
            9,
            "out of memory: limit 1.0 GiB",
        ),
        (
            AttemptReport(0, 1, ReportedState.TIMED_OUT, reason="over its time limit of 5 s"),
            JobState.TIMED_OUT,
            None,
            None,
            "over its time limit of 5 s",
        ),
    ],
)
def test_a_job_of_one_task_ends_like_its_task(
    claim: AttemptReport, state: JobState, exit_code: int | None, signal: int | None, sentence: str
) -> None:
    cluster = stage()
    cluster.submit(job_spec())
    says(cluster, claim)

    status = ended(cluster)
    assert (status.state, status.exit_code, status.signal, status.reason) == (
        state,
        exit_code,
        signal,
        sentence,
    )


def test_an_array_that_succeeded_says_how_many() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=3))
    says(cluster, *[exited(index) for index in range(3)])

    status = ended(cluster)
    assert (status.state, status.exit_code, status.reason) == (JobState.SUCCEEDED, 0, "all 3 tasks succeeded")


def test_an_array_has_the_exit_code_of_the_lowest_index_that_did_not_succeed() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=4))
    says(cluster, exited(3, 30), exited(1, 10), exited(0), exited(2))

    status = ended(cluster)
    assert (status.state, status.exit_code) == (JobState.FAILED, 10)
    assert status.reason == "2 of 4 tasks did not succeed: index 1, 3; the first: exit 10"


def test_a_sentence_names_no_more_than_eight_indices() -> None:
    cluster = stage(cpu=40)
    cluster.submit(job_spec(count=40))
    says(cluster, *[exited(index, index % 2) for index in range(40)])

    assert ended(cluster).reason == (
        "20 of 40 tasks did not succeed: index 1, 3, 5, 7, 9, 11, 13, 15, ...; the first: exit 1"
    )


def test_a_failure_outweighs_a_time_limit() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=2))
    says(cluster, AttemptReport(0, 1, ReportedState.TIMED_OUT), exited(1, 2))

    assert ended(cluster).state is JobState.FAILED


def test_the_result_of_the_last_block_counts_like_that_of_the_first() -> None:
    cluster = stage(cpu=1000)
    cluster.submit(job_spec(count=BLOCK_TASKS + 2))
    says(cluster, *[exited(index, 6 if index > BLOCK_TASKS else 0) for index in range(BLOCK_TASKS + 2)])

    assert ended(cluster).reason == "1 of 258 tasks did not succeed: index 257; the first: exit 6"
    assert ended(cluster).exit_code == 6


def test_a_job_knows_when_it_started_and_ended() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=2))
    cluster.wait(5000)
    says(cluster, exited(0, started_at_ms=WALL_MS + 70), exited(1, started_at_ms=WALL_MS + 30))

    assert (ended(cluster).started_at_ms, ended(cluster).ended_at_ms) == (WALL_MS + 30, WALL_MS + 5000)


def test_a_canceled_array_has_no_exit_code_of_its_own() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=3))
    cluster.cancel(ONE)

    assert (ended(cluster).state, ended(cluster).exit_code, ended(cluster).signal) == (
        JobState.CANCELED,
        None,
        None,
    )


def test_a_canceled_job_is_canceled_though_a_task_failed_before() -> None:
    cluster = stage(cpu=2)
    cluster.submit(job_spec(count=3))
    says(cluster, exited(0, 4))
    cluster.cancel(ONE, "enough")

    assert ended(cluster).state is JobState.CANCELED
