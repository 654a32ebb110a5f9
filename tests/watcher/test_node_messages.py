"""A node's hello, report and leave: what they change in its attempts and its state."""

from typing import Any

import pytest

from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import NodeId
from rota.model.lifecycle import AttemptState, NodeState
from rota.model.limits import SUSPECT_MS
from rota.model.messages import DrainRequest, JobReports, NodeReport, ReportedState, Start
from rota.model.node import Connection, NodeSpec, NodeStatus
from rota.model.plan import Plan
from rota.testing.builders import WALL_MS, add_node, apply, at, hello, job_reports
from rota.watcher import node_messages
from rota.watcher.dispatch import DispatchState
from rota.wire import agent as wire
from tests.watcher.placed_work import ONE, A, B, place, placed, report_state, states


def connect(mirror: Mirror, *inventory: JobReports, **fields: Any) -> Plan:
    entry = mirror.nodes[A].status
    assert entry is not None
    message = hello("a", list(inventory), **({"capacity": entry.capacity} | fields))
    return apply(mirror, node_messages.on_hello(mirror, A, message, at(5)))


# ---- the node itself


def test_a_first_hello_makes_a_node_ready() -> None:
    mirror = Mirror()
    mirror.apply(NodeSpec(A, "laptop"))
    plan = node_messages.on_hello(mirror, A, hello("a", labels={"arch": "arm"}), at(5))

    (status,) = plan.puts
    assert isinstance(status, NodeStatus)
    assert (status.state, status.labels, status.since_ms) == (NodeState.READY, {"arch": "arm"}, WALL_MS + 5)
    assert [(event.kind, event.why) for event in plan.events] == [("node.joined", "node laptop is ready")]


def test_a_hello_without_changes_writes_nothing_but_is_fenced() -> None:
    mirror = Mirror()
    add_node(mirror, "a")

    assert connect(mirror) == Plan(why="node a said hello", fenced=True)


def test_another_machine_or_boot_is_refused_while_the_first_one_answers() -> None:
    mirror = Mirror()
    add_node(mirror, "a")
    twin = hello("a", boot_id="another")

    assert node_messages.why_refused(mirror, A, hello("a"), epoch=1, now_ms=SUSPECT_MS - 1) is None
    assert (
        node_messages.why_refused(mirror, A, twin, epoch=1, now_ms=SUSPECT_MS - 1)
        == "node a is connected from elsewhere"
    )
    assert (
        node_messages.why_refused(mirror, A, hello("a", machine_id="another"), epoch=1, now_ms=0) is not None
    )
    assert node_messages.why_refused(mirror, A, twin, epoch=1, now_ms=SUSPECT_MS) is None
    mirror.connect(A, Connection.DOWN)
    assert node_messages.why_refused(mirror, A, twin, epoch=1, now_ms=0) is None


def test_a_node_that_has_seen_a_newer_leader_is_refused() -> None:
    mirror = Mirror()
    add_node(mirror, "a")

    assert node_messages.why_refused(mirror, A, hello("a", epoch_seen=8), epoch=8, now_ms=0) is None
    assert node_messages.why_refused(mirror, A, hello("a", epoch_seen=8), epoch=7, now_ms=0) is not None


@pytest.mark.parametrize("before", [NodeState.SUSPECT, NodeState.LOST, NodeState.LEFT])
def test_a_node_that_reconnects_is_ready_again(before: NodeState) -> None:
    mirror = Mirror()
    add_node(mirror, "a", state=before, reason="silent for 30 s")
    plan = connect(mirror)

    (status,) = plan.puts
    assert isinstance(status, NodeStatus)
    assert (status.state, status.reason) == (NodeState.READY, None)
    assert [event.kind for event in plan.events] == ["node.recovered"]


def test_an_unknown_node_is_refused() -> None:
    with pytest.raises(NotFound, match="n9 is not known"):
        node_messages.on_hello(Mirror(), NodeId("n9"), hello("n9"), at(0))
    with pytest.raises(NotFound, match="n9 is not known"):
        node_messages.on_report(Mirror(), NodeId("n9"), NodeReport(1, []), at(0))


# ---- its inventory


def test_an_attempt_that_ended_while_disconnected_is_applied_from_the_inventory() -> None:
    mirror = placed(count=2)
    report_state(mirror, ReportedState.RUNNING, (0, 1), (1, 1))
    connect(
        mirror,
        job_reports(1, ReportedState.EXITED, (0, 1), exit_code=0),
        job_reports(1, ReportedState.RUNNING, (1, 1)),
    )

    assert states(mirror) == [AttemptState.SUCCEEDED, AttemptState.RUNNING]


def test_a_running_attempt_missing_from_the_inventory_is_lost() -> None:
    mirror = placed(count=2)
    report_state(mirror, ReportedState.RUNNING, (0, 1), (1, 1))
    plan = connect(mirror, job_reports(1, ReportedState.RUNNING, (1, 1)))

    assert states(mirror) == [AttemptState.LOST, AttemptState.RUNNING]
    assert plan.events[0].why == "task 0 of job 1 lost on a: its node no longer knows it"


