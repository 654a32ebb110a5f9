"""The event `node.left` is repeated until all subscribers have acknowledged it."""

import pytest

from rota.model.ids import NodeId
from rota.model.limits import EVENTS_KEPT_MS, TOLD_AGAIN_FIRST_MS
from rota.model.subscriber import Subscriber
from rota.testing.stage import Stage, StageMachine

A = NodeId("a")
OWNER = "ann:ci"


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def stage(reasons: list[str]) -> Stage:
    """One node, and a subscriber that has acknowledged everything so far and is connected."""
    made = Stage(reasons.append)
    made.join(StageMachine("a", {"cpu": 1000}, {}))
    made.put(Subscriber(OWNER, made.revision, 0))
    made.watch(OWNER)
    return made


def leave(stage: Stage) -> None:
    stage.leave(stage.machines["a"], "switched off")


def left(reasons: list[str]) -> list[str]:
    return [why for why in reasons if why.startswith("node a left")]


def acknowledge(stage: Stage) -> None:
    stage.put(Subscriber(OWNER, stage.revision, 99))


def test_a_leave_event_is_repeated_until_it_is_acknowledged(stage: Stage, reasons: list[str]) -> None:
    leave(stage)
    stage.wait(3 * TOLD_AGAIN_FIRST_MS)

    assert left(reasons) == [
        "node a left: switched off",
        "node a left: switched off, told 2 times",
        "node a left: switched off, told 3 times",
    ]
    acknowledge(stage)
    stage.wait(EVENTS_KEPT_MS)
    assert len(left(reasons)) == 3


def test_a_leave_event_acknowledged_immediately_is_not_repeated(stage: Stage, reasons: list[str]) -> None:
    leave(stage)
    acknowledge(stage)
    stage.wait(3 * TOLD_AGAIN_FIRST_MS)

    assert left(reasons) == ["node a left: switched off"]


def test_without_a_subscriber_a_leave_event_is_not_stored_or_repeated(reasons: list[str]) -> None:
    stage = Stage(reasons.append)
    stage.join(StageMachine("a", {"cpu": 1000}, {}))
    leave(stage)
    stage.wait(3 * TOLD_AGAIN_FIRST_MS)

    status = stage.mirror.nodes[A].status
    assert status is not None
    assert status.notice is None
    assert left(reasons) == ["node a left: switched off"]


def test_a_leave_event_is_not_repeated_while_no_behind_subscriber_is_connected(
    stage: Stage, reasons: list[str]
) -> None:
    stage.disconnect(OWNER)
    leave(stage)
    stage.wait(10 * TOLD_AGAIN_FIRST_MS)
    assert left(reasons) == ["node a left: switched off"]

    stage.watch(OWNER)
    stage.wait(60 * TOLD_AGAIN_FIRST_MS)
    assert "node a left: switched off, told 2 times" in reasons


def test_the_next_leader_continues_to_repeat_a_leave_event(stage: Stage, reasons: list[str]) -> None:
    leave(stage)
    stage.restart()
    stage.watch(OWNER)
    stage.wait(TOLD_AGAIN_FIRST_MS)

    assert left(reasons)[-1] == "node a left: switched off, told 2 times"


def test_a_leave_event_is_not_repeated_after_the_node_is_back(stage: Stage, reasons: list[str]) -> None:
    leave(stage)
    stage.call(stage.machines["a"])
    stage.wait(3 * TOLD_AGAIN_FIRST_MS)

    assert left(reasons) == ["node a left: switched off"]


def test_a_leave_event_is_not_repeated_beyond_event_retention(stage: Stage, reasons: list[str]) -> None:
    leave(stage)
    stage.wait(EVENTS_KEPT_MS)
    reports = len(left(reasons))
    stage.wait(EVENTS_KEPT_MS)

    assert len(left(reasons)) == reports
