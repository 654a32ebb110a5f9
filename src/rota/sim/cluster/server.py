"""A server process: sessions with nodes and event streams, on top of the simulated engine."""

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
from rota.sim.cluster.engine import SimEngine
from rota.sim.cluster.event_stream import SimEventStream
from rota.sim.cluster.messages import (
    BeatMessage,
    HelloMessage,
    LeaveMessage,
    OrdersMessage,
    ReportMessage,
    WatchRequest,
    WelcomeMessage,
)
from rota.sim.cluster.session import SimSession
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.network import SimStream
from rota.sim.world.store import SimStore
from rota.sim.world.virtual_time import World
from rota.store import codec
from rota.watcher import adoption, leave_notices, liveness, node_messages
from rota.watcher.dispatch import unsealed

FOR_EVER_MS = 1 << 60
RESTART_MS = 1_500  # until its supervisor restarts it


def _utc(_: str) -> Offset:
    return lambda _: 0


class LivenessTimes(NamedTuple):
    """Silence after which a node is lost, and the TTL of the leader lease."""

    lost_ms: int
    ttl_ms: int = 0


class SimServer(SimEngine):
    """The counterpart of watcher.agent_service, with the reconcilers that production wires.

    A node's messages are decided one at a time, in order: the next one when the one before is durable. A node
    whose stream is healthy counts as seen for ever, because its heartbeats are not events; when they stop,
    the mirror is given the time of the last one.
    """

    def __init__(
        self,
        world: World,
        name: str,
        store: SimStore,
        times: LivenessTimes,
        placement: SchedulerSettings | None = None,
    ) -> None:
        settings = ReconcilerSettings(
            zones=_utc, placement=placement, lost_ms=times.lost_ms, leader_ttl_ms=times.ttl_ms
        )
        super().__init__(world, name, store, reconcilers(settings))
        self._event_stream = SimEventStream(self, store, self.ask, lambda: self.revision)
        self._event_stream.on_subscribed, self._event_stream.on_unsubscribed = (
            self._on_subscribed,
            self._on_unsubscribed,
        )
        self._sessions: dict[NodeId, SimSession] = {}
        self._ttl_ms = times.ttl_ms
        self.may_renew: Callable[[], bool] = lambda: True
        self._just_resumed = False  # heartbeats computed now may predate the freeze

    # ---- start, end, freeze

    def start(self) -> None:
        super().start()
        self._sessions.clear()
        self._event_stream.start()
        self._just_resumed = False

    def kill(self) -> None:
        for session in list(self._sessions.values()):
            session.stream.die(self, politely=True)
        self._sessions.clear()
        self._event_stream.end()
        super().kill()

    def freeze(self) -> None:
        self.mirror.now_ms = self.now().ms
        for session in self._sessions.values():
            # Heartbeats are computed, not sent. Those up to now count; after the freeze none was received.
            session.received_n = self._received_n(session)
            self.mirror.mark_seen(session.node)  # as of now, no longer for ever
            self.loop.wake(liveness.NAME, session.node)
        self._just_resumed = True
        super().freeze()

    def resume(self) -> None:
        super().resume()
        self.after(1, self._wake_up)

    # ---- after each commit

    def on_commit(self, decided: Decided) -> None:
        self._event_stream.on_commit(decided)
        for node, index in leave_notices.leave_events(decided.events):
            if node in self.mirror.nodes:
                self.mirror.nodes[node].left_at = (self.revision, index)
                self.loop.wake(leave_notices.NAME, node)
                self.wake()
        specs = [key.split("/") for key in decided.deletes if key.endswith("/spec")]
        self._send_to_nodes([JobId(name) for kind, name, _ in specs if kind == "job"])
        self._dismiss([NodeId(name) for kind, name, _ in specs if kind == "node"])

    def on_reload(self) -> None:
        self._event_stream.on_reload()
        self._send_to_nodes([])

    def observed(self) -> None:
        self._dismiss([node for node in self._sessions if node not in self.mirror.nodes])
        for session in self._sessions.values():
            self._observe(session)

    def _dismiss(self, nodes: list[NodeId]) -> None:
        """Close the sessions of deleted nodes."""
        for node in nodes:
            if node in self._sessions:
                self._drop(self._sessions[node], "the node is not known here")

    # ---- subscribers

    def watch(self, stream: SimStream, request: WatchRequest) -> None:
        if self.leads:
            self._event_stream.open(stream, request)
        else:
            stream.close(stream.up, f"{self.name} does not lead")

    def _on_subscribed(self, name: str) -> None:
        self.mirror.presence.connected_one(name)

    def _on_unsubscribed(self, name: str) -> None:
        self.mirror.presence.disconnected_one(name, self.now().ms)

    # ---- nodes

    def handshake(self, stream: SimStream, message: HelloMessage) -> None:
        node, hello = message.node, message.hello
        reason = self._why_refused(message)
        if reason is not None:
            self.world.count(f"server: refused a node, {reason[0]}")
            stream.close(stream.up, reason[1])
            return
        before = self._sessions.get(node)
        # Invariant: while one boot is connected, no other may be accepted under the same node name.
        rival = before if before is not None and self._answers(before, hello.boot_id) else None
        if before is not None:
            self.world.count("server: a node redialled before its stream had broken")
            # The newer stream wins: the agent has given up the old one, or both would get orders.
            self._drop(before, "the node opened a new stream")
        sealed = codec.encode if self.store.is_memory else unsealed
        session = self._sessions[node] = SimSession(stream, message, sealed)
        stream.up.on_message = lambda message: self._on_message(session, message)
        stream.up.on_break = lambda _: self._on_disconnect(session)
        stream.on_beats_change = lambda arrive: self._expect_beats(session, arrive=arrive)
        self._observe(session)
        self.mirror.connect(node, Connection.UP)

        def answered(_: Any) -> None:
            if rival is not None:
                raise InvariantBroken(
                    f"{hello.boot_id} is accepted as {node}, and {rival.boot_id} is connected"
                )
            session.durable_n = message.n
            session.busy = False
            # Ordering: only now may orders be sent. Before the commit they would rest on an
            # inventory that could be lost.
            session.hello_durable = True
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

        # Ordering: adopted jobs are known before the hello that reports their attempts is decided.
        self._adopt(session, message)
        self.ask("watcher", command, answered, lambda error: self._drop(session, str(error)))
        stream.check()

    def _adopt(self, session: SimSession, message: HelloMessage) -> None:
        """Adopt unknown jobs of the inventory before the hello is decided, at the latest in its commit."""
        if not self.store.is_memory:
            return
        for unknown in adoption.unknown(self.mirror, session.node, message.hello.inventory, self.epoch):
            record = message.record_of(unknown.job)
            if not record:
                continue
            spec = codec.decode(f"job/{unknown.job}/spec", record)
            assert isinstance(spec, JobSpec)
            brought = adoption.BroughtJob(session.node, spec, unknown.reports, self.epoch)
            self.world.count("server: adopted a job from a node")
            self.ask(ADOPTION, brought.adopt, lambda _: None, lambda error: self._drop(session, str(error)))

    def seed(self) -> None:
        """Start job and node numbers above any that an earlier life can have given out."""
        first = jobs_before(self.epoch)
        self.ask("apiserver", lambda *_: Plan((Counters(first, first),)), lambda _: None, lambda _: None)

    def _answers(self, session: SimSession, boot_id: str) -> bool:
        """Return whether another boot holds the session and its heartbeats still arrive."""
        return (
            session.hello_durable
            and session.boot_id != boot_id
            and session.stream.beats_arrive
            and not self._just_resumed
        )

    def _why_refused(self, message: HelloMessage) -> tuple[str, str] | None:
        if not self.leads:
            return "not leading", f"{self.name} does not lead"
        if message.node not in self.mirror.nodes:
            return "unknown", "the node is not known here"
        times = {"now_ms": self.now().ms, "ttl_ms": self._ttl_ms}
        reason = node_messages.why_refused(
            self.mirror, message.node, message.hello, epoch=self.epoch, **times
        )
        kind = "ahead" if message.hello.epoch_seen > self.epoch else "elsewhere"
        return None if reason is None else (kind, reason)

    def _on_message(self, session: SimSession, message: Any) -> None:
        if session.closed:
            return
        self._mark_seen(session)
        session.queue.append(message)
        self._next_message(session)

    def _next_message(self, session: SimSession) -> None:
        """Decide the next queued message, unless one is being decided.

        Ordering: the next message starts when the previous one is durable, as in production.
        """
        if session.busy or not session.queue or session.closed:
            return
        session.busy = True
        message = session.queue.pop(0)
        node = session.node
        match message:
            case ReportMessage():
                session.received_n = max(session.received_n, message.n)
                session.dispatch.on_reports(message.reports)

                def stored(_: Any) -> None:
                    session.dispatch.on_durable(message.reports)
                    session.durable_n = message.n
                    session.busy = False
                    # A short delay collects the acknowledgements of several reports in one message.
                    self.after(10, lambda: self._send_to(session))
                    self._next_message(session)

                report = NodeReport(message.n, message.reports)
                self.ask(
                    "watcher",
                    lambda view, now: node_messages.on_report(view, node, report, now),
                    stored,
                    lambda error: self._drop(session, str(error)),
                )
            case BeatMessage():
                session.received_n = max(session.received_n, message.n)
                session.busy = False
                session.echo_due = True
                self._send_to(session)
                self._next_message(session)
            case DrainRequest():
                self.ask(
                    "watcher",
                    lambda view, now: node_messages.on_drain(view, node, message, now),
                    lambda _: self._on_message_done(session),
                    lambda error: self._drop(session, str(error)),
                )
            case LeaveMessage():
                self.ask(
                    "watcher",
                    lambda view, now: node_messages.on_leave(view, node, message.reason, now),
                    lambda _: self._drop(session, "the node has left"),
                    lambda error: self._drop(session, str(error)),
                )

    def _on_message_done(self, session: SimSession) -> None:
        session.busy = False
        self._next_message(session)

    def _expect_beats(self, session: SimSession, *, arrive: bool) -> None:
        """Heartbeats start or stop arriving; they are no events, so only the change is."""
        if session.closed:
            return
        if arrive:
            self._mark_seen(session)
        else:
            session.received_n = session.last_n()
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
        """Mark the node as seen: for ever while its heartbeats arrive, else until now."""
        self.mirror.now_ms = FOR_EVER_MS if session.stream.beats_arrive else self.now().ms
        self.mirror.mark_seen(session.node)
        self.mirror.now_ms = self.now().ms

    def _on_disconnect(self, session: SimSession) -> None:
        """The stream broke: mark the node as disconnected, unless it already has a newer stream."""
        session.closed = True
        # Otherwise the node has a newer stream, and the end of the old one must not mark it as disconnected.
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

    # ---- sending

    def _send_to_nodes(self, deleted_jobs: list[JobId]) -> None:
        for node in self.mirror.touched:
            session = self._sessions.get(node)
            if session is not None:
                self._collect(session)
        self.mirror.touched.clear()
        for session in self._sessions.values() if deleted_jobs else ():
            session.forget += deleted_jobs
            self._send_to(session)

    def _collect(self, session: SimSession) -> None:
        # Before the hello is durable, attempts that the node's restart ended still count as assigned.
        if session.hello_durable:
            session.orders += session.dispatch.orders(self.mirror, session.node)
        if session.orders:
            self._send_to(session)

    def _send_to(self, session: SimSession) -> None:
        pending = session.orders or session.forget or session.durable_n > session.acked_n or session.echo_due
        if session.closed or not session.hello_durable or not pending:
            return
        orders, session.orders = session.orders, []
        forget, session.forget = session.forget, []
        session.acked_n, session.echo_due = session.durable_n, False
        echo = self._received_n(session)
        session.stream.send_to_node(
            OrdersMessage(self.epoch, echo, session.durable_n, orders, forget, self.may_renew())
        )

    def _received_n(self, session: SimSession) -> int:
        if session.stream.beats_arrive and not self._just_resumed:
            session.received_n = max(session.received_n, session.last_n())
        return session.received_n

    def _wake_up(self) -> None:
        self._just_resumed = False
        self.observed()
