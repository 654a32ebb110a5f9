"""Settings a node follows, beside its orders: report interval, reconnect spread, servers, CAs. [I/O]

A setting is sent when it differs from what the session has sent last. Connected nodes are compared when they
send something, so that a change does not make thousands of messages at one moment.
"""

from rota.engine.run import Engine
from rota.identity.authority import CertificateAuthority
from rota.model.limits import HEARTBEAT_MS, ROTATION_SPREAD_MS
from rota.watcher.leadership import LeadershipContext
from rota.watcher.node_messages import display_name
from rota.watcher.report_interval import IntervalBounds, effective_bounds, report_ms, spread_ms
from rota.watcher.session import NodeSession
from rota.wire.generated import agent_pb2 as pb


class SettingsSender:
    """Sends settings to sessions when they have changed."""

    def __init__(
        self,
        engine: Engine,
        authority: CertificateAuthority,
        leadership: LeadershipContext,
        lost_ms: int,
        configured: IntervalBounds,
    ) -> None:
        self._engine = engine
        self._authority = authority
        self._leadership = leadership
        self._lost_ms = lost_ms
        self._configured = configured
        self._heartbeat_ms = min(HEARTBEAT_MS, lost_ms // 3)

    def welcome(self, session: NodeSession) -> pb.ToNode:
        self._update_interval(session)
        welcome = pb.Welcome(
            name=display_name(self._engine.mirror, session.node),
            heartbeat_ms=self._heartbeat_ms,
            report_interval_ms=session.report_ms,
            spread_ms=session.spread_ms,
        )
        return pb.ToNode(epoch=self._engine.epoch, welcome=welcome)

    def send_changes(self, session: NodeSession) -> None:
        if self._update_interval(session):
            interval = pb.Pace(report_interval_ms=session.report_ms, spread_ms=session.spread_ms)
            session.send(pb.ToNode(epoch=self._engine.epoch, pace=interval))
        self.send_servers(session)
        self.send_trust(session)

    def send_servers(self, session: NodeSession) -> None:
        if session.servers != (servers := self._leadership.servers()):
            # Recorded before it is queued: a second call before the write must not send it twice.
            session.servers = servers
            session.send(pb.ToNode(epoch=self._engine.epoch, servers=pb.Servers(addresses=servers)))

    def send_trust(self, session: NodeSession) -> None:
        """Send the CA bundle; nothing before the first rotation, as a node trusts the CA it joined with."""
        if not session.certificate or not self._authority.has_rotated:
            return
        if session.ca != (ca := self._authority.bundle.pem):
            session.ca = ca
            # Spread over the nodes, because each of them renews its certificate when it gets this.
            spread = max(session.spread_ms, ROTATION_SPREAD_MS * len(self._engine.mirror.nodes))
            trust = pb.Trust(ca=ca, spread_ms=spread)
            session.send(pb.ToNode(epoch=self._engine.epoch, trust=trust))

    def _update_interval(self, session: NodeSession) -> bool:
        """Compute the report interval and the spread; returns True if either changed."""
        node = session.node
        mirror = self._engine.mirror
        interval = report_ms(mirror, node, effective_bounds(mirror.report_interval, self._configured))
        spread = spread_ms(len(mirror.nodes), self._lost_ms)
        if (interval, spread) == (session.report_ms, session.spread_ms):
            return False
        session.report_ms, session.spread_ms = interval, spread
        self._engine.observe(lambda mirror: mirror.nodes[node].set_report_interval(interval))
        return True
