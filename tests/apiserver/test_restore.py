"""Records of a restored server, and the confirmation of an operator that nodes may follow it."""

from typing import Any

import pytest

from rota.apiserver.access import Caller
from rota.apiserver.admission import restore, submission
from rota.apiserver.routes.store import highest_epoch
from rota.engine.state.mirror import Mirror
from rota.identity.tokens import Role
from rota.model.adoption import Restored
from rota.model.errors import Conflict, NotAllowed, StoreFull
from rota.model.ids import NodeId
from rota.model.job import Counters, JobIntent, JobStatus
from rota.model.lifecycle import JobState
from rota.model.messages import Hello
from rota.model.node import RefusedHandshake
from rota.model.plan import Instant, Record
from rota.model.shape import RunMode
from rota.watcher import liveness, node_messages
from tests.apiserver.builders import ADA, NOW, node, node_status, spec

TAKEN_MS = 1_600_000_000_000


def hello(epoch_seen: int) -> Hello:
    return Hello("machine", "boot", "0.1.0", {}, {}, epoch_seen, [])


HELLO = hello(1)


def restored(*records: Record) -> Mirror:
    mirror = Mirror()
    mirror.load(restore.restored_records(records, TAKEN_MS, NOW))
    return mirror


def accepted(mirror: Mirror, now: Instant = NOW, **epochs: Any) -> Restored:
    plan = restore.accept_nodes(mirror, ADA, epochs.get("seen_epoch", 0), epochs.get("epoch", 2), now)
    for record in plan.puts:
        mirror.apply(record)
    assert mirror.restored is not None
    return mirror.restored


def test_no_id_is_used_twice() -> None:
    mirror = restored(Counters(jobs=7, nodes=2), spec(7))

    plan = submission.submit_job(mirror, {"command": ["a"]}, ADA, None, NOW)

    assert int(plan.answer.job) > 10_000_000
    assert list(mirror.jobs) == ["7"]


def test_at_most_once_jobs_are_paused_unless_they_have_ended() -> None:
    once = {"run": RunMode.AT_MOST_ONCE}
    mirror = restored(
        spec(1, **once),
        spec(2, **once),
        JobStatus(spec(2).id, JobState.SUCCEEDED),
        spec(3, **once),
        JobIntent(spec(3).id, max_parallel=4),
        spec(4),
        spec(5, run=RunMode.ONE_AT_A_TIME),
    )

    paused = {job: entry.intent.paused for job, entry in mirror.jobs.items() if entry.intent is not None}
    assert paused == {"1": True, "3": True}
    intent = mirror.jobs[spec(3).id].intent
    assert intent is not None
    assert intent.max_parallel == 4


def test_before_the_confirmation_no_node_is_accepted_and_none_declared_lost() -> None:
    mirror = restored(node(1), node_status(1))
    much_later = Instant(NOW.ms + 10**9, NOW.wall_ms + 10**9)

    refusal = node_messages.why_refused(mirror, NodeId("n1"), HELLO, epoch=2, now_ms=NOW.ms)
    plan = liveness.reconciler().decide(mirror, "n1", much_later)

    assert refusal is not None
    assert "rota store accept" in refusal
    assert plan.puts == ()
    assert plan.wake_at_ms is not None


def test_after_the_confirmation_nodes_are_accepted() -> None:
    mirror = restored(node(1), node_status(1))

    accepted(mirror)

    assert node_messages.why_refused(mirror, NodeId("n1"), HELLO, epoch=2, now_ms=NOW.ms) is None


def test_nodes_wait_until_the_longest_lease_has_expired() -> None:
    leased = {"run": RunMode.ONE_AT_A_TIME}
    mirror = restored(
        node(1),
        node_status(1),
        spec(1, **leased),
        spec(2, lease_seconds=60, lease_margin_seconds=5, **leased),
    )

    opens_at_ms = accepted(mirror).open_at_ms

    assert opens_at_ms == NOW.ms + 65_000
    refusal = node_messages.why_refused(mirror, NodeId("n1"), HELLO, epoch=2, now_ms=opens_at_ms - 1)
    assert refusal is not None
    assert "lease" in refusal
    assert node_messages.why_refused(mirror, NodeId("n1"), HELLO, epoch=2, now_ms=opens_at_ms) is None


def test_a_node_that_saw_a_higher_epoch_is_refused_with_a_hint() -> None:
    mirror = Mirror()
    mirror.load([node(1), node_status(1)])

    refusal = node_messages.why_refused(mirror, NodeId("n1"), hello(9), epoch=2, now_ms=NOW.ms)

    assert refusal is not None
    assert refusal.startswith("the node has seen epoch 9, this server leads 2")
    assert accepted(mirror, seen_epoch=9).accepted


def test_a_node_that_claims_an_impossible_epoch_is_ignored() -> None:
    mirror = Mirror()
    mirror.load([node(1), node_status(1), node(2), node_status(2)])
    for name, seen in (("n1", 2**63 - 3), ("n2", 9)):
        refusal = node_messages.why_refused(mirror, NodeId(name), hello(seen), epoch=2, now_ms=NOW.ms)
        assert refusal is not None
        assert ("rota store accept" in refusal) == (name == "n2")
        mirror.nodes[NodeId(name)].set_refused(RefusedHandshake(refusal, seen))

    assert highest_epoch(mirror, 2) == 9


def test_only_an_admin_may_confirm_and_only_while_nodes_wait() -> None:
    mirror = restored()
    operator = Caller("otto", Role.OPERATOR, ("*",))

    with pytest.raises(NotAllowed):
        restore.accept_nodes(mirror, operator, 0, 2, NOW)
    accepted(mirror)
    with pytest.raises(Conflict):
        restore.accept_nodes(mirror, ADA, 2, 2, NOW)


def test_a_server_with_low_disk_accepts_no_job() -> None:
    mirror = Mirror()
    mirror.load([spec(1)])
    mirror.disk_low = True

    with pytest.raises(StoreFull, match="disk is nearly full"):
        submission.submit_job(mirror, {"command": ["a"]}, ADA, None, NOW)
