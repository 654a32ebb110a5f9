"""Messages of nodes -> commands and observations of the engine. [I/O]

A command is committed before its message is acknowledged. An observation (last seen, load, connection) is
kept in memory only.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import structlog

from rota.engine.run import Engine
from rota.engine.state.mirror import Mirror
from rota.model.errors import BadField, NotAllowed, StoreFull, Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.lifecycle import NodeState
from rota.model.limits import SUSPECT_MS
from rota.model.messages import DrainRequest, JobReports
from rota.model.node import NodeLoad
from rota.model.plan import ADOPTION
from rota.rules.reconciler_names import ROUND_KEY, ReconcilerName
from rota.watcher import adoption, liveness, node_messages
from rota.watcher.adoption import BroughtJob, SealedSpecs
from rota.watcher.node_messages import display_name
from rota.watcher.node_settings import SettingsSender
from rota.watcher.session import NodeSession, SessionOver
from rota.wire import agent as wire
from rota.wire.generated import agent_pb2 as pb

log = structlog.get_logger("rota.watcher")

SCHEDULER_WAKE = (ReconcilerName.PLACE, ROUND_KEY)  # a node connected, or its load changed


class InboundMessages:
    """Applies the messages of all sessions; holds no state of its own."""

    def __init__(self, engine: Engine, settings: SettingsSender) -> None:
        self._engine = engine
        self._settings = settings

    async def receive_loop(self, session: NodeSession, messages: AsyncIterator[pb.FromNode]) -> None:
        """Apply a node's messages until it disconnects; always ends by raising SessionOver or BadField."""
        node = session.node
        async for message in messages:
            # Before the message is applied: applying may wait for a
            # commit, during which the node must not become suspect.
            self.mark_seen(node)
            session.on_message(message)
            self._settings.send_changes(session)
            match message.WhichOneof("word"):
                case "report":
                    await self._on_report(session, message)
                case "beat":
                    if message.beat.HasField("load"):
                        await self.measure(node, wire.load_from_wire(message.beat.load))
                case "drain":
                    await self._on_drain(node, wire.drain_from_wire(message.drain))
                case "leave":
                    await self.leave(node, wire.brief(message.leave.reason))
                    # Only after the leave is durable: the agent
                    # takes the end of the stream as confirmation.
                    raise SessionOver
                case "away" | "again":
                    self._on_announced_disconnect(session, message)
                    raise SessionOver
                case _:
                    log.warning("unexpected message", node=node)
        raise SessionOver

    def mark_seen(self, node: NodeId) -> None:
        """Restart the node's silence; raises SessionOver if it was deleted or revoked meanwhile."""
        entry = self._engine.mirror.nodes.get(node)
        if entry is None or entry.revoked:
            raise SessionOver
        # Heartbeats of ready nodes must not cost a decision each.
        wake = ((liveness.NAME, node),) if self.is_doubted(node) else ()
        self._engine.observe(lambda mirror: mirror.mark_seen(node), *wake)

    def mark_all_seen(self, nodes: list[NodeId]) -> None:
        doubted = [(liveness.NAME, node) for node in nodes if self.is_doubted(node)]
        self._engine.observe(lambda mirror: _mark_all_seen(mirror, nodes), *doubted)

    def is_doubted(self, node: NodeId) -> bool:
        """Whether the node is suspect, lost or has left, so that a message from it changes its state."""
        status = self._engine.mirror.nodes[node].status
        return status is not None and status.state is not NodeState.READY

    async def leave(self, node: NodeId, reason: str) -> None:
        await self._engine.ask(
            "watcher", lambda view, now: node_messages.on_leave(view, node, reason, now), may_split=True
        )

    async def measure(self, node: NodeId, load: NodeLoad) -> None:
        self._engine.observe(lambda mirror: mirror.measure(node, load), SCHEDULER_WAKE)
        status = self._engine.mirror.nodes[node].status
        if status is not None and status.shortage != load.shortage:
            with contextlib.suppress(Unavailable, StoreFull):  # not stored: the next load says it again
                await self._engine.ask(
                    "watcher", lambda view, _: node_messages.on_shortage(view, node, load.shortage)
                )

    async def _on_report(self, session: NodeSession, message: pb.FromNode) -> None:
        node = session.node
        report = wire.report_from_wire(message.n, message.report)
        # Before the commit: orders computed meanwhile must not start again what has ended.
        session.dispatch.on_reports(report.reports)
        if report.load is not None:
            await self.measure(node, report.load)
        try:
            await self._engine.ask(
                "watcher", lambda view, now: node_messages.on_report(view, node, report, now), may_split=True
            )
        except (Unavailable, StoreFull, NotAllowed):
            raise SessionOver from None  # not stored, so not acknowledged: the node reports it again
        # The watermark rises after the commit only: on it the node deletes results and starts attempts.
        session.dispatch.on_durable(report.reports)
        session.durable_n = message.n
        session.wake.set()

    async def _on_drain(self, node: NodeId, request: DrainRequest) -> None:
        await self._engine.ask("watcher", lambda view, now: node_messages.on_drain(view, node, request, now))

    def _on_announced_disconnect(self, session: NodeSession, message: pb.FromNode) -> None:
        """The agent will reconnect immediately (`Again`), or stops and leaves its work running (`Away`)."""
        if message.WhichOneof("word") == "again":
            session.calls_again = True
            return
        node, reason = session.node, wire.brief(message.away.reason)
        self._engine.observe(lambda mirror: mirror.nodes[node].set_disconnect_reason(reason))

    # ---- adoption, before the hello is applied

    async def adopt_unknown_jobs(
        self,
        session: NodeSession,
        specs: SealedSpecs,
        inventory: list[JobReports],
        messages: AsyncIterator[pb.FromNode],
    ) -> None:
        """Ask the node for the jobs of its inventory that this server does not know, and adopt them.

        The hello is not applied yet: the reports in its inventory, ended attempts among them, are applied
        when the jobs are known.
        """
        epoch, node = self._engine.epoch, session.node
        # A read waits for the commit under way, so a job that is being adopted from another node is known.
        unknown = await self._engine.read(lambda mirror: adoption.unknown(mirror, node, inventory, epoch))
        if not unknown:
            return
        assert session.outbound is not None
        requested = pb.Resubmit(jobs=[job_reports.job for job_reports in unknown])
        await session.outbound.write(pb.ToNode(epoch=epoch, resubmit=requested))
        for job_reports in unknown:
            spec = await self._resubmitted(session, specs, job_reports.job, messages)
            if spec is not None:
                brought = BroughtJob(node, spec, job_reports.reports, epoch)
                await self._engine.ask(ADOPTION, brought.adopt)

    async def _resubmitted(
        self, session: NodeSession, specs: SealedSpecs, job: JobId, messages: AsyncIterator[pb.FromNode]
    ) -> JobSpec | None:
        """The spec that the node sends for this job; None if no server of this cluster has sealed it."""
        # Bounded: a node that does not answer holds a handshake and would count as connected.
        async with asyncio.timeout(SUSPECT_MS / 1000):
            message = await anext(aiter(messages))
        self.mark_seen(session.node)
        session.on_message(message)
        resubmission = message.resubmission
        if message.WhichOneof("word") != "resubmission" or resubmission.job != job:
            raise BadField("word", "is not what was asked for", f"send the resubmission of job {job}")
        spec = specs.unseal(session.node, job, resubmission.record)
        if spec is None:
            name = display_name(self._engine.mirror, session.node)
            log.warning("job of a node cannot be adopted", node=name, job=job)
        return spec


def _mark_all_seen(mirror: Mirror, nodes: Iterable[NodeId]) -> None:
    for node in nodes:
        mirror.mark_seen(node)
