"""A job is scaled down, and then up again."""

import pytest

from rota.model.columns import Draft, ints
from rota.model.errors import BadField
from rota.model.ids import JobId
from rota.model.job import JobIntent, JobKind
from rota.model.lifecycle import AttemptState, JobState, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import Plan
from rota.model.shape import RunMode
from rota.rules.phases import Phase
from rota.testing import user_requests
from rota.testing.builders import job_spec
from rota.testing.stage import Stage
from tests.controllers.one_node_stage import end, job, stage, state

ONE = JobId("1")


def resize(cluster: Stage, count: int) -> None:
    user_requests.resize(cluster, ONE, count)


def running(cluster: Stage) -> list[int]:
    return sorted(index for machine in cluster.machines.values() for _, index in machine.held)


def phases(cluster: Stage) -> list[Phase]:
    return [Phase(phase) for block in sorted(job(cluster).phases) for phase in job(cluster).phases[block]]


def test_scale_down_stops_the_highest_indices() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=4, kind=JobKind.SERVICE))
    resize(cluster, 2)

    assert running(cluster) == [0, 1]
    assert phases(cluster)[2:] == [Phase.CANCELED] * 2
    assert state(cluster) is JobState.ACTIVE


def test_scale_up_restarts_the_same_tasks_with_later_attempts() -> None:
    cluster = stage(cpu=6)
    cluster.submit(job_spec(count=4, kind=JobKind.SERVICE))
    resize(cluster, 2)
    resize(cluster, 5)

    assert running(cluster) == [0, 1, 2, 3, 4]
    assert list(ints(job(cluster).attempts[0], "number")) == [1, 1, 2, 2, 1]
    assert job(cluster).spec.size == 5


def test_scaled_down_pending_tasks_need_no_record_and_are_pending_again_after_scale_up() -> None:
    """Even for a million tasks nothing is written but the spec."""
    cluster = stage(cpu=1)
    cluster.submit(job_spec(count=3 * BLOCK_TASKS))
    resize(cluster, 2)
    fewer = job(cluster).task_counts.pending
    over = job(cluster).task_counts.ended
    resize(cluster, BLOCK_TASKS)

    assert (fewer, over) == (1, 3 * BLOCK_TASKS - 2)
    assert job(cluster).tasks == {}
    assert job(cluster).task_counts.pending == BLOCK_TASKS - 1
    assert job(cluster).ready(cluster.now.ms, 2) == [1, 2]


def test_a_canceled_task_does_not_start_after_scale_up() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=4))
    resize(cluster, 2)
    cluster.put(JobIntent(ONE, cancel_tasks={3: False}))
    resize(cluster, 4)

    assert running(cluster) == [0, 1, 2]
    assert phases(cluster)[3] is Phase.CANCELED


def test_a_job_ends_when_offers_of_scaled_down_tasks_are_withdrawn() -> None:
    cluster = stage(cpu=2)
    cluster.submit(job_spec(count=2))
    end(cluster, 0, 0)
    cluster.cut(cluster.machines["a"])
    resize(cluster, 1)
    before = state(cluster)
    status = Draft(job(cluster).statuses[0])
    status["state"][1] = AttemptState.WITHDRAWN
    cluster.ask("watcher", lambda *_: Plan((status.done(),)))

    assert (before, state(cluster)) == (JobState.ACTIVE, JobState.SUCCEEDED)


def test_scaled_down_tasks_do_not_count_in_the_result() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=4))
    resize(cluster, 2)
    end(cluster, 0, 0)
    end(cluster, 1, 0)

    assert state(cluster) is JobState.SUCCEEDED
    assert job(cluster).status.reason == "all 2 tasks succeeded"  # type: ignore[union-attr]


def test_scale_down_ends_a_job_whose_other_tasks_have_ended() -> None:
    cluster = stage(cpu=1)
    cluster.submit(job_spec(count=3))
    end(cluster, 0, 0)
    end(cluster, 1, 1)
    resize(cluster, 2)

    assert state(cluster) is JobState.FAILED
    assert running(cluster) == []


def test_an_at_most_once_task_is_not_started_again() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=2, run=RunMode.AT_MOST_ONCE))
    resize(cluster, 1)
    resize(cluster, 2)

    assert running(cluster) == [0]
    assert job(cluster).tasks[0].state[1] == TaskState.CANCELED


def test_a_task_canceled_by_its_user_stays_canceled_after_scale_up() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=3, kind=JobKind.SERVICE))
    cluster.put(JobIntent(ONE, cancel_tasks={2: False}))
    cluster.run_to_quiescence()
    resize(cluster, 1)
    resize(cluster, 3)

    assert running(cluster) == [0, 1]


def test_a_gang_cannot_be_scaled() -> None:
    cluster = stage()
    cluster.submit(job_spec(count=3, gang=True))

    with pytest.raises(BadField, match="a gang starts together"):
        resize(cluster, 2)
