"""Streams keep their order until they break, however late; calls get lost, doubled and overtaken."""

from typing import Any

from rota.sim.world.network import PING_MS, SimNetwork, SimStream
from rota.sim.world.virtual_time import SimClock, SimProcess, World


class Line:
    """A node and a server with a stream between them, and what each of them heard."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.network = SimNetwork(self.world)
        self.node, self.server = self._process("n1"), self._process("s1")
        self.heard_up: list[Any] = []
        self.heard_down: list[Any] = []
        self.broke: list[tuple[str, str]] = []
        self.heeded: list[bool] = []
        self.stream = self._open()

    def _process(self, name: str) -> SimProcess:
        process = SimProcess(self.world, name, SimClock(self.world))
        process.start_life()
        return process

    def _open(self) -> SimStream:
        stream = self.network.open(self.node, self.server)
        stream.up.hear, stream.down.hear = self.heard_up.append, self.heard_down.append
        stream.up.broke = lambda reason: self.broke.append(("s1", reason))
        stream.down.broke = lambda reason: self.broke.append(("n1", reason))
        stream.heeds = self.heeded.append
        return stream

    def run(self, for_ms: int = 1_000) -> None:
        self.world.run(self.world.now_ms + for_ms)


def test_what_is_said_on_a_stream_arrives_once_and_in_order() -> None:
    line = Line()
    for word in range(50):
        line.stream.send_to_server(word)
        line.stream.send_to_node(-word)
    line.run()

    assert line.heard_up == list(range(50))
    assert line.heard_down == [-word for word in range(50)]


def test_a_short_cut_holds_words_back_and_loses_none() -> None:
    line = Line()
    line.stream.send_to_server("before")
    line.network.cut("n1", "s1")
    line.stream.send_to_server("during")
    line.run()
    during = list(line.heard_up)
    line.network.heal("n1", "s1")
    line.stream.send_to_server("after")
    line.run()

    assert during == []
    assert line.heard_up == ["before", "during", "after"]
    assert line.broke == []


def test_a_cut_one_way_lets_the_other_way_through() -> None:
    line = Line()
    line.network.cut("n1", "s1")
    line.stream.send_to_server("not heard")
    line.stream.send_to_node("heard")
    line.run()

    assert (line.heard_up, line.heard_down) == ([], ["heard"])
    assert line.heeded == [False]


def test_two_cuts_need_two_healings() -> None:
    line = Line()
    line.network.cut("n1", "s1")
    line.network.cut("n1", "s1")
    line.network.heal("n1", "s1")
    still = line.network.passes("n1", "s1")
    line.network.heal("n1", "s1")

    assert not still
    assert line.network.passes("n1", "s1")


def test_a_long_cut_is_noticed_by_both_ends_and_what_was_under_way_is_lost() -> None:
    line = Line()
    line.network.cut("n1", "s1")
    line.stream.send_to_server("lost")
    line.run(PING_MS[0])
    early = list(line.broke)
    line.run(PING_MS[1])
    line.network.heal("n1", "s1")
    line.run()

    assert early == []
    assert sorted(line.broke) == [("n1", "no answer to pings"), ("s1", "no answer to pings")]
    assert line.heard_up == []


def test_a_frozen_end_is_noticed_by_the_other_and_hears_of_it_when_it_thaws() -> None:
    line = Line()
    line.node.freeze()
    line.network.check_streams("n1")
    line.run(PING_MS[1] + 1_000)
    while_frozen = list(line.broke)
    line.node.resume()
    line.run()

    assert line.heeded[0] is False
    assert while_frozen == [("s1", "no answer to pings")]
    assert [end for end, _ in line.broke] == ["s1", "n1"]


def test_an_end_that_hangs_up_is_heard_by_the_other_alone() -> None:
    line = Line()
    line.stream.close(line.stream.down, "bye")
    line.run()

    assert line.broke == [("s1", "bye")]


def test_a_process_that_dies_is_hung_up_for_by_its_kernel() -> None:
    line = Line()
    line.node.end()
    line.stream.die(line.node, politely=True)
    line.run()

    assert line.broke == [("s1", "the other end hung up")]


def test_a_machine_that_vanishes_is_noticed_by_pings_only() -> None:
    line = Line()
    line.node.end()
    line.stream.die(line.node, politely=False)
    line.run(PING_MS[0])
    early = list(line.broke)
    line.run(PING_MS[1])

    assert early == []
    assert line.broke == [("s1", "no answer to pings")]


def test_a_process_that_was_started_again_hears_nothing_of_its_old_stream() -> None:
    line = Line()
    line.stream.send_to_node("for the first life")
    line.node.end()
    line.node.start_life()
    line.run()

    assert line.heard_down == []


def test_a_slow_network_is_late_and_keeps_the_order() -> None:
    line = Line()
    line.network.slowness = 200.0
    line.stream.send_to_server("slow")
    line.network.slowness = 1.0
    line.stream.send_to_server("fast")
    line.run(5)
    early = list(line.heard_up)
    line.run()

    assert early == []
    assert line.heard_up == ["slow", "fast"]


def test_calls_get_lost_doubled_and_overtaken() -> None:
    line = Line()
    heard: list[int] = []

    def call(numbers: range) -> None:
        for number in numbers:
            line.network.call("user", line.server, lambda number=number: heard.append(number))  # type: ignore[misc]
        line.run()

    call(range(100))
    well = list(heard)
    line.network.loss, line.network.doubling = 0.3, 0.3
    call(range(100, 200))

    assert sorted(well) == list(range(100))
    assert well != sorted(well)
    lost, doubled = (line.world.counts[f"network: a message {what}"] for what in ("lost", "doubled"))
    assert lost > 0 < doubled
    assert len(heard) == 200 - lost + doubled


def test_a_call_to_who_is_cut_off_or_dead_is_lost() -> None:
    line = Line()
    heard: list[str] = []
    line.network.cut("user", "s1")
    line.network.call("user", line.server, lambda: heard.append("cut off"))
    line.run()
    line.network.heal("user", "s1")
    line.server.end()
    line.network.call("user", line.server, lambda: heard.append("dead"))
    line.run()

    assert heard == []
