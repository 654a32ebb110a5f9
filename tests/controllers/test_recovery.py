"""Exactly one component decides about a task whose node is lost."""

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


def lose(cluster: Stage, name: str = "a") -> None:
    cluster.machines[name].crash()
    cluster.cut(cluster.machines[name])
    cluster.wait(30_000)


def lost_stage(count: int = 1, **fields: Any) -> Stage:
    """A job on node a, which is lost; node b has free resources."""
    cluster = stage(cpu=8)
    cluster.submit(job_spec(count=count, **(OWNED | fields)))
    lose(cluster)
    cluster.join(StageMachine("b", {"cpu": 8000}, {}))
    return cluster


@pytest.mark.slow
def test_a_lost_task_waits_for_its_controller_for_as_long_as_it_takes() -> None:
    cluster = lost_stage()
    cluster.wait(24 * 3600 * 1000)

    assert job(cluster).task_counts.unresolved == 1
    assert not cluster.machines["b"].held


@pytest.mark.parametrize(
    ("word", "became"), [("fail", JobState.FAILED), ("cancel", JobState.CANCELED), ("lost", JobState.FAILED)]
)
def test_a_decision_of_the_controller_ends_a_lost_task(word: str, became: JobState) -> None:
    cluster = lost_stage()
    cluster.answer(ONE, 0, 1, word)

    status = job(cluster).status
    assert status is not None
    assert (status.state, status.reason) == (became, "node a was lost: silent for 30 s")
    assert not job(cluster).tasks[0].losses


def test_a_lost_task_is_retried_at_no_cost_when_its_controller_decides_so() -> None:
    cluster = lost_stage(retries=0)
    cluster.answer(ONE, 0, 1, "again")
    end(cluster, 0, 0)

    assert state(cluster) is JobState.SUCCEEDED


def test_each_loss_asks_the_controller_again() -> None:
    cluster = lost_stage()
    cluster.answer(ONE, 0, 1, "again")
    lose(cluster, "b")

    assert job(cluster).task_counts.unresolved == 1
    with pytest.raises(Rejected, match="the lost attempt of task 0 of job 1 is 2"):
        cluster.answer(ONE, 0, 3, "again")
    cluster.answer(ONE, 0, 2, "cancel")
    assert state(cluster) is JobState.CANCELED


def test_a_task_running_elsewhere_is_not_asked_about() -> None:
    cluster = stage(cpu=1, b=1)
    cluster.submit(job_spec(count=2, **OWNED))
    lose(cluster)

    assert job(cluster).task_counts.unresolved == 1
    assert [held.attempt for held in cluster.machines["b"].held.values()] == [1]


def test_an_unanswered_offer_of_a_silent_node_is_moved_without_asking() -> None:
    cluster = stage(cpu=4)
    cluster.machines["a"].silent = True
    cluster.submit(job_spec(**OWNED))
    cluster.join(StageMachine("b", {"cpu": 4000}, {}))
    cluster.cut(cluster.machines["a"])
    cluster.wait(OFFER_GRACE_MS)

    assert list(cluster.machines["b"].held) == [(ONE, 0)]
    assert not job(cluster).task_counts.unresolved


def test_a_preempted_task_on_a_lost_node_is_placed_again() -> None:
    cluster = stage(cpu=1)
    cluster.submit(job_spec(priority=10, **OWNED))
    cluster.machines["a"].silent = True
    cluster.submit(job_spec(2, priority=90))
    lose(cluster)
    cluster.join(StageMachine("b", {"cpu": 8000}, {}))

    assert job(cluster).task_counts.unresolved == 0
    assert sorted(cluster.machines["b"].held) == [(ONE, 0), (JobId("2"), 0)]


def test_a_canceled_job_waits_for_no_decision() -> None:
    cluster = lost_stage(count=300)
    cluster.cancel(ONE, "enough")

    assert state(cluster) is JobState.CANCELED
    assert not any(block.losses for block in job(cluster).tasks.values())


def test_the_next_server_asks_again_and_does_not_act_in_its_place() -> None:
    events: list[str] = []
    cluster = Stage(events.append)
    cluster.join(StageMachine("a", {"cpu": 8000}, {}))
    cluster.submit(job_spec(**OWNED, when_no_controller=WhenControllerAbsent.SCHEDULER))
    lose(cluster)
    cluster.stall(59_000)
    cluster.restart()
    cluster.wait(59_000)

    assert job(cluster).task_counts.unresolved == 1
    assert sum("must decide" in line for line in events) >= 3
    cluster.wait(1_000)
    assert "ann:ci is away: the scheduler places task 0 of job 1 again" in events


def test_with_zero_wait_the_controller_is_asked_while_it_is_connected() -> None:
    cluster = stage(cpu=8)
    cluster.watch("ann:ci")
    cluster.submit(
        job_spec(**OWNED, when_no_controller=WhenControllerAbsent.SCHEDULER, controller_wait_seconds=0.0)
    )
    lose(cluster)
    asked = job(cluster).task_counts.unresolved
    cluster.disconnect("ann:ci")
    cluster.wait(1_000)

    assert (asked, job(cluster).task_counts.unresolved) == (1, 0)


def test_the_controller_is_asked_less_and_less_often() -> None:
    events: list[str] = []
    cluster = Stage(events.append)
    cluster.join(StageMachine("a", {"cpu": 8000}, {}))
    cluster.submit(job_spec(**OWNED))
    lose(cluster)
    cluster.wait(2 * 3600 * 1000)

    asked = sum("must decide" in line for line in events)
    assert 2 * 3600 * 1000 // TOLD_AGAIN_LAST_MS <= asked < 40


def test_a_controller_is_connected_while_one_of_its_streams_is() -> None:
    presence = SubscriberPresence(5)
    never = presence.absent_since("ann:ci")
    presence.connected_one("ann:ci")
    presence.connected_one("ann:ci")
    presence.disconnected_one("ann:ci", 7)
    still = presence.absent_since("ann:ci")
    presence.disconnected_one("ann:ci", 9)

    assert (never, still, presence.absent_since("ann:ci")) == (5, None, 9)
