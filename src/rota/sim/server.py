"""A control plane's process: hears nodes and whoever watches, and speaks to them after each commit."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rota.engine.loop import Decided
from rota.model.adoption import jobs_before
from rota.model.ids import JobId, NodeId
from rota.model.job import Counters, JobSpec
from rota.model.lifecycle import NodeState
from rota.model.messages import DrainRequest, NodeReport
from rota.model.node import Connection
from rota.model.plan import ADOPTION, Instant, Plan
from rota.reconcilers import ReconcilerSettings, reconcilers
from rota.rules.cron_schedule import Offset
from rota.rules.reconciler_names import ROUND_KEY, ReconcilerName
from rota.scheduler.round import SchedulerSettings
from rota.sim.broken import InvariantBroken
from rota.sim.engine import SimEngine
from rota.sim.medium import SimStore
from rota.sim.network import SimStream
from rota.sim.session import SimSession
from rota.sim.watching import SimEventStream
from rota.sim.words import (
    BeatMessage,
    HelloMessage,
    LeaveMessage,
    OrdersMessage,
    ReportMessage,
    WatchRequest,
    WelcomeMessage,
)
from rota.sim.world import World
from rota.store import codec
from rota.watcher import adoption, leave_notices, liveness, node_messages
from rota.watcher.dispatch import unsealed

FOR_EVER_MS = 1 << 60
RESTART_MS = 1_500  # a supervisor starts it again


def _utc(_: str) -> Offset:
    return lambda _: 0


class LivenessTimes(NamedTuple):
    """How long a node may be silent, and how long another may believe to lead."""

    lost_ms: int
    ttl_ms: int = 0


class SimServer(SimEngine):
    def __init__(
        self,
        world: World,
        name: str,
        medium: SimStore,
        times: LivenessTimes,
        placement: SchedulerSettings | None = None,
    ) -> None:
        settings = ReconcilerSettings(
            zones=_utc, placement=placement, lost_ms=times.lost_ms, leader_ttl_ms=times.ttl_ms
        )
        super().__init__(world, name, medium, reconcilers(settings))
        self._watching = SimEventStream(self, medium, self.ask, lambda: self.revision)
        self._watching.came, self._watching.went = self._on_subscribed, self._on_unsubscribed
        self._sessions: dict[NodeId, SimSession] = {}
        self._ttl_ms = times.ttl_ms
        self.may_renew: Callable[[], bool] = lambda: True
        self._deaf = False  # it has just woken: what it says may answer what was said long ago

    # ---- its life

    def start(self) -> None:
        super().start()
        self._sessions.clear()
        self._watching.start()
        self._deaf = False

    def kill(self) -> None:
        for session in list(self._sessions.values()):
            session.stream.die(self, politely=True)
        self._sessions.clear()
        self._watching.end()
        super().kill()

    def freeze(self) -> None:
        self.mirror.now_ms = self.now().ms
        for session in self._sessions.values():
            session.heard_n = self._received_n(session)
            self.mirror.mark_seen(session.node)  # and not as long as its stream is well
            self.loop.wake(liveness.NAME, session.node)
        self._deaf = True
        super().freeze()

    def resume(self) -> None:
        super().resume()
        self.after(1, self._wake_up)

    # ---- after each commit

    def on_commit(self, decided: Decided) -> None:
        self._watching.on_commit(decided)
        for node, index in leave_notices.leave_events(decided.events):
            if node in self.mirror.nodes:
                self.mirror.nodes[node].left_at = (self.revision, index)
                self.loop.wake(leave_notices.NAME, node)
                self.wake()
        specs = [key.split("/") for key in decided.deletes if key.endswith("/spec")]
        self._send_to_nodes([JobId(name) for kind, name, _ in specs if kind == "job"])
        self._dismiss([NodeId(name) for kind, name, _ in specs if kind == "node"])

    def on_reload(self) -> None:
        self._watching.on_reload()
        self._send_to_nodes([])

    def observed(self) -> None:
        self._dismiss([node for node in self._sessions if node not in self.mirror.nodes])
        for session in self._sessions.values():
            self._observe(session)

    def _dismiss(self, nodes: list[NodeId]) -> None:
        """They are not known any more."""
        for node in nodes:
            if node in self._sessions:
                self._drop(self._sessions[node], "the node is not known here")

    # ---- whoever watches

    def watch(self, stream: SimStream, wanted: WatchRequest) -> None:
        if self.leads:
            self._watching.open(stream, wanted)
        else:
            stream.close(stream.up, f"{self.name} does not lead")

    def _on_subscribed(self, name: str) -> None:
        self.mirror.presence.connected_one(name)

    def _on_unsubscribed(self, name: str) -> None:
        self.mirror.presence.disconnected_one(name, self.now().ms)

    # ---- nodes

    def handshake(self, stream: SimStream, greeting: HelloMessage) -> None:
        node, hello = greeting.node, greeting.hello
        reason = self._why_refused(greeting)
        if reason is not None:
            self.world.count(f"server: turned a node away, {reason[0]}")
            stream.close(stream.up, reason[1])
            return
        before = self._sessions.get(node)
        rival = before if before is not None and self._answers(before, hello.boot_id) else None
        if before is not None:
            self.world.count("server: a node called again before its stream had broken")
            self._drop(before, "it has called again")
        sealed = codec.encode if self.medium.is_memory else unsealed
        session = self._sessions[node] = SimSession(stream, greeting, sealed)
        stream.up.hear = lambda word: self._on_message(session, word)
        stream.up.broke = lambda _: self._on_disconnect(session)
        stream.heeds = lambda hears: self._expect_beats(session, hears=hears)
        self._observe(session)
        self.mirror.connect(node, Connection.UP)

        def answered(_: Any) -> None:
            if rival is not None:
                raise InvariantBroken(f"{hello.boot_id} is welcome as {node}, and {rival.boot_id} answers")
            session.stored_n = greeting.n
            session.busy = False
            session.greeted = True
            stream.send_to_node(WelcomeMessage(self.epoch))
            self._observe(session)
            self.loop.wake(liveness.NAME, node)
            self.loop.wake(ReconcilerName.PLACE, ROUND_KEY)
            self._collect(session)
            self._send_to(session)
            self._next_message(session)
            self.wake()

        def command(view: Any, now: Instant) -> Any:
            return node_messages.on_hello(view, node, hello, now)

        self._adopt(session, greeting)
        self.ask("watcher", command, answered, lambda error: self._drop(session, str(error)))
        stream.check()

    def _adopt(self, session: SimSession, greeting: HelloMessage) -> None:
        """What it brings back is known before its hello is heard, in the same commit or an earlier one."""
        if not self.medium.is_memory:
            return
        for one in adoption.unknown(self.mirror, session.node, greeting.hello.inventory, self.epoch):
            record = greeting.record_of(one.job)
            if not record:
                continue
            spec = codec.decode(f"job/{one.job}/spec", record)
            assert isinstance(spec, JobSpec)
            brought = adoption.BroughtJob(session.node, spec, one.reports, self.epoch)
            self.world.count("server: adopted a job from a node")
            self.ask(ADOPTION, brought.adopt, lambda _: None, lambda error: self._drop(session, str(error)))

    def seed(self) -> None:
        """Numbers go on from where no earlier life can have come."""
        first = jobs_before(self.epoch)
        self.ask("apiserver", lambda *_: Plan((Counters(first, first),)), lambda _: None, lambda _: None)

    def _answers(self, session: SimSession, boot_id: str) -> bool:
        """Whether another machine, or boot, than this one has the session and is heard."""
        return session.greeted and session.boot_id != boot_id and session.stream.heard and not self._deaf

    def _why_refused(self, greeting: HelloMessage) -> tuple[str, str] | None:
        if not self.leads:
            return "not leading", f"{self.name} does not lead"
        if greeting.node not in self.mirror.nodes:
            return "unknown", "the node is not known here"
        times = {"now_ms": self.now().ms, "ttl_ms": self._ttl_ms}
        reason = node_messages.why_refused(
            self.mirror, greeting.node, greeting.hello, epoch=self.epoch, **times
        )
        kind = "ahead" if greeting.hello.epoch_seen > self.epoch else "elsewhere"
        return None if reason is None else (kind, reason)

    def _on_message(self, session: SimSession, word: Any) -> None:
        if session.over:
            return
        self._mark_seen(session)
        session.words.append(word)
        self._next_message(session)

    def _next_message(self, session: SimSession) -> None:
        """One after the other: the next when the one before is on disk."""
        if session.busy or not session.words or session.over:
            return
        session.busy = True
        word = session.words.pop(0)
        node = session.node
        match word:
            case ReportMessage():
                session.heard_n = max(session.heard_n, word.n)
                session.told.on_reports(word.claims)

                def stored(_: Any) -> None:
                    session.told.on_durable(word.claims)
                    session.stored_n = word.n
                    session.busy = False
                    self.after(10, lambda: self._send_to(session))
                    self._next_message(session)

                report = NodeReport(word.n, word.claims)
                self.ask(
                    "watcher",
                    lambda view, now: node_messages.on_report(view, node, report, now),
                    stored,
                    lambda error: self._drop(session, str(error)),
                )
            case BeatMessage():
                session.heard_n = max(session.heard_n, word.n)
                session.busy = False
                session.echo_due = True
                self._send_to(session)
                self._next_message(session)
            case DrainRequest():
                self.ask(
                    "watcher",
                    lambda view, now: node_messages.on_drain(view, node, word, now),
                    lambda _: self._on_message_done(session),
                    lambda error: self._drop(session, str(error)),
                )
            case LeaveMessage():
                self.ask(
                    "watcher",
                    lambda view, now: node_messages.on_leave(view, node, word.reason, now),
                    lambda _: self._drop(session, "it has left"),
                    lambda error: self._drop(session, str(error)),
                )

    def _on_message_done(self, session: SimSession) -> None:
        session.busy = False
        self._next_message(session)

    def _expect_beats(self, session: SimSession, *, hears: bool) -> None:
        """Beats are not events: from here on they come, or do not."""
        if session.over:
            return
        if hears:
            self._mark_seen(session)
        else:
            session.heard_n = session.last_n()
            self.mirror.now_ms = self.now().ms
            self.mirror.mark_seen(session.node)
            self.loop.wake(liveness.NAME, session.node)
            self.wake()

    def _mark_seen(self, session: SimSession) -> None:
        self._observe(session)
        status = self.mirror.nodes[session.node].status
        if status is not None and status.state is not NodeState.READY:
            self.loop.wake(liveness.NAME, session.node)
            self.wake()

    def _observe(self, session: SimSession) -> None:
        """Heard now, and as long as its stream is well."""
        self.mirror.now_ms = FOR_EVER_MS if session.stream.heard else self.now().ms
        self.mirror.mark_seen(session.node)
        self.mirror.now_ms = self.now().ms

    def _on_disconnect(self, session: SimSession) -> None:
        """The stream is broken: the node is suspect at once, unless it has already called again."""
        session.over = True
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            if session.node in self.mirror.nodes:
                self.mirror.now_ms = self.now().ms
                self.mirror.mark_seen(session.node)
                self.mirror.connect(session.node, Connection.DOWN)
                self.loop.wake(liveness.NAME, session.node)
                self.wake()

    def _drop(self, session: SimSession, reason: str) -> None:
        session.stream.close(session.stream.up, reason)
        self._on_disconnect(session)

    # ---- speaking

    def _send_to_nodes(self, gone: list[JobId]) -> None:
        for node in self.mirror.touched:
            session = self._sessions.get(node)
            if session is not None:
                self._collect(session)
        self.mirror.touched.clear()
        for session in self._sessions.values() if gone else ():
            session.forget += gone
            self._send_to(session)

    def _collect(self, session: SimSession) -> None:
        if session.greeted:  # before, what its restart has ended still counts as assigned
            session.orders += session.told.orders(self.mirror, session.node)
        if session.orders:
            self._send_to(session)

    def _send_to(self, session: SimSession) -> None:
        news = session.orders or session.forget or session.stored_n > session.stored_told or session.echo_due
        if session.over or not session.greeted or not news:
            return
        orders, session.orders = session.orders, []
        forget, session.forget = session.forget, []
        session.stored_told, session.echo_due = session.stored_n, False
        echo = self._received_n(session)
        session.stream.send_to_node(
            OrdersMessage(self.epoch, echo, session.stored_n, orders, forget, self.may_renew())
        )

    def _received_n(self, session: SimSession) -> int:
        if session.stream.heard and not self._deaf:
            session.heard_n = max(session.heard_n, session.last_n())
        return session.heard_n

    def _wake_up(self) -> None:
        self._deaf = False
        self.observed()
