"""Drives the real agent's desk in virtual time: attaches to the keeper, calls a server, obeys, reports."""

import json
from base64 import b64decode
from collections.abc import Callable

from rota.agent.attempts import AttemptTracker, stops
from rota.agent.plan import HostFacts
from rota.agent.sequence import MessageSequence
from rota.keeper.protocol import wire
from rota.keeper.protocol.stop_modes import AttemptSignal, KeeperStopMode
from rota.keeper.supervisor import Supervisor
from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.ids import JobId
from rota.model.limits import BEAT_MS, SUSPECT_MS
from rota.model.messages import DrainRequest, Hello, JobOrders
from rota.runtimes.process import keeper_spec, reports_from_events, reports_from_state
from rota.sim.cluster.host import ServerAccess, SimHost
from rota.sim.cluster.keeper import SimKeeper
from rota.sim.cluster.messages import (
    BeatMessage,
    HelloMessage,
    LeaveMessage,
    OrdersMessage,
    ReportMessage,
    WelcomeMessage,
)
from rota.sim.world.network import SimStream
from rota.sim.world.virtual_time import Act, SimProcess

URGENT_MS = 5
PATIENT_MS = 25
BACKOFF_MS = (100, 5_000)  # between rounds of calls to all servers
START_MS = 30  # until a process that was started does something
DEPARTURE = DrainRequest("it was told to leave", 0)
Dial = Callable[[], ServerAccess | None]


