"""A revoked node is suspect whatever it sends, lost by the usual rules, and deleted when that is safe."""

import pytest

from rota.engine.state.mirror import Mirror
from rota.model.errors import NotAllowed
from rota.model.lifecycle import NodeState
from rota.model.limits import LOST_MS, REVOKED_LOOK_MS
from rota.model.messages import NodeReport
from rota.model.node import Connection, Eligibility, NodeIntent
from rota.model.plan import NO_CHANGE, Instant, Plan
from rota.rules.disruption import SilentNodes, is_confirmed_gone
from rota.testing.builders import add_node, apply, at, hello
from rota.watcher import liveness, node_messages, revocations
from tests.watcher.placed_work import A

UNTIL_MS = 1_000_000


@pytest.fixture
def mirror() -> Mirror:
    """One node, connected, responsive and revoked."""
    made = Mirror()
    add_node(made, "a", link=Connection.UP)
    apply(made, Plan((NodeIntent(A, Eligibility.REVOKED, revoked_until_ms=UNTIL_MS),)))
    return made


def decide(mirror: Mirror, ms: int) -> Plan:
    return apply(mirror, liveness.decide_liveness(mirror, A, at(ms), LOST_MS))


def state(mirror: Mirror) -> NodeState:
    status = mirror.nodes[A].status
    assert status is not None
    return status.state


def test_a_revoked_node_is_suspect_though_it_responds_and_lost_after_the_usual_time(mirror: Mirror) -> None:
    suspected = decide(mirror, 1)
    mirror.mark_seen(A)
    decide(mirror, 2)
    early = state(mirror)
    decide(mirror, LOST_MS)

    assert suspected.why == "node a is suspect: it was revoked"
    assert (early, state(mirror)) == (NodeState.SUSPECT, NodeState.LOST)


def test_messages_of_a_revoked_node_are_refused(mirror: Mirror) -> None:
    reason = node_messages.why_refused(mirror, A, hello(A), epoch=1, now_ms=1)

    assert reason is not None
    assert "was revoked" in reason
    with pytest.raises(NotAllowed):
        node_messages.on_hello(mirror, A, hello(A), at(1))
    with pytest.raises(NotAllowed):
        node_messages.on_report(mirror, A, NodeReport(1, []), at(1))


def test_the_brake_neither_counts_nor_holds_a_revoked_node(mirror: Mirror) -> None:
    decide(mirror, 1)

    assert is_confirmed_gone(mirror.nodes[A])
    assert SilentNodes(mirror).all_declared_lost


def test_a_revoked_node_is_kept_while_one_of_its_certificates_could_be_used(mirror: Mirror) -> None:
    early = revocations.decide(mirror, A, Instant(0, UNTIL_MS - 10))
    long_before = revocations.decide(mirror, A, Instant(0, 0))

    assert early == Plan(wake_at_ms=10)
    assert long_before == Plan(wake_at_ms=REVOKED_LOOK_MS)


def test_a_revoked_node_is_deleted_when_lost_and_its_certificates_expired(mirror: Mirror) -> None:
    present = revocations.decide(mirror, A, Instant(0, UNTIL_MS))
    decide(mirror, 1)
    decide(mirror, LOST_MS)
    lost = revocations.decide(mirror, A, Instant(0, UNTIL_MS))

    assert not present.deletes
    assert set(lost.deletes) == {"node/a/spec", "node/a/wish", "node/a/status"}


def test_a_node_that_is_not_revoked_is_left_alone() -> None:
    mirror = Mirror()
    add_node(mirror, "a")

    assert revocations.decide(mirror, A, at(0)) == NO_CHANGE
