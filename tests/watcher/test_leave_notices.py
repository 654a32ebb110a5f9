"""`node.left` is told again until the subscribers whose position is kept have acknowledged it."""

import pytest

from rota.model.ids import NodeId
from rota.model.limits import EVENTS_KEPT_MS, TOLD_AGAIN_FIRST_MS
from rota.model.subscriber import Subscriber
from rota.testing.stage import Stage, StageMachine

A = NodeId("a")
OWNER = "ann:ci"


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def stage(heard: list[str]) -> Stage:
    """One node, and a subscriber that has acknowledged everything so far and is connected."""
    made = Stage(heard.append)
    made.join(StageMachine("a", {"cpu": 1000}, {}))
    made.put(Subscriber(OWNER, made.revision, 0))
    made.watch(OWNER)
    return made


def leave(stage: Stage) -> None:
    stage.leave(stage.machines["a"], "switched off")


def left(heard: list[str]) -> list[str]:
    return [why for why in heard if why.startswith("node a left")]


def acknowledge(stage: Stage) -> None:
    stage.put(Subscriber(OWNER, stage.revision, 99))


def test_a_leave_is_told_again_until_it_is_acknowledged(stage: Stage, heard: list[str]) -> None:
    leave(stage)
    stage.wait(3 * TOLD_AGAIN_FIRST_MS)

    assert left(heard) == [
        "node a left: switched off",
        "node a left: switched off, told 2 times",
        "node a left: switched off, told 3 times",
    ]
    acknowledge(stage)
    stage.wait(EVENTS_KEPT_MS)
    assert len(left(heard)) == 3


def test_a_leave_that_is_acknowledged_at_once_is_told_once_and_costs_one_record(
    stage: Stage, heard: list[str]
) -> None:
    leave(stage)
    acknowledge(stage)
    stage.wait(3 * TOLD_AGAIN_FIRST_MS)

    assert left(heard) == ["node a left: switched off"]


def test_without_a_subscriber_nothing_is_kept_or_told_again(heard: list[str]) -> None:
    stage = Stage(heard.append)
    stage.join(StageMachine("a", {"cpu": 1000}, {}))
    leave(stage)
    stage.wait(3 * TOLD_AGAIN_FIRST_MS)

    status = stage.mirror.nodes[A].status
    assert status is not None
    assert status.notice is None
    assert left(heard) == ["node a left: switched off"]


def test_while_no_subscriber_that_is_behind_is_connected_nothing_is_told_again(
    stage: Stage, heard: list[str]
) -> None:
    stage.disconnect(OWNER)
    leave(stage)
    stage.wait(10 * TOLD_AGAIN_FIRST_MS)
    assert left(heard) == ["node a left: switched off"]

    stage.watch(OWNER)
    stage.wait(60 * TOLD_AGAIN_FIRST_MS)
    assert "node a left: switched off, told 2 times" in heard


def test_the_next_server_goes_on_telling(stage: Stage, heard: list[str]) -> None:
    leave(stage)
    stage.restart()
    stage.watch(OWNER)
    stage.wait(TOLD_AGAIN_FIRST_MS)

    assert left(heard)[-1] == "node a left: switched off, told 2 times"


def test_a_node_that_is_back_is_not_told_of_any_more(stage: Stage, heard: list[str]) -> None:
    leave(stage)
    stage.call(stage.machines["a"])
    stage.wait(3 * TOLD_AGAIN_FIRST_MS)

    assert left(heard) == ["node a left: switched off"]


def test_after_events_are_no_longer_kept_a_leave_is_not_told_again(stage: Stage, heard: list[str]) -> None:
    leave(stage)
    stage.wait(EVENTS_KEPT_MS)
    told = len(left(heard))
    stage.wait(EVENTS_KEPT_MS)

    assert len(left(heard)) == told