class SimAgent(SimProcess):
    def __init__(self, machine: SimHost, keeper: SimKeeper) -> None:
        super().__init__(machine.world, machine.name, machine.clock)
        self.machine = machine
        self.keeper = keeper
        self.dial: Dial = lambda: None
        self.called: Act = lambda: None  # told when it has called a server
        self.desk = AttemptTracker()
        self.words = MessageSequence()
        self.stream: SimStream | None = None
        self.welcomed = False
        self.leaving = False
        self._luck = machine.world.luck(f"agent {machine.name}")
        self._pause_ms = BACKOFF_MS[0]
        self._calls = 0
        self._said_at_ms = 0
        self._report_due = False
        self._beats = 0  # of several timers the last counts

    def start(self) -> None:
        self.start_life()
        self.desk = AttemptTracker()
        self.leaving = False
        self._forget_stream()
        self._pause_ms = BACKOFF_MS[0]
        self.after(START_MS, self._attach)

    def kill(self) -> None:
        """Its kernel hangs up for it."""
        stream = self.stream
        self.end()
        if stream is not None:
            stream.die(self, politely=True)

    def vanish(self) -> None:
        stream = self.stream
        self.end()
        if stream is not None:
            stream.die(self, politely=False)

    def end(self) -> None:
        super().end()
        if self.keeper.alive and self.keeper.work is not None:
            self.keeper.work.outbox.close()
            self.keeper.hears = None

    def resume(self) -> None:
        self._said_at_ms = self.clock.boot_ms()  # while frozen it said nothing
        super().resume()

    def leave(self) -> None:
        """Say so, end the work, report that, go."""
        self.leaving = True
        if self.stream is not None and self.welcomed:
            self.stream.send_to_server(DEPARTURE)
        self.keeper.apply_order(self._quit)
        self.after(1000, self._leave_when_done)

    def _quit(self, work: Supervisor) -> None:
        self.machine.leaves([key for key, one in work.running.items() if not one.stop_requested])
        work.quit()

    def catch_up(self) -> int:
        """The number of its last word: beats are said by arithmetic, when somebody asks."""
        now_ms = self.clock.boot_ms()
        missed = (now_ms - self._said_at_ms) // BEAT_MS if self.welcomed and self.runs else 0
        self.words.next_n += max(0, missed - 4)
        for ago in range(min(4, missed) - 1, -1, -1):
            self.words.next_number(now_ms - ago * BEAT_MS)
        if missed > 0:
            self._said_at_ms = now_ms
        return self.words.next_n - 1

    def disconnect(self, reason: str) -> None:
        """And call again."""
        self._disconnect(reason)
        self._call_again()

    # ---- the keeper's side

    def _attach(self) -> None:
        keeper = self.keeper
        if not keeper.alive and not keeper.start():
            self.after(1000, self._attach)
            return
        assert keeper.work is not None
        keeper.mourned = self._on_keeper_death(self.life)
        keeper.hears = self._hearing(self.life)
        state = json.loads(keeper.work.state_message())
        records = {JobId(job): b64decode(text) for job, text in state["records"].items()}
        self.desk.replace_all(reports_from_state(state), state["leases"], records)
        capacity = self.machine.capacity
        gpus = tuple(str(number) for number in range(capacity.get(GPU, 0) // WHOLE_GPU))
        order = wire.ConfigureOrder(self.name, capacity, gpus)
        keeper.apply_order(lambda work: work.configure(order))
        if self.stream is None:
            self._call()
        self._report_soon()

    def _hearing(self, life: int) -> Callable[[bytes], None]:
        def hear(message: bytes) -> None:
            self.world.after(0, lambda: self.do(life, lambda: self._record(message)))

        return hear

    def _on_keeper_death(self, life: int) -> Callable[[], None]:
        return lambda: self.world.after(1, lambda: self.do(life, self._lose_keeper))

    def _record(self, message: bytes) -> None:
        self.desk.record(reports_from_events(json.loads(message)))
        self._report_soon()

    def _lose_keeper(self) -> None:
        self.trace("its keeper is gone; a new one is started")
        self.desk.on_keeper_lost()
        self._disconnect("its keeper is gone")
        if self.machine.on and not self.leaving:
            self.after(START_MS, self._attach)

    # ---- the control plane's side

    def _call(self) -> None:
        if self.stream is not None or not self.desk.attached.is_set():
            return
        door = self.dial()
        if door is None or not self._reaches(door.server):
            self._call_again()
            return
        self.words = MessageSequence()
        self.welcomed = False
        self.stream = stream = self.machine.network.open(self, door.server)
        stream.down.hear = lambda word: self._on_message(stream, word)
        stream.down.broke = lambda reason: self._on_disconnect(stream, reason)
        hello = self._hello()
        self._said_at_ms = self.clock.boot_ms()
        n = self.words.next_number(self._said_at_ms)
        self.desk.sent_in(n, hello.inventory)
        greeting = HelloMessage(n, self.machine.node, hello, self.catch_up, self.desk.record_of)

        def greet() -> None:
            door.greet(stream, greeting)

        self.world.after(self.machine.network.delay_ms(), lambda: self._dial(stream, greet))
        self.after(SUSPECT_MS, lambda: self._give_up(stream))
        self.called()

    def _dial(self, stream: SimStream, greet: Callable[[], None]) -> None:
        if stream.up.there and self.machine.network.passes(self.name, stream.server.name):
            stream.server.do(stream.up.life, greet)
        else:
            stream.close(stream.up, "nobody answers")
            stream.check()

    def _give_up(self, stream: SimStream) -> None:
        if stream is self.stream and not self.welcomed:
            self.world.count("agent: was never welcomed")
            self.disconnect("it does not answer")

    def _reaches(self, server: SimProcess) -> bool:
        passes = self.machine.network.passes
        return server.alive and passes(self.name, server.name) and passes(server.name, self.name)

    def _call_again(self) -> None:
        self._calls += 1
        if self._calls % self.machine.servers:
            self.after(BACKOFF_MS[0], self._call)
            return
        self.after(self._pause_ms * self._luck.uniform(0.5, 1.0), self._call)
        self._pause_ms = min(2 * self._pause_ms, BACKOFF_MS[1], self.machine.heartbeat_ms)

    def _hello(self) -> Hello:
        machine = self.machine
        inventory = self.desk.inventory()
        return Hello(
            machine.machine_id,
            machine.boot_id,
            "1",
            machine.capacity,
            {**machine.labels, "leases": "pid-namespace"},
            machine.epoch_seen,
            inventory,
            drain=DEPARTURE if self.leaving else None,
        )

    def _on_message(self, stream: SimStream, word: object) -> None:
        if stream is not self.stream or not isinstance(word, WelcomeMessage | OrdersMessage):
            return
        if word.epoch < self.machine.epoch_seen:
            self.world.count("agent: refused an older epoch")
            self.disconnect("it speaks for an older epoch")
            return
        self.machine.epoch_seen = word.epoch
        match word:
            case WelcomeMessage() if not self.words.on_welcome(self.clock.boot_ms()):
                self.world.count("agent: was welcomed too late")
                self.disconnect("it was welcomed too late")
            case WelcomeMessage():
                self.welcomed = True
                self._said_at_ms = self.clock.boot_ms()
                self._pause_ms = BACKOFF_MS[0]
                self._report_soon()
            case OrdersMessage():
                self.catch_up()
                if self.words.stale_ms(word.echo, self.clock.boot_ms()) is not None:
                    self.world.count("agent: refused stale orders")
                    self.disconnect("its orders are stale")
                else:
                    self._renew(word)
                    self._apply_orders(word)

    def _renew(self, orders: OrdersMessage) -> None:
        heard_ms = self.words.acknowledged_ms
        if orders.renews and heard_ms is not None and self.desk.lease_ms is not None:
            self.keeper.apply_order(lambda work: work.renew(heard_ms * 1_000_000))

    def _apply_orders(self, orders: OrdersMessage) -> None:
        keeper = self.keeper
        facts = HostFacts(
            frozenset(self.desk.remember_templates(orders.jobs)) & self.machine.refuses, self.leaving
        )
        for one in self.desk.apply_orders(orders.jobs, facts):
            self._forward_to_keeper(one)
        for one in self.desk.released_by(orders.stored):
            self._forward_to_keeper(one)
        stored = self.desk.on_durable(orders.stored)
        if stored:
            keys = [(str(name.job), name.task, name.attempt) for name in stored]
            self.machine.forgets(keys)
            keeper.apply_order(lambda work: work.ack(keys))
        if orders.forget:
            keeper.apply_order(lambda work: work.forget(orders.forget))
            self.desk.forget(orders.forget)
        self._report_soon()

    def _forward_to_keeper(self, one: JobOrders) -> None:
        keeper = self.keeper
        if one.start or one.work is not None:
            spec = None if one.work is None else wire.parse_spec(_plain(keeper_spec(one.work)))
            tasks = [
                wire.TaskStart(start.index, start.attempt, start.firm, start.gpus) for start in one.start
            ]
            order = wire.StartOrder(one.job, spec, tasks)
            keeper.apply_order(lambda work: work.start(order))
        for how, names in stops(one).items():
            keys = [(str(name.job), name.task, name.attempt) for name in names]
            keeper.apply_order(lambda work, keys=keys, how=how: work.stop(keys, KeeperStopMode(how)))  # type: ignore[misc]
        if one.signals:
            signals = [AttemptSignal((str(one.job), s.index, s.attempt), s.signal, s.n) for s in one.signals]
            keeper.apply_order(lambda work: work.signal(signals))

    def _report_soon(self) -> None:
        if not self._report_due:
            self._report_due = True
            self.after(self._luck.choice((URGENT_MS, PATIENT_MS)), self._report)

    def _report(self) -> None:
        self._report_due = False
        self._beat_later()
        if self.stream is None or not self.welcomed or self.desk.keeper_lost:
            return
        claims = self.desk.drain_changes()
        if claims:
            self.catch_up()
            self._said_at_ms = self.clock.boot_ms()
            n = self.words.next_number(self._said_at_ms)
            self.desk.sent_in(n, claims)
            self.stream.send_to_server(ReportMessage(n, claims))

    def _beat_later(self) -> None:
        """A quarter of the shortest lease after the last one."""
        self._beats += 1
        beat, lease_ms = self._beats, self.desk.lease_ms
        if lease_ms is not None and self.stream is not None and self.welcomed:
            delay_ms = min(BEAT_MS, lease_ms // 4)
            self.after(delay_ms, lambda: self._beat() if beat == self._beats else None)

    def _beat(self) -> None:
        if self.stream is not None and self.welcomed and not self.desk.keeper_lost:
            self.catch_up()
            self._said_at_ms = self.clock.boot_ms()
            self.stream.send_to_server(BeatMessage(self.words.next_number(self._said_at_ms)))
            self._beat_later()

    def _leave_when_done(self) -> None:
        work = self.keeper.work
        if work is not None and work.running:
            self.after(1000, self._leave_when_done)
            return
        self._report_due = False
        self._report()
        if self.stream is not None and self.welcomed:
            self.stream.send_to_server(LeaveMessage("it was told to leave"))
        self.after(200, self._on_left)

    def _on_left(self) -> None:
        self.kill()
        self.keeper.end()
        self.machine.on = False

    def _disconnect(self, reason: str) -> None:
        stream = self.stream
        self._forget_stream()
        if stream is not None:
            self.trace(f"hangs up: {reason}")
            stream.close(stream.down, reason)

    def _on_disconnect(self, stream: SimStream, reason: str) -> None:
        if stream is self.stream:
            self.trace(f"its stream broke: {reason}")
            self._forget_stream()
            self._call_again()

    def _forget_stream(self) -> None:
        self.stream = None
        self.welcomed = False
        self._report_due = False


def _plain(spec: dict[str, object]) -> object:
    """As it arrives over the socket."""
    return json.loads(json.dumps(spec))
