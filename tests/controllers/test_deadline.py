"""A job past its deadline ends as timed out, whatever it waits for; and its key is not decided endlessly."""

import pytest

from rota.apiserver.admission import update
from rota.controllers import batch
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import TICK_MS
from rota.scheduler.policy import deadline
from rota.testing import user_requests
from rota.testing.builders import WALL_MS, at, job_spec
from rota.testing.stage import Stage
from tests.controllers.one_node_stage import stage, state

ONE = JobId("1")
SOON: dict[str, int] = {"deadline_at_ms": WALL_MS + 10_000}


def looks(made: Stage, spec: JobSpec, ms: int) -> int:
    """Number of decisions on its deadline while nothing else happens."""
    count, end_ms, at_ms = 0, made.now_ms + ms, made.now_ms
    while at_ms < end_ms:
        plan = deadline.decide(made.mirror, spec.id, made.now._replace(ms=at_ms, wall_ms=WALL_MS + at_ms))
        count += 1
        if plan.wake_at_ms is None:
            break
        assert plan.wake_at_ms > at_ms
        at_ms = plan.wake_at_ms
    return count


@pytest.mark.parametrize("stop", [False, True])
def test_a_paused_job_ends_at_its_deadline(stop: bool) -> None:
    made = stage()
    made.submit(job_spec(1, **SOON))
    user_requests.pause(made, ONE, stop=stop)
    made.wait(11_000)

    assert state(made) is JobState.TIMED_OUT


def test_a_job_paused_before_its_start_ends_at_its_deadline() -> None:
    made = stage(cpu=1)
    made.submit(job_spec(2))
    made.submit(job_spec(1, **SOON))
    user_requests.pause(made, ONE, stop=False)
    made.wait(11_000)

    assert state(made) is JobState.TIMED_OUT


def test_a_job_that_waits_for_its_cluster_ends_at_its_deadline() -> None:
    mirror, late = Mirror(), at(11_000)
    mirror.apply(job_spec(1, **SOON))
    verdict = deadline.decide(mirror, ONE, late)
    mirror.apply(verdict.puts[0])

    (status,) = batch.decide(mirror, ONE, late).puts
    assert isinstance(status, JobStatus)
    assert status.state is JobState.TIMED_OUT


def test_a_removed_deadline_is_not_checked_again() -> None:
    made = stage()
    made.submit(job_spec(1, **SOON))
    none = update.UpdateRequest({"deadline": None})
    made.ask("apiserver", lambda view, now: update.update_job(view, ONE, none, user_requests.USER, now))
    made.wait(20_000)

    assert state(made) is JobState.ACTIVE


def test_a_short_queue_timeout_of_a_job_that_runs_is_no_reason_to_poll() -> None:
    made = stage()
    spec = job_spec(1, queue_timeout_seconds=0.001)
    made.submit(spec)

    assert looks(made, spec, 10 * TICK_MS) <= 10


def test_a_standing_verdict_is_rarely_checked() -> None:
    """As if nothing acted on it."""
    made = stage(cpu=1)
    spec = job_spec(1, queue_timeout_seconds=1, deadline_at_ms=WALL_MS + 600_000)
    made.submit(job_spec(2))
    made.submit(spec)
    made.now_ms = 700_000

    assert looks(made, spec, 60_000) <= 60
