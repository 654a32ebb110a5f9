"""The certificate of a call -> the node it names, if it may call now. [I/O]"""

from datetime import UTC, datetime
from typing import Any

import grpc

from rota.engine.run import Engine
from rota.identity import authority as ca
from rota.identity import certificates
from rota.identity.authority import CertificateAuthority
from rota.model.ids import NodeId
from rota.watcher.leadership import LeadershipContext
from rota.watcher.node_messages import display_name, why_revoked
from rota.wire import forwarding

Context = grpc.aio.ServicerContext[Any, Any]


class Unidentified(Exception):
    """A certificate names no node of this cluster, or may not be used now; `code` is the call's status."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class NodeAuthenticator:
    """Maps certificates of calls to nodes. TLS has checked already that this cluster's CA signed them."""

    def __init__(
        self, engine: Engine, authority: CertificateAuthority, leadership: LeadershipContext
    ) -> None:
        self._engine = engine
        self._authority = authority
        self._leadership = leadership

    async def authenticate(self, context: Context) -> NodeId:
        """The calling node; aborts the call if it is unknown or revoked, or its certificate has expired."""
        try:
            return await self.identify(self.certificate(context))
        except Unidentified as refusal:
            self._leadership.refused.record(context, "call as a node", refusal.code, str(refusal))
            await context.abort(refusal.code, str(refusal))

    async def authenticate_even_expired(self, context: Context) -> NodeId:
        """As `authenticate`, but with an expired certificate, too."""
        try:
            return await self._node_of(self.certificate(context))
        except Unidentified as refusal:
            self._leadership.refused.record(context, "renew a certificate", refusal.code, str(refusal))
            await context.abort(refusal.code, str(refusal))

    def certificate(self, context: Context) -> bytes:
        """The node's certificate: that of the connection, or the one a watcher states for its agent."""
        shown = forwarding.shown_certificate(context)
        watcher = certificates.watcher_id_of(shown) if shown else None
        # A retired watcher gets no say either: its statement could name any node.
        if watcher is None or not self._leadership.may_watch(watcher) or self._authority.is_retired(shown):
            return shown
        # What a watcher states counts only while it may watch, and only if a trusted CA signed it.
        stated = forwarding.stated_certificate(context)
        return stated if self._authority.vouches_for(stated) else shown

    async def identify(self, pem: bytes) -> NodeId:
        """The node that this certificate names, if it may work with it now. Raises Unidentified."""
        node = await self._node_of(pem)
        end = certificates.period_of(pem).end
        if datetime.now(UTC) >= end:
            reason = f"the certificate of node {node} expired on {end:%Y-%m-%d %H:%M} UTC: renew it first"
            raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, reason)
        return node

    async def _node_of(self, pem: bytes) -> NodeId:
        if not pem:
            raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, "no client certificate")
        try:
            node = NodeId(certificates.node_id_of(pem))
        except ValueError as error:
            raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
        # TLS checked the CA when the connection was opened, which may be before the rotation ended.
        if self._authority.is_retired(pem):
            reason = f"the CA that signed the certificate of node {node} is no longer trusted"
            raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, reason)
        entry = await self._engine.read(lambda mirror: mirror.nodes.get(node))
        if entry is None:
            reason = f"node {node} is not known here: join it again"
            raise Unidentified(grpc.StatusCode.PERMISSION_DENIED, reason)
        if entry.revoked:
            raise Unidentified(grpc.StatusCode.PERMISSION_DENIED, why_revoked(entry))
        return node

    def why_not_renewable(self, node: NodeId, end: datetime, now: datetime) -> str | None:
        """Why a certificate that expired at `end` cannot be renewed; None if it can.

        An old key must not outlive its certificate: once a node has used a newer one, only that one counts.
        """
        name, until = display_name(self._engine.mirror, node), end + self._authority.renewal_window
        if now < end:
            return None
        if now >= until:
            return f"the certificate of node {name} could be renewed until {until:%Y-%m-%d %H:%M} UTC"
        entry = self._engine.mirror.nodes.get(node)
        latest_ms = None if entry is None or entry.status is None else entry.status.certificate_expires_at_ms
        # A certificate that expires later than any signed now was signed while the clock was ahead:
        # it is no evidence of a newer one.
        last_ms = (now + ca.NODE_LIFE).timestamp() * 1000
        if latest_ms is not None and end.timestamp() * 1000 < latest_ms <= last_ms:
            return f"node {name} has used a newer certificate than this one, which expired on {end:%Y-%m-%d}"
        return None