@pytest.mark.parametrize("state", [None, ReportedState.ACCEPTED, ReportedState.QUEUED])
def test_an_attempt_that_cannot_have_started_is_offered_again(state: ReportedState | None) -> None:
    mirror = placed()
    if state is not None:
        report_state(mirror, state, (0, 1))
    plan = connect(mirror)

    assert plan.puts == ()
    assert [order.start for order in DispatchState([]).orders(mirror, A)] == [[Start(0, 1, firm=True)]]


def test_after_a_reboot_attempts_are_lost_and_offers_get_a_new_number() -> None:
    mirror = placed(count=4)
    report_state(mirror, ReportedState.RUNNING, (0, 1))
    report_state(mirror, ReportedState.ACCEPTED, (1, 1))
    report_state(mirror, ReportedState.QUEUED, (2, 1))
    plan = connect(mirror, boot_id="boot-2")

    assert states(mirror) == [AttemptState.LOST] * 3 + [AttemptState.WITHDRAWN]
    assert not mirror.nodes[A].assigned
    assert "tasks 0-2 of job 1 lost on a: its node restarted" in [event.why for event in plan.events]


def test_an_inventory_of_foreign_and_stale_attempts_changes_nothing() -> None:
    mirror = placed()
    report_state(mirror, ReportedState.REFUSED, (0, 1))
    place(mirror)  # now on b
    plan = connect(
        mirror,
        job_reports(1, ReportedState.RUNNING, (0, 1)),
        job_reports(1, ReportedState.RUNNING, (0, 2)),
        job_reports(9, ReportedState.RUNNING, (0, 1)),
    )

    assert plan.puts == ()
    assert list(mirror.nodes[B].assigned) == [(ONE, 0)]


# ---- leaving


def test_a_node_that_leaves_loses_its_attempts_immediately() -> None:
    mirror = placed(count=2)
    report_state(mirror, ReportedState.RUNNING, (0, 1))
    plan = apply(mirror, node_messages.on_leave(mirror, A, "switched off", at(5)))

    assert mirror.nodes[A].assigned == {}
    assert states(mirror) == [AttemptState.LOST] * 2
    assert [event.why for event in plan.events] == [
        "node a left: switched off",
        "tasks 0-1 of job 1 lost on a: node a left: switched off",
    ]


def test_a_node_leaves_once() -> None:
    mirror = placed()
    apply(mirror, node_messages.on_leave(mirror, A, "switched off", at(5)))

    assert node_messages.on_leave(mirror, A, "switched off", at(6)) == Plan()
    assert node_messages.on_leave(mirror, NodeId("n9"), "unknown", at(6)) == Plan()


def test_a_termination_notice_closes_a_node_until_it_is_withdrawn() -> None:
    mirror = placed()
    notice = DrainRequest("the price is too high", 30_000, moves=True)
    given = apply(mirror, node_messages.on_drain(mirror, A, notice, at(1000)))
    status = mirror.nodes[A].status
    again = node_messages.on_drain(mirror, A, notice, at(9000))
    over = apply(mirror, node_messages.on_drain(mirror, A, DrainRequest("", 0, over=True), at(9500)))

    assert status is not None
    assert (status.leaving, status.leaves_by_ms, status.reason) == (True, 31_000, "the price is too high")
    assert [event.why for event in given.events] == ["node a leaves within 30 s: the price is too high"]
    assert again == Plan()
    assert [event.why for event in over.events] == ["node a does not leave after all"]
    assert node_messages.on_drain(mirror, A, DrainRequest("", 0, over=True), at(9600)) == Plan()


def test_a_reconnecting_node_says_whether_it_is_about_to_leave() -> None:
    mirror = placed()
    named = job_reports(1, ReportedState.RUNNING, (0, 1))
    connect(mirror, named)
    going = connect(mirror, named, drain=DrainRequest("spot", 20_000, moves=True))
    status = mirror.nodes[A].status
    staying = connect(mirror, named)

    assert status is not None
    assert (status.leaving, status.leaves_by_ms, status.reason) == (True, 20_005, "spot")
    assert "node a leaves within 20 s: spot" in [event.why for event in going.events]
    assert "node a does not leave after all" in [event.why for event in staying.events]
    assert mirror.nodes[A].status.leaves_by_ms is None  # type: ignore[union-attr]


def test_a_drain_requested_by_the_node_has_no_deadline() -> None:
    mirror = placed()
    apply(mirror, node_messages.on_drain(mirror, A, DrainRequest("it was told to leave", 30_000), at(1000)))
    status = mirror.nodes[A].status

    assert status is not None
    assert (status.leaving, status.leaves_by_ms) == (True, None)


@pytest.mark.parametrize(
    "drain", [None, DrainRequest("spot", 30_000, moves=True), DrainRequest("", 0, over=True)]
)
def test_the_drain_of_a_hello_survives_the_wire(drain: DrainRequest | None) -> None:
    message = hello("a", drain=drain)

    assert wire.hello_from_wire(wire.hello_to_wire(message)) == message


# ---- withdrawing


def test_only_unanswered_offers_are_withdrawn() -> None:
    mirror = placed(count=3)
    report_state(mirror, ReportedState.ACCEPTED, (0, 1))
    report_state(mirror, ReportedState.RUNNING, (1, 1))
    for record in node_messages.withdraw_offers(mirror, A, at(5)).puts():
        mirror.apply(record)

    assert states(mirror) == [AttemptState.ACCEPTED, AttemptState.RUNNING, AttemptState.WITHDRAWN]
