"""Drives the production AttemptTracker in virtual time: attach to the keeper, dial, apply orders, report."""

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
BACKOFF_MS = (100, 5_000)  # between two rounds over all servers
START_MS = 30  # from the start of a process to its first action
LEAVING = DrainRequest("it was told to leave", 0)
Dial = Callable[[], ServerAccess | None]


class SimAgent(SimProcess):
    """The counterpart of agent.run.Agent.

    Heartbeats are not events: `catch_up` computes the sequence numbers that would have been sent since the
    last message. Only nodes that hold leases send them, because renewals count from a particular heartbeat.
    """

    def __init__(self, machine: SimHost, keeper: SimKeeper) -> None:
        super().__init__(machine.world, machine.name, machine.clock)
        self.machine = machine
        self.keeper = keeper
        self.dial: Dial = lambda: None
        self.called: Act = lambda: None  # called when it has dialled a server
        self.attempts = AttemptTracker()
        self.sequence = MessageSequence()
        self.stream: SimStream | None = None
        self.welcomed = False
        self.leaving = False
        self._rng = machine.world.rng(f"agent {machine.name}")
        self._backoff_ms = BACKOFF_MS[0]
        self._calls = 0
        self._sent_at_ms = 0
        self._report_due = False
        self._beats = 0  # number of the latest timer; earlier ones are void

    def start(self) -> None:
        self.start_life()
        # A restarted agent knows nothing: what it needs comes from the keeper's state message.
        self.attempts = AttemptTracker()
        self.leaving = False
        self._forget_stream()
        self._backoff_ms = BACKOFF_MS[0]
        self.after(START_MS, self._attach)

    def kill(self) -> None:
        """Kill the process; its kernel closes the stream."""
        stream = self.stream
        self.end()
        if stream is not None:
            stream.die(self, politely=True)

    def vanish(self) -> None:
        """End with the whole machine: nothing closes the stream."""
        stream = self.stream
        self.end()
        if stream is not None:
            stream.die(self, politely=False)

    def end(self) -> None:
        super().end()
        if self.keeper.alive and self.keeper.work is not None:
            self.keeper.work.outbox.close()
            self.keeper.send_to_agent = None

    def resume(self) -> None:
        self._sent_at_ms = self.clock.boot_ms()  # no heartbeats were sent while frozen
        super().resume()

    def leave(self) -> None:
        """Announce the leave, stop all attempts, report their ends, then deregister."""
        self.leaving = True
        if self.stream is not None and self.welcomed:
            self.stream.send_to_server(LEAVING)
        self.keeper.apply_order(self._quit)
        self.after(1000, self._leave_when_done)

    def _quit(self, work: Supervisor) -> None:
        self.machine.leaves([key for key, attempt in work.running.items() if not attempt.stop_requested])
        work.quit()

    def catch_up(self) -> int:
        """Return the latest sequence number, after adding the heartbeats due since the last message."""
        now_ms = self.clock.boot_ms()
        missed = (now_ms - self._sent_at_ms) // BEAT_MS if self.welcomed and self.runs else 0
        # Only the last few matter to leases and stale orders; numbering the others one by
        # one would slow down long runs.
        self.sequence.next_n += max(0, missed - 4)
        for ago in range(min(4, missed) - 1, -1, -1):
            self.sequence.next_number(now_ms - ago * BEAT_MS)
        if missed > 0:
            self._sent_at_ms = now_ms
        return self.sequence.next_n - 1

    def disconnect(self, reason: str) -> None:
        """Close the stream and dial again."""
        self._disconnect(reason)
        self._call_again()

    # ---- keeper

    def _attach(self) -> None:
        keeper = self.keeper
        if not keeper.alive and not keeper.start():
            self.after(1000, self._attach)
            return
        assert keeper.work is not None
        # Both callbacks are bound to this life: a restarted agent attaches again.
        keeper.on_end = self._on_keeper_death(self.life)
        keeper.send_to_agent = self._event_sink(self.life)
        state = json.loads(keeper.work.state_message())
        records = {JobId(job): b64decode(text) for job, text in state["records"].items()}
        self.attempts.replace_all(reports_from_state(state), state["leases"], records)
        capacity = self.machine.capacity
        gpus = tuple(str(number) for number in range(capacity.get(GPU, 0) // WHOLE_GPU))
        order = wire.ConfigureOrder(self.name, capacity, gpus)
        keeper.apply_order(lambda work: work.configure(order))
        if self.stream is None:
            self._call()
        self._report_soon()

    def _event_sink(self, life: int) -> Callable[[bytes], None]:
        def receive(message: bytes) -> None:
            # As an event of its own: in production the message crosses a socket, and the
            # agent may die before it reads it.
            self.world.after(0, lambda: self.do(life, lambda: self._record(message)))

        return receive

    def _on_keeper_death(self, life: int) -> Callable[[], None]:
        return lambda: self.world.after(1, lambda: self.do(life, self._lose_keeper))

    def _record(self, message: bytes) -> None:
        self.attempts.record(reports_from_events(json.loads(message)))
        self._report_soon()

    def _lose_keeper(self) -> None:
        self.trace("keeper died; starting a new one")
        # Ordering: reports stop before the stream is closed, so that no report of the
        # dead keeper is sent as current.
        self.attempts.on_keeper_lost()
        self._disconnect("keeper died")
        if self.machine.on and not self.leaving:
            self.after(START_MS, self._attach)

    # ---- server

    def _call(self) -> None:
        if self.stream is not None or not self.attempts.attached.is_set():
            return
        access = self.dial()
        if access is None or not self._reaches(access.server):
            self._call_again()
            return
        self.sequence = MessageSequence()
        self.welcomed = False
        self.stream = stream = self.machine.network.open(self, access.server)
        stream.down.on_message = lambda message: self._on_message(stream, message)
        stream.down.on_break = lambda reason: self._on_disconnect(stream, reason)
        hello = self._hello()
        self._sent_at_ms = self.clock.boot_ms()
        n = self.sequence.next_number(self._sent_at_ms)
        self.attempts.sent_in(n, hello.inventory)
        message = HelloMessage(n, self.machine.node, hello, self.catch_up, self.attempts.record_of)

        def handshake() -> None:
            access.handshake(stream, message)

        self.world.after(self.machine.network.delay_ms(), lambda: self._dial(stream, handshake))
        # Without a timeout an agent would wait for ever at a server that accepted the
        # stream and was frozen then.
        self.after(SUSPECT_MS, lambda: self._time_out_handshake(stream))
        self.called()

    def _dial(self, stream: SimStream, handshake: Callable[[], None]) -> None:
        if stream.up.connected and self.machine.network.passes(self.name, stream.server.name):
            stream.server.do(stream.up.life, handshake)
        else:
            stream.close(stream.up, "no answer")
            stream.check()

    def _time_out_handshake(self, stream: SimStream) -> None:
        if stream is self.stream and not self.welcomed:
            self.world.count("agent: handshake timed out")
            self.disconnect("no answer to the hello")

    def _reaches(self, server: SimProcess) -> bool:
        passes = self.machine.network.passes
        return server.alive and passes(self.name, server.name) and passes(server.name, self.name)

    def _call_again(self) -> None:
        self._calls += 1
        if self._calls % self.machine.servers:
            self.after(BACKOFF_MS[0], self._call)
            return
        self.after(self._backoff_ms * self._rng.uniform(0.5, 1.0), self._call)
        # No longer than a heartbeat: after a short outage of the server a node must not be
        # silent for long enough to be lost.
        self._backoff_ms = min(2 * self._backoff_ms, BACKOFF_MS[1], self.machine.heartbeat_ms)

    def _hello(self) -> Hello:
        machine = self.machine
        inventory = self.attempts.inventory()
        return Hello(
            machine.machine_id,
            machine.boot_id,
            "1",
            machine.capacity,
            {**machine.labels, "leases": "pid-namespace"},
            machine.epoch_seen,
            inventory,
            drain=LEAVING if self.leaving else None,
        )

    def _on_message(self, stream: SimStream, message: object) -> None:
        if stream is not self.stream or not isinstance(message, WelcomeMessage | OrdersMessage):
            return
        # Fencing: a deposed leader must not start work, however late its messages arrive.
        if message.epoch < self.machine.epoch_seen:
            self.world.count("agent: refused an older epoch")
            self.disconnect("server has an older epoch")
            return
        self.machine.epoch_seen = message.epoch
        match message:
            case WelcomeMessage() if not self.sequence.on_welcome(self.clock.boot_ms()):
                self.world.count("agent: welcome came too late")
                self.disconnect("welcome came too late")
            case WelcomeMessage():
                self.welcomed = True
                self._sent_at_ms = self.clock.boot_ms()
                self._backoff_ms = BACKOFF_MS[0]
                self._report_soon()
            case OrdersMessage():
                self.catch_up()
                if self.sequence.stale_ms(message.echo, self.clock.boot_ms()) is not None:
                    self.world.count("agent: refused stale orders")
                    self.disconnect("stale orders")
                else:
                    self._renew(message)
                    self._apply_orders(message)

    def _renew(self, orders: OrdersMessage) -> None:
        acknowledged_ms = self.sequence.acknowledged_ms
        if orders.renews and acknowledged_ms is not None and self.attempts.lease_ms is not None:
            self.keeper.apply_order(lambda work: work.renew(acknowledged_ms * 1_000_000))

    def _apply_orders(self, orders: OrdersMessage) -> None:
        keeper = self.keeper
        facts = HostFacts(
            frozenset(self.attempts.remember_templates(orders.jobs)) & self.machine.refuses, self.leaving
        )
        for job_orders in self.attempts.apply_orders(orders.jobs, facts):
            self._forward_to_keeper(job_orders)
        # Starts that waited until the accept was durable on the server: at_most_once and one_at_a_time jobs.
        for job_orders in self.attempts.released_by(orders.stored):
            self._forward_to_keeper(job_orders)
        stored = self.attempts.on_durable(orders.stored)
        if stored:
            keys = [(str(name.job), name.task, name.attempt) for name in stored]
            self.machine.forgets(keys)
            keeper.apply_order(lambda work: work.ack(keys))
        if orders.forget:
            keeper.apply_order(lambda work: work.forget(orders.forget))
            self.attempts.forget(orders.forget)
        self._report_soon()

    def _forward_to_keeper(self, job_orders: JobOrders) -> None:
        keeper = self.keeper
        if job_orders.start or job_orders.work is not None:
            spec = None if job_orders.work is None else wire.parse_spec(_plain(keeper_spec(job_orders.work)))
            tasks = [
                wire.TaskStart(start.index, start.attempt, start.firm, start.gpus)
                for start in job_orders.start
            ]
            order = wire.StartOrder(job_orders.job, spec, tasks)
            keeper.apply_order(lambda work: work.start(order))
        for how, names in stops(job_orders).items():
            keys = [(str(name.job), name.task, name.attempt) for name in names]
            keeper.apply_order(lambda work, keys=keys, how=how: work.stop(keys, KeeperStopMode(how)))  # type: ignore[misc]
        if job_orders.signals:
            signals = [
                AttemptSignal((str(job_orders.job), s.index, s.attempt), s.signal, s.n)
                for s in job_orders.signals
            ]
            keeper.apply_order(lambda work: work.signal(signals))

    def _report_soon(self) -> None:
        if not self._report_due:
            self._report_due = True
            self.after(self._rng.choice((URGENT_MS, PATIENT_MS)), self._report)

    def _report(self) -> None:
        self._report_due = False
        self._beat_later()
        if self.stream is None or not self.welcomed or self.attempts.keeper_lost:
            return
        reports = self.attempts.drain_changes()
        if reports:
            self.catch_up()
            self._sent_at_ms = self.clock.boot_ms()
            n = self.sequence.next_number(self._sent_at_ms)
            self.attempts.sent_in(n, reports)
            self.stream.send_to_server(ReportMessage(n, reports))

    def _beat_later(self) -> None:
        """A quarter of the shortest lease after this message."""
        self._beats += 1
        beat, lease_ms = self._beats, self.attempts.lease_ms
        if lease_ms is not None and self.stream is not None and self.welcomed:
            delay_ms = min(BEAT_MS, lease_ms // 4)
            self.after(delay_ms, lambda: self._beat() if beat == self._beats else None)

    def _beat(self) -> None:
        if self.stream is not None and self.welcomed and not self.attempts.keeper_lost:
            self.catch_up()
            self._sent_at_ms = self.clock.boot_ms()
            self.stream.send_to_server(BeatMessage(self.sequence.next_number(self._sent_at_ms)))
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
            self.trace(f"disconnects: {reason}")
            stream.close(stream.down, reason)

    def _on_disconnect(self, stream: SimStream, reason: str) -> None:
        if stream is self.stream:
            self.trace(f"stream broke: {reason}")
            self._forget_stream()
            self._call_again()

    def _forget_stream(self) -> None:
        self.stream = None
        self.welcomed = False
        self._report_due = False


def _plain(spec: dict[str, object]) -> object:
    """Return the spec as it arrives over the socket, after a round trip through JSON."""
    return json.loads(json.dumps(spec))
