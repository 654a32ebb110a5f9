"""The last successful run of a series, in whatever order runs end and are deleted."""

from itertools import permutations

import pytest

from rota.model.ended_jobs import EndedJobs
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.testing.builders import job_spec

SERIES = ("default", "probe")


def ended(past: EndedJobs, number: int, state: JobState = JobState.SUCCEEDED) -> None:
    spec = job_spec(number, name="probe")
    past.end(spec, JobStatus(spec.id, state, ended_ms=number))


@pytest.mark.parametrize("order", list(permutations([1, 2, 10])))
def test_the_newest_successful_run_is_the_last(order: tuple[int, ...]) -> None:
    past = EndedJobs()
    for number in order:
        ended(past, number)
    ended(past, 11, JobState.FAILED)

    assert past.last_succeeded == {SERIES: "10"}


@pytest.mark.parametrize("order", list(permutations([1, 2, 10])))
def test_when_the_last_run_is_deleted_the_one_before_it_is_the_last(order: tuple[int, ...]) -> None:
    past = EndedJobs()
    left = [1, 2, 10]
    for number in left:
        ended(past, number)
    for number in order:
        past.forget(JobId(str(number)))
        left.remove(number)
        assert past.last_succeeded == ({SERIES: str(max(left))} if left else {})
