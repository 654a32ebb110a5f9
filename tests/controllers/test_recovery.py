"""Who deals with a task whose node is lost: exactly one."""

from typing import Any

import pytest

from rota.model.errors import Rejected
from rota.model.ids import JobId
from rota.model.job import Recovery
from rota.model.lifecycle import JobState
from rota.model.limits import OFFER_GRACE_MS, TOLD_AGAIN_LAST_MS
from rota.model.recovery import WhenControllerAbsent
from rota.model.subscriber import SubscriberPresence
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine
from tests.controllers.one_node_stage import end, job, stage, state

ONE = JobId("1")
OWNED: dict[str, Any] = {"recovery": Recovery.CONTROLLER, "user": "ann", "controller": "ci"}


def lose(made: Stage, name: str = "a") -> None:
    made.machines[name].crash()
    made.cut(made.machines[name])
    made.wait(30_000)


def lost_stage(count: int = 1, **fields: Any) -> Stage:
    """A job of node a, which is lost; node b has room."""
    made = stage(cpu=8)
    made.submit(job_spec(count=count, **(OWNED | fields)))
    lose(made)
    made.join(StageMachine("b", {"cpu": 8000}, {}))
    return made


@pytest.mark.slow
def test_a_lost_task_waits_for_its_controller_for_as_long_as_it_takes() -> None:
    made = lost_stage()
    made.wait(24 * 3600 * 1000)

    assert job(made).task_counts.unresolved == 1
    assert not made.machines["b"].held


@pytest.mark.parametrize(
    ("word", "became"), [("fail", JobState.FAILED), ("cancel", JobState.CANCELED), ("lost", JobState.FAILED)]
)
def test_a_word_ends_a_lost_task(word: str, became: JobState) -> None:
    made = lost_stage()
    made.answer(ONE, 0, 1, word)

    status = job(made).status
    assert status is not None
    assert (status.state, status.reason) == (became, "node a was lost: silent for 30 s")
    assert not job(made).tasks[0].losses


def test_a_lost_task_is_placed_again_at_no_cost_when_its_controller_says_so() -> None:
    made = lost_stage(retries=0)
    made.answer(ONE, 0, 1, "again")
    end(made, 0, 0)

    assert state(made) is JobState.SUCCEEDED


def test_each_loss_is_a_new_question() -> None:
    made = lost_stage()
    made.answer(ONE, 0, 1, "again")
    lose(made, "b")

    assert job(made).task_counts.unresolved == 1
    with pytest.raises(Rejected, match="attempt 2 is lost"):
        made.answer(ONE, 0, 3, "again")
    made.answer(ONE, 0, 2, "cancel")
    assert state(made) is JobState.CANCELED


def test_what_runs_elsewhere_is_not_asked_about() -> None:
    made = stage(cpu=1, b=1)
    made.submit(job_spec(count=2, **OWNED))
    lose(made)

    assert job(made).task_counts.unresolved == 1
    assert [held.attempt for held in made.machines["b"].held.values()] == [1]


def test_an_offer_that_a_silent_node_has_not_answered_goes_elsewhere_unasked() -> None:
    made = stage(cpu=4)
    made.machines["a"].silent = True
    made.submit(job_spec(**OWNED))
    made.join(StageMachine("b", {"cpu": 4000}, {}))
    made.cut(made.machines["a"])
    made.wait(OFFER_GRACE_MS)

    assert list(made.machines["b"].held) == [(ONE, 0)]
    assert not job(made).task_counts.unresolved


def test_a_task_that_has_to_give_way_on_a_node_that_is_lost_is_placed_again() -> None:
    made = stage(cpu=1)
    made.submit(job_spec(priority=10, **OWNED))
    made.machines["a"].silent = True
    made.submit(job_spec(2, priority=90))
    lose(made)
    made.join(StageMachine("b", {"cpu": 8000}, {}))

    assert job(made).task_counts.unresolved == 0
    assert sorted(made.machines["b"].held) == [(ONE, 0), (JobId("2"), 0)]


def test_a_canceled_job_waits_for_no_word() -> None:
    made = lost_stage(count=300)
    made.cancel(ONE, "enough")

    assert state(made) is JobState.CANCELED
    assert not any(block.losses for block in job(made).tasks.values())


def test_the_next_server_asks_again_and_does_not_act_in_its_place() -> None:
    heard: list[str] = []
    made = Stage(heard.append)
    made.join(StageMachine("a", {"cpu": 8000}, {}))
    made.submit(job_spec(**OWNED, when_no_controller=WhenControllerAbsent.SCHEDULER))
    lose(made)
    made.stall(59_000)
    made.restart()
    made.wait(59_000)

    assert job(made).task_counts.unresolved == 1
    assert sum("is to say" in line for line in heard) >= 3
    made.wait(1_000)
    assert "ann:ci is away: the scheduler places task 0 of job 1 anew" in heard


def test_a_controller_that_may_not_be_away_at_all_is_asked_as_long_as_it_is_there() -> None:
    made = stage(cpu=8)
    made.watch("ann:ci")
    made.submit(
        job_spec(**OWNED, when_no_controller=WhenControllerAbsent.SCHEDULER, controller_wait_seconds=0.0)
    )
    lose(made)
    asked = job(made).task_counts.unresolved
    made.disconnect("ann:ci")
    made.wait(1_000)

    assert (asked, job(made).task_counts.unresolved) == (1, 0)


def test_it_is_asked_less_and_less_often() -> None:
    heard: list[str] = []
    made = Stage(heard.append)
    made.join(StageMachine("a", {"cpu": 8000}, {}))
    made.submit(job_spec(**OWNED))
    lose(made)
    made.wait(2 * 3600 * 1000)

    asked = sum("is to say" in line for line in heard)
    assert 2 * 3600 * 1000 // TOLD_AGAIN_LAST_MS <= asked < 40


def test_a_controller_is_there_as_long_as_one_of_its_streams_is() -> None:
    presence = SubscriberPresence(5)
    never = presence.absent_since("ann:ci")
    presence.connected_one("ann:ci")
    presence.connected_one("ann:ci")
    presence.disconnected_one("ann:ci", 7)
    still = presence.absent_since("ann:ci")
    presence.disconnected_one("ann:ci", 9)

    assert (never, still, presence.absent_since("ann:ci")) == (5, None, 9)
