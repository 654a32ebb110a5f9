"""A control plane's process: drives the real loop, commits, then speaks to nodes and users."""

from collections.abc import Callable, Sequence
from typing import Any

from rota.clusters import assign
from rota.controllers import batch as controllers
from rota.engine.loop import Decided, Loop, Request
from rota.engine.mirror import Mirror
from rota.engine.reconciler import Command, Reconciler
from rota.engine.run import batch_of
from rota.model.errors import Deposed, RotaError, Transient, Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import STALL_MS, TICK_MS
from rota.model.node import Link
from rota.model.plan import Instant
from rota.model.sync import Report
from rota.scheduler import deadline, drain
from rota.scheduler import plan as scheduler
from rota.scheduler.round import Settings
from rota.sim.medium import Medium
from rota.sim.network import Stream
from rota.sim.session import Session
from rota.sim.words import Greeting, Leave, Orders, Reported, Welcome
from rota.sim.world import Clock, Process, World
from rota.store import codec
from rota.store.protocol import Snapshot
from rota.watcher import liveness, sessions

Answer = Callable[[Any], None]
FOR_EVER_MS = 1 << 60
PAUSE_MS = 1_000  # after a commit that did not go through
RESTART_MS = 1_500  # a supervisor starts it again


class Server(Process):
    """Answers only while it leads. Whether it may is the business of whoever calls lead()."""

    def __init__(
        self, world: World, name: str, medium: Medium, lost_ms: int, placement: Settings | None = None
    ) -> None:
        super().__init__(world, name, Clock(world))
        self.medium = medium
        self.leads = False
        self.tick_ms = TICK_MS
        self.epoch = 0
        self.revision = 0
        self.loop = Loop(Mirror(), [])
        self.deposed: Callable[[], None] = lambda: None
        self._reconcilers: Sequence[Reconciler] = [
            assign.RECONCILER,
            controllers.RECONCILER,
            scheduler.reconciler(placement),
            deadline.RECONCILER,
            drain.RECONCILER,
            liveness.reconciler(lost_ms),
        ]
        self._sessions: dict[NodeId, Session] = {}
        self._offset_ms = 0
        self._busy = False  # a commit or a read is under way
        self._poked = False
        self._decided_at_ms = 0
        self._rests = 0  # of several timers the last counts
        self._deaf = False  # it has just woken: what it says may answer what was said long ago

    @property
    def mirror(self) -> Mirror:
        return self.loop.mirror

    def now(self) -> Instant:
        return Instant(self._offset_ms + self.clock.boot_ms(), self.clock.wall_ms())

    # ---- its life

    def start(self) -> None:
        self.begin()
        self.leads = False
        self.loop = Loop(Mirror(), [])  # what its life before had not served yet died with it
        self._sessions.clear()
        self._busy = self._poked = self._deaf = False

    def kill(self) -> None:
        for session in list(self._sessions.values()):
            session.stream.die(self, politely=True)
        self._sessions.clear()
        self.leads = False
        self.end()

    def freeze(self) -> None:
        for session in self._sessions.values():
            session.heard_n = self._heard_n(session)
        self._deaf = True
        super().freeze()

    def thaw(self) -> None:
        super().thaw()
        self.after(1, self._wake_up)

    def lead(self) -> None:
        """Raise the epoch, read everything, look at everything."""
        self._busy = True

        def led(answer: int | Snapshot | Transient) -> None:
            if isinstance(answer, int):
                self.epoch = answer
                self._reload()
            else:
                self.after(PAUSE_MS, lambda: self.medium.lead(self, led))

        self.medium.lead(self, led)

    # ---- users

    def ask(
        self, owner: str, command: Command, answered: Answer, refused: Callable[[RotaError], None]
    ) -> None:
        if not self.leads:
            refused(Unavailable(f"{self.name} does not lead"))
            return
        self.loop.ask(Request(owner, command, answered, refused))
        self._poke()

    # ---- nodes

    def greet(self, stream: Stream, greeting: Greeting) -> None:
        node, hello = greeting.node, greeting.hello
        reason = self._unwelcome(greeting)
        if reason is not None:
            self.world.count(f"server: turned a node away, {reason[0]}")
            stream.close(stream.up, reason[1])
            return
        before = self._sessions.get(node)
        if before is not None:
            self.world.count("server: a node called again before its stream had broken")
            self._drop(before, "it has called again")
        session = self._sessions[node] = Session(stream, greeting)
        stream.up.hear = lambda word: self._hear(session, word)
        stream.up.broke = lambda _: self._part(session)
        stream.heeds = lambda hears: self._heed(session, hears=hears)
        self._observe(session)
        self.mirror.connect(node, Link.UP)

        def answered(_: Any) -> None:
            session.stored_n = greeting.n
            session.busy = False
            session.greeted = True
            stream.say_down(Welcome(self.epoch))
            self._observe(session)
            self.loop.wake(liveness.NAME, node)
            self.loop.wake("place", scheduler.ROUND)
            self._collect(session)
            self._speak_to(session)
            self._next_word(session)
            self._poke()

        def command(view: Any, now: Instant) -> Any:
            return sessions.hello(view, node, hello, now)

        self.ask("watcher", command, answered, lambda error: self._drop(session, str(error)))
        stream.look()

    def _unwelcome(self, greeting: Greeting) -> tuple[str, str] | None:
        if not self.leads:
            return "not leading", f"{self.name} does not lead"
        if greeting.node not in self.mirror.nodes:
            return "unknown", "the node is not known here"
        reason = sessions.unwelcome(self.mirror, greeting.node, greeting.hello, self.epoch, self.now().ms)
        return None if reason is None else ("elsewhere or ahead", reason)

    def _hear(self, session: Session, word: Any) -> None:
        if session.over:
            return
        self._notice(session)
        session.words.append(word)
        self._next_word(session)

    def _next_word(self, session: Session) -> None:
        """One after the other: the next when the one before is on disk."""
        if session.busy or not session.words or session.over:
            return
        session.busy = True
        word = session.words.pop(0)
        node = session.node
        match word:
            case Reported():
                session.heard_n = max(session.heard_n, word.n)
                session.told.heard(word.claims)

                def stored(_: Any) -> None:
                    session.told.stored(word.claims)
                    session.stored_n = word.n
                    session.busy = False
                    self.after(10, lambda: self._speak_to(session))
                    self._next_word(session)

                report = Report(word.n, word.claims)
                self.ask(
                    "watcher",
                    lambda view, now: sessions.report(view, node, report, now),
                    stored,
                    lambda error: self._drop(session, str(error)),
                )
            case Leave():
                self.ask(
                    "watcher",
                    lambda view, now: sessions.leave(view, node, word.reason, now),
                    lambda _: self._drop(session, "it has left"),
                    lambda error: self._drop(session, str(error)),
                )

    def _heed(self, session: Session, *, hears: bool) -> None:
        """Beats are not events: from here on they come, or do not."""
        if session.over:
            return
        if hears:
            self._notice(session)
        else:
            session.heard_n = session.last_n()
            self.mirror.now_ms = self.now().ms
            self.mirror.hear(session.node)
            self.loop.wake(liveness.NAME, session.node)
            self._poke()

    def _notice(self, session: Session) -> None:
        self._observe(session)
        status = self.mirror.nodes[session.node].status
        if status is not None and status.state is not NodeState.READY:
            self.loop.wake(liveness.NAME, session.node)
            self._poke()

    def _observe(self, session: Session) -> None:
        """Heard now, and as long as its stream is well."""
        self.mirror.now_ms = FOR_EVER_MS if session.stream.heard else self.now().ms
        self.mirror.hear(session.node)
        self.mirror.now_ms = self.now().ms

    def _part(self, session: Session) -> None:
        """The stream is broken: the node is suspect at once, unless it has already called again."""
        session.over = True
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            if session.node in self.mirror.nodes:
                self.mirror.now_ms = self.now().ms
                self.mirror.hear(session.node)
                self.mirror.connect(session.node, Link.DOWN)
                self.loop.wake(liveness.NAME, session.node)
                self._poke()

    def _drop(self, session: Session, reason: str) -> None:
        session.stream.close(session.stream.up, reason)
        self._part(session)

    # ---- deciding

    def _poke(self) -> None:
        if self.leads and not self._busy and not self._poked:
            self._poked = True
            self.after(0, self._step)

    def _step(self) -> None:
        self._poked = False
        self._rests += 1
        if not self.leads or self._busy:
            return
        now = self.now()
        stalled = now.ms - self._decided_at_ms > STALL_MS
        self._decided_at_ms = now.ms
        decided = self.loop.decide(now)
        for parked in self.loop.parked:
            raise parked.error
        if stalled:  # which has reset what was heard
            for session in self._sessions.values():
                self._observe(session)
        if decided is None:
            self._rest()
        elif decided.commits:
            self._busy = True
            self.medium.commit(
                self,
                batch_of(decided, self.epoch, self.revision),
                lambda answer: self._answered(decided, answer),
            )
        else:
            self._speak(decided)

    def _rest(self) -> None:
        next_at = self.loop.next_at()
        delay_ms = self.tick_ms if next_at is None else min(self.tick_ms, max(1, next_at - self.now().ms))
        rest = self._rests
        self.after(delay_ms, lambda: self._step() if rest == self._rests else None)

    def _answered(self, decided: Decided, answer: int | Snapshot | Transient) -> None:
        self._busy = False
        match answer:
            case int():
                self.revision = answer
                self._speak(decided)
            case Deposed():
                self.say("was deposed")
                self.kill()
                self.deposed()
            case Transient():
                self.world.count("server: started over after a commit that failed")
                decided.fail(answer)
                self._busy = True
                self.after(PAUSE_MS, self._reload)
            case _:
                raise AssertionError(answer)

    def _reload(self) -> None:
        def done(answer: int | Snapshot | Transient) -> None:
            if isinstance(answer, Snapshot):
                self._open(answer)
            else:
                for request in self.loop.take_requests():
                    request.refused(Unavailable("the store cannot be read"))
                self.after(PAUSE_MS, lambda: self.medium.read(self, done))

        self.medium.read(self, done)

    def _open(self, snapshot: Snapshot) -> None:
        before = self.loop
        self._offset_ms = max(snapshot.time_ms, self.now().ms if self.leads else 0) - self.clock.boot_ms()
        mirror = Mirror()
        mirror.now_ms = self.now().ms
        mirror.load(codec.decode(key, value) for key, value in snapshot.records.items())
        if self.leads:
            mirror.inherit(before.mirror)
        self.revision = snapshot.revision
        self.loop = Loop(mirror, self._reconcilers)
        self.loop.look_at_everything()
        for request in before.take_requests():
            self.loop.ask(request)
        for session in self._sessions.values():
            self._observe(session)
        self.leads, self._busy = True, False
        self.say(f"leads epoch {self.epoch} from revision {self.revision}")
        self._poke()

    # ---- speaking

    def _speak(self, decided: Decided) -> None:
        for event in decided.events:
            self.say(event.why)
        decided.answer()
        for node in self.mirror.touched:
            session = self._sessions.get(node)
            if session is not None:
                self._collect(session)
        self.mirror.touched.clear()
        gone = [JobId(key.split("/")[1]) for key in decided.deletes if key.endswith("/spec")]
        for session in self._sessions.values() if gone else ():
            session.forget += gone
            self._speak_to(session)
        self._poke()

    def _collect(self, session: Session) -> None:
        if session.greeted:  # before, what its restart has ended still counts as assigned
            session.orders += session.told.orders(self.mirror, session.node)
        if session.orders:
            self._speak_to(session)

    def _speak_to(self, session: Session) -> None:
        news = session.orders or session.forget or session.stored_n > session.stored_told
        if session.over or not session.greeted or not news:
            return
        orders, session.orders = session.orders, []
        forget, session.forget = session.forget, []
        session.stored_told = session.stored_n
        echo = self._heard_n(session)
        session.stream.say_down(Orders(self.epoch, echo, session.stored_n, orders, forget))

    def _heard_n(self, session: Session) -> int:
        if session.stream.heard and not self._deaf:
            session.heard_n = max(session.heard_n, session.last_n())
        return session.heard_n

    def _wake_up(self) -> None:
        self._deaf = False
