"""Streams keep their order until they break, however late; calls are lost, duplicated and reordered."""

from typing import Any

from rota.sim.world.network import PING_MS, SimNetwork, SimStream
from rota.sim.world.virtual_time import SimClock, SimProcess, World


class StreamPair:
    """A node and a server with a stream between them, and what each of them received."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.network = SimNetwork(self.world)
        self.node, self.server = self._process("n1"), self._process("s1")
        self.received_by_server: list[Any] = []
        self.received_by_node: list[Any] = []
        self.breaks: list[tuple[str, str]] = []
        self.beat_changes: list[bool] = []
        self.stream = self._open()

    def _process(self, name: str) -> SimProcess:
        process = SimProcess(self.world, name, SimClock(self.world))
        process.start_life()
        return process

    def _open(self) -> SimStream:
        stream = self.network.open(self.node, self.server)
        stream.up.on_message, stream.down.on_message = (
            self.received_by_server.append,
            self.received_by_node.append,
        )
        stream.up.on_break = lambda reason: self.breaks.append(("s1", reason))
        stream.down.on_break = lambda reason: self.breaks.append(("n1", reason))
        stream.on_beats_change = self.beat_changes.append
        return stream

    def run(self, for_ms: int = 1_000) -> None:
        self.world.run(self.world.now_ms + for_ms)


def test_messages_of_a_stream_arrive_once_and_in_order() -> None:
    pair = StreamPair()
    for number in range(50):
        pair.stream.send_to_server(number)
        pair.stream.send_to_node(-number)
    pair.run()

    assert pair.received_by_server == list(range(50))
    assert pair.received_by_node == [-number for number in range(50)]


def test_a_short_cut_delays_messages_and_loses_none() -> None:
    pair = StreamPair()
    pair.stream.send_to_server("before")
    pair.network.cut("n1", "s1")
    pair.stream.send_to_server("during")
    pair.run()
    during = list(pair.received_by_server)
    pair.network.heal("n1", "s1")
    pair.stream.send_to_server("after")
    pair.run()

    assert during == []
    assert pair.received_by_server == ["before", "during", "after"]
    assert pair.breaks == []


def test_a_cut_one_way_lets_the_other_way_through() -> None:
    pair = StreamPair()
    pair.network.cut("n1", "s1")
    pair.stream.send_to_server("not received")
    pair.stream.send_to_node("received")
    pair.run()

    assert (pair.received_by_server, pair.received_by_node) == ([], ["received"])
    assert pair.beat_changes == [False]


def test_two_cuts_need_two_healings() -> None:
    pair = StreamPair()
    pair.network.cut("n1", "s1")
    pair.network.cut("n1", "s1")
    pair.network.heal("n1", "s1")
    still = pair.network.passes("n1", "s1")
    pair.network.heal("n1", "s1")

    assert not still
    assert pair.network.passes("n1", "s1")


def test_a_long_cut_is_noticed_by_both_ends_and_loses_messages_in_flight() -> None:
    pair = StreamPair()
    pair.network.cut("n1", "s1")
    pair.stream.send_to_server("lost")
    pair.run(PING_MS[0])
    early = list(pair.breaks)
    pair.run(PING_MS[1])
    pair.network.heal("n1", "s1")
    pair.run()

    assert early == []
    assert sorted(pair.breaks) == [("n1", "keepalive timed out"), ("s1", "keepalive timed out")]
    assert pair.received_by_server == []


def test_a_frozen_end_is_noticed_by_the_other_and_learns_of_it_when_resumed() -> None:
    pair = StreamPair()
    pair.node.freeze()
    pair.network.check_streams("n1")
    pair.run(PING_MS[1] + 1_000)
    while_frozen = list(pair.breaks)
    pair.node.resume()
    pair.run()

    assert pair.beat_changes[0] is False
    assert while_frozen == [("s1", "keepalive timed out")]
    assert [end for end, _ in pair.breaks] == ["s1", "n1"]


def test_a_closed_end_is_noticed_by_the_other_alone() -> None:
    pair = StreamPair()
    pair.stream.close(pair.stream.down, "bye")
    pair.run()

    assert pair.breaks == [("s1", "bye")]


def test_the_kernel_closes_the_stream_of_a_dead_process() -> None:
    pair = StreamPair()
    pair.node.end()
    pair.stream.die(pair.node, politely=True)
    pair.run()

    assert pair.breaks == [("s1", "the other end disconnected")]


def test_a_machine_that_loses_power_is_noticed_by_keepalive_only() -> None:
    pair = StreamPair()
    pair.node.end()
    pair.stream.die(pair.node, politely=False)
    pair.run(PING_MS[0])
    early = list(pair.breaks)
    pair.run(PING_MS[1])

    assert early == []
    assert pair.breaks == [("s1", "keepalive timed out")]


def test_a_restarted_process_receives_nothing_from_its_old_stream() -> None:
    pair = StreamPair()
    pair.stream.send_to_node("for the first life")
    pair.node.end()
    pair.node.start_life()
    pair.run()

    assert pair.received_by_node == []


def test_a_slow_network_keeps_the_order_of_a_stream() -> None:
    pair = StreamPair()
    pair.network.slowness = 200.0
    pair.stream.send_to_server("slow")
    pair.network.slowness = 1.0
    pair.stream.send_to_server("fast")
    pair.run(5)
    early = list(pair.received_by_server)
    pair.run()

    assert early == []
    assert pair.received_by_server == ["slow", "fast"]


def test_calls_are_lost_duplicated_and_reordered() -> None:
    pair = StreamPair()
    received: list[int] = []

    def call(numbers: range) -> None:
        for number in numbers:
            pair.network.call("user", pair.server, lambda number=number: received.append(number))  # type: ignore[misc]
        pair.run()

    call(range(100))
    without_faults = list(received)
    pair.network.loss, pair.network.duplication = 0.3, 0.3
    call(range(100, 200))

    assert sorted(without_faults) == list(range(100))
    assert without_faults != sorted(without_faults)
    lost, duplicated = (pair.world.counts[f"network: a message {what}"] for what in ("lost", "duplicated"))
    assert lost > 0 < duplicated
    assert len(received) == 200 - lost + duplicated


def test_a_call_to_a_cut_off_or_dead_process_is_lost() -> None:
    pair = StreamPair()
    received: list[str] = []
    pair.network.cut("user", "s1")
    pair.network.call("user", pair.server, lambda: received.append("cut off"))
    pair.run()
    pair.network.heal("user", "s1")
    pair.server.end()
    pair.network.call("user", pair.server, lambda: received.append("dead"))
    pair.run()

    assert received == []
