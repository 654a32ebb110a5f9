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


def looks(cluster: Stage, spec: JobSpec, ms: int) -> int:
    """Number of decisions on its deadline while nothing else happens."""
    count, end_ms, at_ms = 0, cluster.now_ms + ms, cluster.now_ms
    while at_ms < end_ms:
        plan = deadline.decide(
            cluster.mirror, spec.id, cluster.now._replace(ms=at_ms, wall_ms=WALL_MS + at_ms)
        )
        count += 1
        if plan.wake_at_ms is None:
            break
        assert plan.wake_at_ms > at_ms
        at_ms = plan.wake_at_ms
    return count


@pytest.mark.parametrize("stop", [False, True])
def test_a_paused_job_ends_at_its_deadline(stop: bool) -> None:
    cluster = stage()
    cluster.submit(job_spec(1, **SOON))
    user_requests.pause(cluster, ONE, stop=stop)
    cluster.wait(11_000)

    assert state(cluster) is JobState.TIMED_OUT


def test_a_job_paused_before_its_start_ends_at_its_deadline() -> None:
    cluster = stage(cpu=1)
    cluster.submit(job_spec(2))
    cluster.submit(job_spec(1, **SOON))
    user_requests.pause(cluster, ONE, stop=False)
    cluster.wait(11_000)

    assert state(cluster) is JobState.TIMED_OUT


def test_a_job_that_waits_for_its_cluster_ends_at_its_deadline() -> None:
    mirror, late = Mirror(), at(11_000)
    mirror.apply(job_spec(1, **SOON))
    verdict = deadline.decide(mirror, ONE, late)
    mirror.apply(verdict.puts[0])

    (status,) = batch.decide(mirror, ONE, late).puts
    assert isinstance(status, JobStatus)
    assert status.state is JobState.TIMED_OUT


def test_a_removed_deadline_is_not_checked_again() -> None:
    cluster = stage()
    cluster.submit(job_spec(1, **SOON))
    none = update.UpdateRequest({"deadline": None})
    cluster.ask("apiserver", lambda view, now: update.update_job(view, ONE, none, user_requests.USER, now))
    cluster.wait(20_000)

    assert state(cluster) is JobState.ACTIVE


def test_a_short_queue_timeout_of_a_job_that_runs_is_no_reason_to_poll() -> None:
    cluster = stage()
    spec = job_spec(1, queue_timeout_seconds=0.001)
    cluster.submit(spec)

    assert looks(cluster, spec, 10 * TICK_MS) <= 10


def test_a_standing_verdict_is_rarely_checked() -> None:
    """As if nothing acted on it."""
    cluster = stage(cpu=1)
    spec = job_spec(1, queue_timeout_seconds=1, deadline_at_ms=WALL_MS + 600_000)
    cluster.submit(job_spec(2))
    cluster.submit(spec)
    cluster.now_ms = 700_000

    assert looks(cluster, spec, 60_000) <= 60
