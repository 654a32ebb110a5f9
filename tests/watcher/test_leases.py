"""An attempt under a run lease is lost when it provably runs no more, in any state of its node."""

from typing import Any

from rota.engine.state.mirror import Mirror
from rota.model.lifecycle import AttemptState, NodeState
from rota.model.limits import LEASE_MARGIN_MS, LEASE_MS, LOST_MS
from rota.model.messages import ReportedState
from rota.model.node import Connection
from rota.model.plan import Plan
from rota.model.shape import RunMode
from rota.testing.builders import add_job, add_node, apply, at, hello, job_spec
from rota.watcher import liveness, node_messages
from tests.watcher.placed_work import ONE, A, place, report_state, states

TERM_MS = LEASE_MS + LEASE_MARGIN_MS


def running(**spec: Any) -> Mirror:
    mirror = Mirror()
    add_node(mirror, "a", {"cpu": 1000}, labels={"leases": "pid-namespace"})
    add_job(mirror, job_spec(run=RunMode.ONE_AT_A_TIME, **spec))
    place(mirror)
    report_state(mirror, ReportedState.RUNNING, (0, 1))
    mirror.connect(A, Connection.DOWN)
    return mirror


def decided(mirror: Mirror, ms: int, *, lost_ms: int = LOST_MS, ttl_ms: int = 0) -> Plan:
    """Decide by the whole reconciler until it writes nothing more."""
    reconciler = liveness.reconciler(lost_ms, ttl_ms)
    plan = apply(mirror, reconciler.decide(mirror, A, at(ms)))
    return plan if not plan.puts else decided(mirror, ms, lost_ms=lost_ms, ttl_ms=ttl_ms)


def test_a_leased_attempt_is_lost_after_lease_and_margin_though_its_node_is_only_suspect() -> None:
    mirror = running()
    early = decided(mirror, TERM_MS - 1)
    assert states(mirror) == [AttemptState.RUNNING]
    assert early.wake_at_ms == TERM_MS

    decided(mirror, TERM_MS)
    assert states(mirror) == [AttemptState.LOST]
    status = mirror.nodes[A].status
    assert status is not None
    assert status.state is NodeState.SUSPECT
    assert mirror.jobs[ONE].statuses[0].reasons == {0: "its run lease ran out: node a was silent for 23 s"}


def test_a_leased_attempt_is_not_lost_before_though_its_node_is() -> None:
    mirror = running()
    plan = decided(mirror, 10_000, lost_ms=10_000)

    status = mirror.nodes[A].status
    assert status is not None
    assert status.state is NodeState.LOST
    assert states(mirror) == [AttemptState.RUNNING]
    assert plan.wake_at_ms == TERM_MS


def test_a_leased_attempt_on_a_node_that_left_waits_for_its_lease() -> None:
    mirror = running()
    apply(mirror, node_messages.on_leave(mirror, A, "told to", at(1)))

    assert states(mirror) == [AttemptState.RUNNING]
    decided(mirror, TERM_MS)
    assert states(mirror) == [AttemptState.LOST]


def test_a_new_leader_waits_as_long_as_the_previous_one_may_have_renewed() -> None:
    mirror = running()
    decided(mirror, TERM_MS + 9_999, ttl_ms=10_000)
    assert states(mirror) == [AttemptState.RUNNING]

    decided(mirror, TERM_MS + 10_000, ttl_ms=10_000)
    assert states(mirror) == [AttemptState.LOST]


def test_lease_and_margin_are_taken_from_the_job() -> None:
    mirror = running(lease_seconds=3.0, lease_margin_seconds=1.0)
    decided(mirror, 3_999)
    assert states(mirror) == [AttemptState.RUNNING]

    decided(mirror, 4_000)
    assert states(mirror) == [AttemptState.LOST]


def test_a_node_silent_for_longer_than_a_lease_is_suspect() -> None:
    mirror = running(lease_seconds=3.0)
    mirror.connect(A, Connection.UP)
    decided(mirror, 6_000)

    status = mirror.nodes[A].status
    assert status is not None
    assert status.state is NodeState.SUSPECT


def test_a_rebooted_node_is_refused_until_its_leases_have_expired() -> None:
    mirror = running()
    rebooted = hello("a", boot_id="another")

    refusal = node_messages.why_refused(mirror, A, rebooted, epoch=1, now_ms=TERM_MS - 1)
    assert refusal is not None
    assert "lease" in refusal
    assert node_messages.why_refused(mirror, A, rebooted, epoch=1, now_ms=TERM_MS) is None
    assert node_messages.why_refused(mirror, A, hello("a"), epoch=1, now_ms=1) is None
