"""Drives the real agent's desk in virtual time: attaches to the keeper, calls a server, obeys, reports."""

import json
from base64 import b64decode
from collections.abc import Callable

from rota.agent.desk import Desk, stops
from rota.agent.plan import Facts
from rota.agent.words import Words
from rota.keeper import wire
from rota.keeper.stops import How, Signal
from rota.keeper.work import Work
from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.ids import JobId
from rota.model.limits import BEAT_MS, SUSPECT_MS
from rota.model.sync import Drain, Hello, JobOrders
from rota.runtimes.process import claims_of_events, claims_of_state, spec_of
from rota.sim.host import Door, Host
from rota.sim.keeper import Keeper
from rota.sim.network import Stream
from rota.sim.words import Beat, Greeting, Leave, Orders, Reported, Welcome
from rota.sim.world import Act, Process

URGENT_MS = 5
PATIENT_MS = 25
BACKOFF_MS = (100, 5_000)  # between rounds of calls to all servers
START_MS = 30  # until a process that was started does something
DEPARTURE = Drain("it was told to leave", 0)
Dial = Callable[[], Door | None]


class Agent(Process):
    def __init__(self, machine: Host, keeper: Keeper) -> None:
        super().__init__(machine.world, machine.name, machine.clock)
        self.machine = machine
        self.keeper = keeper
        self.dial: Dial = lambda: None
        self.called: Act = lambda: None  # told when it has called a server
        self.desk = Desk()
        self.words = Words()
        self.stream: Stream | None = None
        self.welcomed = False
        self.leaving = False
        self._luck = machine.world.luck(f"agent {machine.name}")
        self._pause_ms = BACKOFF_MS[0]
        self._calls = 0
        self._said_at_ms = 0
        self._report_due = False
        self._beats = 0  # of several timers the last counts

    def start(self) -> None:
        self.begin()
        self.desk = Desk()
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

    def thaw(self) -> None:
        self._said_at_ms = self.clock.boot_ms()  # while frozen it said nothing
        super().thaw()

    def leave(self) -> None:
        """Say so, end the work, report that, go."""
        self.leaving = True
        if self.stream is not None and self.welcomed:
            self.stream.say_up(DEPARTURE)
        self.keeper.obey(self._quit)
        self.after(1000, self._leave_when_done)

    def _quit(self, work: Work) -> None:
        self.machine.leaves([key for key, one in work.running.items() if not one.halted])
        work.quit()

    def catch_up(self) -> int:
        """The number of its last word: beats are said by arithmetic, when somebody asks."""
        now_ms = self.clock.boot_ms()
        missed = (now_ms - self._said_at_ms) // BEAT_MS if self.welcomed and self.runs else 0
        self.words.next_n += max(0, missed - 4)
        for ago in range(min(4, missed) - 1, -1, -1):
            self.words.say(now_ms - ago * BEAT_MS)
        if missed > 0:
            self._said_at_ms = now_ms
        return self.words.next_n - 1

    def hang_up(self, reason: str) -> None:
        """And call again."""
        self._hang_up(reason)
        self._call_again()

    # ---- the keeper's side

    def _attach(self) -> None:
        keeper = self.keeper
        if not keeper.alive and not keeper.start():
            self.after(1000, self._attach)
            return
        assert keeper.work is not None
        keeper.mourned = self._mourn(self.life)
        keeper.hears = self._hearing(self.life)
        state = json.loads(keeper.work.state())
        records = {JobId(job): b64decode(text) for job, text in state["records"].items()}
        self.desk.replace_all(claims_of_state(state), state["leases"], records)
        capacity = self.machine.capacity
        gpus = tuple(str(number) for number in range(capacity.get(GPU, 0) // WHOLE_GPU))
        order = wire.Configure(self.name, capacity, gpus)
        keeper.obey(lambda work: work.configure(order))
        if self.stream is None:
            self._call()
        self._report_soon()

    def _hearing(self, life: int) -> Callable[[bytes], None]:
        def hear(message: bytes) -> None:
            self.world.after(0, lambda: self.do(life, lambda: self._note(message)))

        return hear

    def _mourn(self, life: int) -> Callable[[], None]:
        return lambda: self.world.after(1, lambda: self.do(life, self._lose_keeper))

    def _note(self, message: bytes) -> None:
        self.desk.note(claims_of_events(json.loads(message)))
        self._report_soon()

    def _lose_keeper(self) -> None:
        self.say("its keeper is gone; a new one is started")
        self.desk.lose_keeper()
        self._hang_up("its keeper is gone")
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
        self.words = Words()
        self.welcomed = False
        self.stream = stream = self.machine.network.open(self, door.server)
        stream.down.hear = lambda word: self._hear(stream, word)
        stream.down.broke = lambda reason: self._broke(stream, reason)
        hello = self._hello()
        self._said_at_ms = self.clock.boot_ms()
        n = self.words.say(self._said_at_ms)
        self.desk.said(n, hello.inventory)
        greeting = Greeting(n, self.machine.node, hello, self.catch_up, self.desk.record_of)

        def greet() -> None:
            door.greet(stream, greeting)

        self.world.after(self.machine.network.delay_ms(), lambda: self._knock(stream, greet))
        self.after(SUSPECT_MS, lambda: self._give_up(stream))
        self.called()

    def _knock(self, stream: Stream, greet: Callable[[], None]) -> None:
        if stream.up.there and self.machine.network.passes(self.name, stream.server.name):
            stream.server.do(stream.up.life, greet)
        else:
            stream.close(stream.up, "nobody answers")
            stream.look()

    def _give_up(self, stream: Stream) -> None:
        if stream is self.stream and not self.welcomed:
            self.world.count("agent: was never welcomed")
            self.hang_up("it does not answer")

    def _reaches(self, server: Process) -> bool:
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

    def _hear(self, stream: Stream, word: object) -> None:
        if stream is not self.stream or not isinstance(word, Welcome | Orders):
            return
        if word.epoch < self.machine.epoch_seen:
            self.world.count("agent: refused an older epoch")
            self.hang_up("it speaks for an older epoch")
            return
        self.machine.epoch_seen = word.epoch
        match word:
            case Welcome() if not self.words.welcome(self.clock.boot_ms()):
                self.world.count("agent: was welcomed too late")
                self.hang_up("it was welcomed too late")
            case Welcome():
                self.welcomed = True
                self._said_at_ms = self.clock.boot_ms()
                self._pause_ms = BACKOFF_MS[0]
                self._report_soon()
            case Orders():
                self.catch_up()
                if self.words.stale_ms(word.echo, self.clock.boot_ms()) is not None:
                    self.world.count("agent: refused stale orders")
                    self.hang_up("its orders are stale")
                else:
                    self._renew(word)
                    self._obey(word)

    def _renew(self, orders: Orders) -> None:
        heard_ms = self.words.heard_ms
        if orders.renews and heard_ms is not None and self.desk.lease_ms is not None:
            self.keeper.obey(lambda work: work.renew(heard_ms * 1_000_000))

    def _obey(self, orders: Orders) -> None:
        keeper = self.keeper
        facts = Facts(frozenset(self.desk.learn(orders.jobs)) & self.machine.refuses, self.leaving)
        for one in self.desk.obey(orders.jobs, facts):
            self._pass_on(one)
        for one in self.desk.released(orders.stored):
            self._pass_on(one)
        stored = self.desk.stored(orders.stored)
        if stored:
            keys = [(str(name.job), name.task, name.attempt) for name in stored]
            self.machine.forgets(keys)
            keeper.obey(lambda work: work.ack(keys))
        if orders.forget:
            keeper.obey(lambda work: work.forget(orders.forget))
            self.desk.forget(orders.forget)
        self._report_soon()

    def _pass_on(self, one: JobOrders) -> None:
        keeper = self.keeper
        if one.start or one.work is not None:
            spec = None if one.work is None else wire.parse_spec(_plain(spec_of(one.work)))
            tasks = [wire.Wanted(start.index, start.attempt, start.firm, start.gpus) for start in one.start]
            order = wire.Start(one.job, spec, tasks)
            keeper.obey(lambda work: work.start(order))
        for how, names in stops(one).items():
            keys = [(str(name.job), name.task, name.attempt) for name in names]
            keeper.obey(lambda work, keys=keys, how=how: work.stop(keys, How(how)))  # type: ignore[misc]
        if one.signals:
            signals = [Signal((str(one.job), s.index, s.attempt), s.signal, s.n) for s in one.signals]
            keeper.obey(lambda work: work.signal(signals))

    def _report_soon(self) -> None:
        if not self._report_due:
            self._report_due = True
            self.after(self._luck.choice((URGENT_MS, PATIENT_MS)), self._report)

    def _report(self) -> None:
        self._report_due = False
        self._beat_later()
        if self.stream is None or not self.welcomed or self.desk.gone:
            return
        claims = self.desk.take_changes()
        if claims:
            self.catch_up()
            self._said_at_ms = self.clock.boot_ms()
            n = self.words.say(self._said_at_ms)
            self.desk.said(n, claims)
            self.stream.say_up(Reported(n, claims))

    def _beat_later(self) -> None:
        """A quarter of the shortest lease after the last one."""
        self._beats += 1
        beat, lease_ms = self._beats, self.desk.lease_ms
        if lease_ms is not None and self.stream is not None and self.welcomed:
            delay_ms = min(BEAT_MS, lease_ms // 4)
            self.after(delay_ms, lambda: self._beat() if beat == self._beats else None)

    def _beat(self) -> None:
        if self.stream is not None and self.welcomed and not self.desk.gone:
            self.catch_up()
            self._said_at_ms = self.clock.boot_ms()
            self.stream.say_up(Beat(self.words.say(self._said_at_ms)))
            self._beat_later()

    def _leave_when_done(self) -> None:
        work = self.keeper.work
        if work is not None and work.running:
            self.after(1000, self._leave_when_done)
            return
        self._report_due = False
        self._report()
        if self.stream is not None and self.welcomed:
            self.stream.say_up(Leave("it was told to leave"))
        self.after(200, self._gone)

    def _gone(self) -> None:
        self.kill()
        self.keeper.end()
        self.machine.on = False

    def _hang_up(self, reason: str) -> None:
        stream = self.stream
        self._forget_stream()
        if stream is not None:
            self.say(f"hangs up: {reason}")
            stream.close(stream.down, reason)

    def _broke(self, stream: Stream, reason: str) -> None:
        if stream is self.stream:
            self.say(f"its stream broke: {reason}")
            self._forget_stream()
            self._call_again()

    def _forget_stream(self) -> None:
        self.stream = None
        self.welcomed = False
        self._report_due = False


def _plain(spec: dict[str, object]) -> object:
    """As it arrives over the socket."""
    return json.loads(json.dumps(spec))
