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


def resize(made: Stage, count: int) -> None:
    user_requests.resize(made, ONE, count)


def running(made: Stage) -> list[int]:
    return sorted(index for machine in made.machines.values() for _, index in machine.held)


def phases(made: Stage) -> list[Phase]:
    return [Phase(phase) for block in sorted(job(made).phases) for phase in job(made).phases[block]]


def test_scale_down_stops_the_highest_indices() -> None:
    made = stage()
    made.submit(job_spec(count=4, kind=JobKind.SERVICE))
    resize(made, 2)

    assert running(made) == [0, 1]
    assert phases(made)[2:] == [Phase.CANCELED] * 2
    assert state(made) is JobState.ACTIVE


def test_scale_up_restarts_the_same_tasks_with_later_attempts() -> None:
    made = stage(cpu=6)
    made.submit(job_spec(count=4, kind=JobKind.SERVICE))
    resize(made, 2)
    resize(made, 5)

    assert running(made) == [0, 1, 2, 3, 4]
    assert list(ints(job(made).attempts[0], "number")) == [1, 1, 2, 2, 1]
    assert job(made).spec.size == 5


def test_scaled_down_pending_tasks_need_no_record_and_are_pending_again_after_scale_up() -> None:
    """Even for a million tasks nothing is written but the spec."""
    made = stage(cpu=1)
    made.submit(job_spec(count=3 * BLOCK_TASKS))
    resize(made, 2)
    fewer = job(made).task_counts.pending
    over = job(made).task_counts.ended
    resize(made, BLOCK_TASKS)

    assert (fewer, over) == (1, 3 * BLOCK_TASKS - 2)
    assert job(made).tasks == {}
    assert job(made).task_counts.pending == BLOCK_TASKS - 1
    assert job(made).ready(made.now.ms, 2) == [1, 2]


def test_a_canceled_task_does_not_start_after_scale_up() -> None:
    made = stage()
    made.submit(job_spec(count=4))
    resize(made, 2)
    made.put(JobIntent(ONE, cancel_tasks={3: False}))
    resize(made, 4)

    assert running(made) == [0, 1, 2]
    assert phases(made)[3] is Phase.CANCELED


def test_a_job_ends_when_offers_of_scaled_down_tasks_are_withdrawn() -> None:
    made = stage(cpu=2)
    made.submit(job_spec(count=2))
    end(made, 0, 0)
    made.cut(made.machines["a"])
    resize(made, 1)
    before = state(made)
    status = Draft(job(made).statuses[0])
    status["state"][1] = AttemptState.WITHDRAWN
    made.ask("watcher", lambda *_: Plan((status.done(),)))

    assert (before, state(made)) == (JobState.ACTIVE, JobState.SUCCEEDED)


def test_scaled_down_tasks_do_not_count_in_the_result() -> None:
    made = stage()
    made.submit(job_spec(count=4))
    resize(made, 2)
    end(made, 0, 0)
    end(made, 1, 0)

    assert state(made) is JobState.SUCCEEDED
    assert job(made).status.reason == "all 2 tasks succeeded"  # type: ignore[union-attr]


def test_scale_down_ends_a_job_whose_other_tasks_have_ended() -> None:
    made = stage(cpu=1)
    made.submit(job_spec(count=3))
    end(made, 0, 0)
    end(made, 1, 1)
    resize(made, 2)

    assert state(made) is JobState.FAILED
    assert running(made) == []


def test_an_at_most_once_task_is_not_started_again() -> None:
    made = stage()
    made.submit(job_spec(count=2, run=RunMode.AT_MOST_ONCE))
    resize(made, 1)
    resize(made, 2)

    assert running(made) == [0]
    assert job(made).tasks[0].state[1] == TaskState.CANCELED


def test_a_task_canceled_by_its_user_stays_canceled_after_scale_up() -> None:
    made = stage()
    made.submit(job_spec(count=3, kind=JobKind.SERVICE))
    made.put(JobIntent(ONE, cancel_tasks={2: False}))
    made.run_to_quiescence()
    resize(made, 1)
    resize(made, 3)

    assert running(made) == [0, 1]


def test_a_gang_cannot_be_scaled() -> None:
    made = stage()
    made.submit(job_spec(count=3, gang=True))

    with pytest.raises(BadField, match="a gang starts together"):
        resize(made, 2)
