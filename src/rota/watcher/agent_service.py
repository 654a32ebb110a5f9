"""gRPC service for agents: one stream per node, and calls for logs, tails and certificates. [I/O]

Each call is authenticated here by the node's certificate, and its messages are checked against their bounds
before anything else reads them. Sessions themselves are run by `NodeSessions`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import grpc

from rota.engine.run import Committed, Engine
from rota.identity import certificates
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import IdentityRefused
from rota.model.errors import BadField
from rota.model.ids import JobId, NodeId
from rota.model.limits import LOST_MS
from rota.model.result import ResultEndpoint
from rota.watcher.authentication import Context, NodeAuthenticator
from rota.watcher.leadership import SINGLE_SERVER, LeadershipContext
from rota.watcher.logs import NodeLogs, TailSink, is_own
from rota.watcher.node_messages import display_name
from rota.watcher.node_sessions import NodeSessions, ResultEndpoints, checked, deleted_names
from rota.watcher.node_settings import SettingsSender
from rota.watcher.report_interval import DEFAULT_BOUNDS, IntervalBounds
from rota.wire import agent as wire
from rota.wire import bounds
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc


def no_result_endpoint(node: NodeId, job: JobId) -> ResultEndpoint | None:
    del node, job
    return None


class AgentService(pb_grpc.AgentServicer):
    """Serves agent.proto. `sessions` and `logs` are also used by watchers, the gateway and the API."""

    def __init__(
        self,
        engine: Engine,
        authority: CertificateAuthority,
        lost_ms: int = LOST_MS,
        report_bounds: IntervalBounds = DEFAULT_BOUNDS,
        tails: TailSink | None = None,
        *,
        leadership: LeadershipContext = SINGLE_SERVER,
        endpoints: ResultEndpoints = no_result_endpoint,
    ) -> None:
        self._engine = engine
        self._authority = authority
        self._refused = leadership.refused
        self._tails = tails
        self.authenticator = NodeAuthenticator(engine, authority, leadership)
        settings = SettingsSender(engine, authority, leadership, lost_ms, report_bounds)
        self.sessions = NodeSessions(engine, authority, settings, leadership, endpoints)
        self.logs = NodeLogs(engine, self.sessions.get, self.sessions.readings)
        if tails is not None:
            engine.on_commit(self._forget_tails)

    # ---- rpc (gRPC chooses these names)

    async def Connect(self, request_iterator: AsyncIterator[pb.FromNode], context: Context) -> None:
        node = await self._authenticate(context)
        certificate = self.authenticator.certificate(context)
        await self.sessions.serve_session(node, request_iterator, context, certificate)

    async def PushLog(self, request_iterator: AsyncIterator[pb.LogChunk], context: Context) -> pb.LogDone:
        node = await self._authenticate(context)
        try:
            with self.sessions.pushes.limit_for(node) as limit:
                # A deadline that only `sessions.pushes.end` sets:
                # a revoked node must not keep a log call open.
                async with limit:
                    await self.sessions.relay_log(node, checked(request_iterator))
        except BadField as invalid:
            await self._refuse_call(node, invalid, context)
        except TimeoutError:
            await self._authenticate(context)  # its calls were ended: this aborts with the reason
        return pb.LogDone()

    async def KeepTails(self, request: pb.Tails, context: Context) -> pb.TailsKept:
        node = await self._authenticate(context)
        try:
            bounds.check(request)
        except BadField as invalid:
            await self._refuse_call(node, invalid, context)
        pieces = wire.tails_from_wire(request)
        # A node must not write into the output of other nodes' attempts.
        own = await self._engine.read(
            lambda mirror: [piece for piece in pieces if is_own(mirror, node, piece)]
        )
        if own and self._tails is not None:
            with contextlib.suppress(OSError):  # a full disk: the node has the output, too
                await asyncio.to_thread(self._tails.store, own)
        return pb.TailsKept()

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewReply:
        """Sign a new certificate, also in place of an expired one: TLS has proved possession of its key."""
        node, now = await self.authenticator.authenticate_even_expired(context), datetime.now(UTC)
        shown = self.authenticator.certificate(context)
        lapsed = self.authenticator.why_not_renewable(node, certificates.period_of(shown).end, now)
        if lapsed is not None:
            code = grpc.StatusCode.PERMISSION_DENIED
            self._refused.record(context, "renew a certificate", code, lapsed, f"node {node}")
            await context.abort(code, f"{lapsed}: join it again")
        try:
            like = None if request.follows else shown
            name = display_name(self._engine.mirror, node)
            certificate = self._authority.sign_node(request.csr, node, name, now, like=like)
        except IdentityRefused as refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        return pb.RenewReply(certificate=certificate, ca=self._authority.bundle.pem)

    async def _authenticate(self, context: Context) -> NodeId:
        return await self.authenticator.authenticate(context)

    async def _refuse_call(self, node: NodeId, invalid: BadField, context: Context) -> None:
        reason = f"{invalid} ({invalid.hint})"
        self.sessions.record_invalid_message(node, reason)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    def _forget_tails(self, committed: Committed) -> None:
        """Commit hook: delete the tails of deleted jobs."""
        assert self._tails is not None
        for job in deleted_names(committed.decided.deletes, "job/"):
            self._tails.forget(JobId(job))
