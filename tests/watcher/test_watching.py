"""What a watcher relays, when it counts as silent, and which session of a node counts."""

import asyncio
import time

import grpc
import pytest

from rota.model.limits import REPORT_MOST_MS
from rota.watcher.dispatch import DispatchState
from rota.watcher.relay.keepalive import KeepaliveTimer, PeerSilent
from rota.watcher.relay.uplink import LeaderUnreachable, LoadFilter, RelayedSession, Uplink, _Outgoing
from rota.watcher.session import NodeSession
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import watcher_pb2
from tests.watcher.placed_work import A

GIB = 1 << 30


def load(cpu_milli: int = 500, memory_free: int = 8 * GIB) -> pb.Load:
    return pb.Load(cpu_milli=cpu_milli, cores=4, memory_total=16 * GIB, memory_free=memory_free)


def test_a_load_is_relayed_when_it_differs_or_the_last_one_is_old() -> None:
    loads = LoadFilter()
    relayed = [
        loads.should_relay(load(), 0),
        loads.should_relay(load(cpu_milli=600), 1_000),
        loads.should_relay(load(cpu_milli=700), 2_000),
        loads.should_relay(load(cpu_milli=700, memory_free=7 * GIB), 3_000),
        loads.should_relay(load(cpu_milli=700, memory_free=7 * GIB), 3_000 + REPORT_MOST_MS - 1),
        loads.should_relay(load(cpu_milli=700, memory_free=7 * GIB), 3_000 + REPORT_MOST_MS),
    ]

    assert relayed == [True, False, True, True, False, True]
    assert loads.last == load(cpu_milli=700, memory_free=7 * GIB)


def test_a_shortage_is_relayed_immediately() -> None:
    loads = LoadFilter()
    loads.should_relay(load(), 0)
    short = load()
    short.shortage = "the disk is full"

    assert loads.should_relay(short, 1)


async def test_a_connection_with_a_silent_peer_ends() -> None:
    with pytest.raises(PeerSilent, match=r"it has sent nothing for 0\.03 s"):
        await KeepaliveTimer(3, 0.01).watch()


async def test_a_suspension_of_this_process_is_one_tick_however_long() -> None:
    quiet = KeepaliveTimer(3, 0.05)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(quiet.watch())
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251  the whole process is held up, as by SIGSTOP
        quiet.reset()
        await asyncio.sleep(0)
        still_open = not watching.done()
        watching.cancel()

    assert still_open


def test_a_session_is_newer_than_an_older_connection_of_the_same_boot() -> None:
    session = NodeSession(A, DispatchState([]), boot_id="b", number=7)

    assert session.is_newer_than("b", 6)
    assert not session.is_newer_than("b", 7)
    assert not session.is_newer_than("b", 0), "an older agent sends no number"
    assert not session.is_newer_than("another boot", 6)


def message(n: int) -> pb.FromNode:
    return pb.FromNode(n=n, report=pb.Report())


def test_heartbeats_are_relayed_as_numbers_and_other_messages_as_they_are() -> None:
    outgoing = _Outgoing()
    first, other = RelayedSession(1), RelayedSession(2)
    outgoing.open(first, b"certificate", pb.FromNode(n=1, hello=pb.Hello(boot_id="b")), "10.0.0.1")
    outgoing.open(other, b"certificate", pb.FromNode(n=1, hello=pb.Hello(boot_id="b")), "10.0.0.2")
    outgoing.send(first, message(2))
    outgoing.acknowledge(first, 3, holds_leases=False)
    outgoing.acknowledge(other, 4, holds_leases=True)
    outgoing.acknowledge(first, 5, holds_leases=False)
    batch = outgoing.next_batch()

    assert [opened.session for opened in batch.opened] == [1, 2]
    assert [pb.FromNode.FromString(word.word).n for word in batch.words] == [2]
    assert dict(zip(batch.heard_session, batch.heard_n, strict=True)) == {1: 5, 2: 4}
    assert list(batch.leased) == [2]


def test_received_numbers_are_known_from_acknowledgements_only() -> None:
    outgoing, session = _Outgoing(), RelayedSession(1)
    outgoing.acknowledge(session, 3, holds_leases=False)
    first = outgoing.next_batch()
    outgoing.acknowledge(session, 4, holds_leases=False)
    second = outgoing.next_batch()

    assert outgoing.acknowledged(first.n - 1) == []
    assert outgoing.acknowledged(first.n) == [(session, 3)]
    assert outgoing.acknowledged(second.n) == [(session, 4)]


def test_many_messages_take_several_batches_and_the_last_confirms_them() -> None:
    outgoing, session = _Outgoing(), RelayedSession(1)
    large = pb.FromNode(n=2, leave=pb.Leave(reason="x" * 700_000))
    for _ in range(3):
        outgoing.send(session, large)
    batches = [outgoing.next_batch(), outgoing.next_batch()]

    assert [len(batch.words) for batch in batches] == [2, 1]
    assert [list(batch.heard_n) for batch in batches] == [[], [2]]


async def test_a_session_ends_after_its_last_messages() -> None:
    session = RelayedSession(1)
    session.push(b"one")
    session.finish(grpc.StatusCode.ABORTED, "a newer one")
    session.finish(grpc.StatusCode.UNAVAILABLE, "too late")
    messages = [await session.next_messages(), await session.next_messages()]

    assert messages == [[b"one"], []]
    assert session.end == (grpc.StatusCode.ABORTED, "a newer one")


async def test_an_older_leader_is_not_followed() -> None:
    uplink = Uplink("10.0.0.1:1", ["10.0.0.2:1"], lambda _: grpc.aio.insecure_channel(""), None)
    uplink._receive_batch(watcher_pb2.LeaderBatch(epoch=7))

    with pytest.raises(LeaderUnreachable, match="its epoch is 6, and 7 was seen before"):
        uplink._receive_batch(watcher_pb2.LeaderBatch(epoch=6))
