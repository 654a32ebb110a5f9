"""A node's silence and the time: suspect, lost, ready again; our own sleep is never its silence."""

import pytest

from rota.engine.state.mirror import Mirror
from rota.model.lifecycle import AttemptState, NodeState
from rota.model.limits import LOST_MS, OFFER_GRACE_MS, SUSPECT_MS
from rota.model.messages import ReportedState
from rota.model.node import Connection
from rota.model.plan import NO_CHANGE, Plan
from rota.model.shape import RunMode
from rota.testing.builders import add_node, apply, at, job_spec
from rota.testing.stage import Stage, StageMachine
from rota.watcher import liveness
from tests.watcher.placed_work import ONE, A, placed, report_state, states


def judged(mirror: Mirror, ms: int, lost_ms: int = LOST_MS) -> Plan:
    return apply(mirror, liveness.decide_liveness(mirror, A, at(ms), lost_ms))


def node_state(mirror: Mirror) -> NodeState:
    status = mirror.nodes[A].status
    assert status is not None
    return status.state


def test_a_responsive_node_is_decided_again_when_it_could_be_suspect() -> None:
    mirror = Mirror()
    add_node(mirror, "a")

    assert judged(mirror, SUSPECT_MS - 1) == Plan(wake_at_ms=SUSPECT_MS)


def test_a_broken_stream_makes_a_node_suspect_immediately() -> None:
    mirror = Mirror()
    add_node(mirror, "a", link=Connection.DOWN)
    plan = judged(mirror, 1)

    assert node_state(mirror) is NodeState.SUSPECT
    assert plan.why == "node a is suspect: its connection broke"
    assert plan.wake_at_ms == 1 + OFFER_GRACE_MS


def test_silence_on_an_open_stream_makes_a_node_suspect() -> None:
    mirror = Mirror()
    add_node(mirror, "a")

    assert judged(mirror, SUSPECT_MS).why == "node a is suspect: silent for 15 s"


def test_a_node_not_seen_since_the_takeover_has_the_same_grace() -> None:
    mirror = Mirror()
    add_node(mirror, "a", link=Connection.UNKNOWN)
    early = judged(mirror, SUSPECT_MS - 1)
    judged(mirror, SUSPECT_MS)

    assert early == Plan(wake_at_ms=SUSPECT_MS)
    assert node_state(mirror) is NodeState.SUSPECT


def test_a_shorter_lost_timeout_makes_nodes_suspect_sooner() -> None:
    mirror = Mirror()
    add_node(mirror, "a")

    assert judged(mirror, 1000, lost_ms=2000).why == "node a is suspect: silent for 1 s"


def test_a_suspect_node_is_lost_after_its_grace_with_its_attempts() -> None:
    mirror = placed(count=2)
    report_state(mirror, ReportedState.RUNNING, (0, 1))
    report_state(mirror, ReportedState.ACCEPTED, (1, 1))
    mirror.connect(A, Connection.DOWN)
    judged(mirror, 1)
    early = judged(mirror, LOST_MS - 1)
    judged(mirror, LOST_MS)

    assert early == Plan(wake_at_ms=LOST_MS)
    assert node_state(mirror) is NodeState.LOST
    assert states(mirror) == [AttemptState.LOST] * 2
    assert mirror.nodes[A].assigned == {}


def test_unanswered_offers_of_a_suspect_node_are_withdrawn() -> None:
    mirror = placed(count=2)
    report_state(mirror, ReportedState.RUNNING, (0, 1))
    mirror.connect(A, Connection.DOWN)
    judged(mirror, 1)
    assert states(mirror) == [AttemptState.RUNNING, AttemptState.OFFERED], "it may be back in a moment"
    judged(mirror, 1 + OFFER_GRACE_MS)

    assert states(mirror) == [AttemptState.RUNNING, AttemptState.WITHDRAWN]


def test_unanswered_offers_of_a_silent_node_are_withdrawn_immediately() -> None:
    mirror = placed()
    judged(mirror, SUSPECT_MS)

    assert states(mirror) == [AttemptState.WITHDRAWN]


def test_an_offer_of_an_at_most_once_task_is_not_withdrawn() -> None:
    mirror = placed(run=RunMode.AT_MOST_ONCE)
    mirror.connect(A, Connection.DOWN)
    judged(mirror, 1)

    assert list(mirror.nodes[A].assigned) == [(ONE, 0)]


def test_a_suspect_node_that_responds_in_time_is_ready_again() -> None:
    mirror = placed()
    report_state(mirror, ReportedState.RUNNING, (0, 1))
    judged(mirror, SUSPECT_MS)
    mirror.now_ms = 20_000
    mirror.mark_seen(A)
    plan = judged(mirror, 20_001)

    assert node_state(mirror) is NodeState.READY
    assert plan.why == "node a responds again"
    assert states(mirror) == [AttemptState.RUNNING]


def test_a_suspect_node_with_a_broken_stream_stays_suspect() -> None:
    mirror = Mirror()
    add_node(mirror, "a", link=Connection.DOWN)
    judged(mirror, 1)

    assert judged(mirror, 1 + OFFER_GRACE_MS) == Plan(wake_at_ms=LOST_MS)


@pytest.mark.parametrize("state", [NodeState.LOST, NodeState.LEFT])
def test_the_liveness_of_a_lost_node_is_not_decided_again(state: NodeState) -> None:
    mirror = Mirror()
    add_node(mirror, "a", link=Connection.DOWN, state=state)

    assert judged(mirror, 10**9) is NO_CHANGE


def test_the_liveness_of_a_node_that_never_connected_is_not_decided() -> None:
    assert liveness.decide_liveness(Mirror(), A, at(10**9), LOST_MS) is NO_CHANGE


# ---- on stage


def staged() -> Stage:
    stage = Stage()
    for name in ("a", "b"):
        stage.join(StageMachine(name, {"cpu": 1000}, {}))
    stage.submit(job_spec(count=2))
    return stage


def test_responsive_nodes_stay_ready() -> None:
    stage = staged()
    stage.wait(300_000)

    assert {entry.status.state for entry in stage.mirror.nodes.values() if entry.status} == {NodeState.READY}


def test_a_suspended_server_does_not_count_its_sleep_as_silence() -> None:
    stage = staged()
    stage.stall(10 * LOST_MS)
    stage.wait(LOST_MS)

    assert {entry.status.state for entry in stage.mirror.nodes.values() if entry.status} == {NodeState.READY}
    assert [len(machine.held) for machine in stage.machines.values()] == [1, 1]


def test_a_silent_node_is_lost_thirty_seconds_after_its_last_message() -> None:
    stage = staged()
    stage.wait(10_000)
    stage.machines["a"].silent = True
    stage.wait(LOST_MS - 1000)
    before = node_state(stage.mirror)
    stage.wait(1000)

    assert (before, node_state(stage.mirror)) == (NodeState.SUSPECT, NodeState.LOST)


def test_after_a_restart_the_silence_of_every_node_starts_at_zero() -> None:
    stage = staged()
    stage.wait(10_000)
    stage.restart()
    stage.wait(SUSPECT_MS - 1000)
    before = node_state(stage.mirror)
    stage.wait(1000)

    assert (before, node_state(stage.mirror)) == (NodeState.READY, NodeState.SUSPECT)


def test_a_lost_node_that_responds_on_its_old_stream_is_ready_again() -> None:
    stage = staged()
    stage.machines["a"].silent = True
    stage.wait(LOST_MS)
    stage.end_silence(stage.machines["a"])
    stage.wait(LOST_MS)

    assert node_state(stage.mirror) is NodeState.READY
