"""A job of which fewer tasks are wanted, and then more again."""

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


def test_a_service_of_fewer_tasks_stops_those_with_the_highest_numbers() -> None:
    made = stage()
    made.submit(job_spec(count=4, kind=JobKind.SERVICE))
    resize(made, 2)

    assert running(made) == [0, 1]
    assert phases(made)[2:] == [Phase.CANCELED] * 2
    assert state(made) is JobState.ACTIVE


def test_of_more_tasks_the_same_run_again_by_later_attempts() -> None:
    made = stage(cpu=6)
    made.submit(job_spec(count=4, kind=JobKind.SERVICE))
    resize(made, 2)
    resize(made, 5)

    assert running(made) == [0, 1, 2, 3, 4]
    assert list(ints(job(made).attempts[0], "number")) == [1, 1, 2, 2, 1]
    assert job(made).spec.size == 5


def test_what_waits_is_over_without_a_record_and_waits_again_as_before() -> None:
    """Of a million tasks, too, nothing is written but the spec."""
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


def test_what_was_canceled_while_it_was_wanted_does_not_begin_when_more_are_wanted_again() -> None:
    made = stage()
    made.submit(job_spec(count=4))
    resize(made, 2)
    made.put(JobIntent(ONE, cancel_tasks={3: False}))
    resize(made, 4)

    assert running(made) == [0, 1, 2]
    assert phases(made)[3] is Phase.CANCELED


def test_a_job_ends_with_what_was_taken_back_of_the_tasks_beyond() -> None:
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


def test_the_result_is_that_of_the_tasks_that_were_wanted() -> None:
    made = stage()
    made.submit(job_spec(count=4))
    resize(made, 2)
    end(made, 0, 0)
    end(made, 1, 0)

    assert state(made) is JobState.SUCCEEDED
    assert job(made).status.reason == "all 2 tasks succeeded"  # type: ignore[union-attr]


def test_a_job_whose_other_tasks_have_ended_ends_when_no_more_are_wanted() -> None:
    made = stage(cpu=1)
    made.submit(job_spec(count=3))
    end(made, 0, 0)
    end(made, 1, 1)
    resize(made, 2)

    assert state(made) is JobState.FAILED
    assert running(made) == []


def test_a_task_that_starts_once_ever_is_not_started_again() -> None:
    made = stage()
    made.submit(job_spec(count=2, run=RunMode.AT_MOST_ONCE))
    resize(made, 1)
    resize(made, 2)

    assert running(made) == [0]
    assert job(made).tasks[0].state[1] == TaskState.CANCELED


def test_a_task_that_its_user_canceled_stays_so_when_more_are_wanted() -> None:
    made = stage()
    made.submit(job_spec(count=3, kind=JobKind.SERVICE))
    made.put(JobIntent(ONE, cancel_tasks={2: False}))
    made.run_to_quiescence()
    resize(made, 1)
    resize(made, 3)

    assert running(made) == [0, 1]


def test_a_gang_has_as_many_tasks_as_it_began_with() -> None:
    made = stage()
    made.submit(job_spec(count=3, gang=True))

    with pytest.raises(BadField, match="a gang starts together"):
        resize(made, 2)
