"""The agent's driver: attach to the keeper, connect to a server, carry out orders, send reports. [I/O]

Two loops run side by side. `_keep` holds the connection to the keeper and records its reports; `_call` holds
a session with a server. `AttemptTracker` lies between them, so that either side may be missing: while no
server answers, attempts go on and their results wait in the keeper; when the keeper dies, a new one is
started and the session begins again with a new inventory.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from rota.agent import dial
from rota.agent.attempts import AttemptTracker, stops
from rota.agent.backoff import Backoff
from rota.agent.credentials import Credentials
from rota.agent.host import containers, probe
from rota.agent.host.load import LoadSampler
from rota.agent.host.termination_notice import TerminationWatcher, as_message
from rota.agent.output.results import ResultReporter
from rota.agent.output.streams import OutputStreams
from rota.agent.output.tails import TailReader
from rota.agent.plan import HostFacts
from rota.agent.servers import ServerList
from rota.agent.session import AgentSession, ConnectionOver, ServerGone, Stream, now_ms
from rota.identity.errors import IdentityRefused
from rota.identity.node_identity import NodeIdentity
from rota.model.errors import BadField, NotAllowed, flatten_group
from rota.model.ids import JobId
from rota.model.limits import BEAT_MS, EPOCH_MAX, OUTPUT_BYTES, REASON_LENGTH_MAX, SUSPECT_MS
from rota.model.messages import Hello, JobOrders
from rota.runtimes.protocol import AttemptName, ContainerEngine, NodeResources, Runtime
from rota.wire import agent as wire
from rota.wire import bounds
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

log = structlog.get_logger("rota.agent")

_LEAVE_SECONDS = 10.0
_SETTLE_SECONDS = 10.0
_AGAIN_SECONDS = 2.0
CANNOT_EXECUTE = 126  # the exit code of a shell for a command that it cannot execute
_ATTACH_SECONDS = 30.0
_AWAY_SECONDS = 2.0  # a service manager waits for this
_TOLD_TO = "it was told to leave"
_STOPPED = f"{_TOLD_TO}, and has stopped its work"
_AWAY = "its agent was stopped; its work goes on under the keeper"


@dataclass(frozen=True)
class AgentSettings:
    directory: Path
    addresses: tuple[str, ...]  # of the servers; one of them leads
    name: str
    version: str
    labels: dict[str, str]
    declared: dict[str, int]  # capacity that replaces what is detected
    keeping: dict[str, int]  # retention of output: how much, and for how long
    output_bytes: int = OUTPUT_BYTES  # the most that is sent of a task's output files in one request
    container: str | None = None  # the container runtime; None: whichever is installed
    mounts: tuple[str, ...] = ()  # directories of this machine that containers may mount
    container_root: bool = False
    notice: str | None = None  # a command that reports when this machine will be terminated


def _check(message: pb.ToNode) -> None:
    """Disconnect from a server whose message is out of bounds. Orders are checked when they are applied."""
    try:
        bounds.check(message)
    except BadField as problem:
        raise ConnectionOver(f"invalid message from the server: {problem} ({problem.hint})") from None


class Agent:
    """The agent of one node, from its start until it has left or was stopped."""

    def __init__(self, settings: AgentSettings, identity: NodeIdentity, runtime: Runtime) -> None:
        self._settings = settings
        self._credentials = Credentials(settings.directory, identity, log.warning)
        self._runtime = runtime
        self._host = probe.probe_host(settings.directory, settings.declared)
        self._engine: ContainerEngine | None = None
        self._attempts = AttemptTracker()
        self._load = LoadSampler(settings.directory, lambda: runtime.shortage)
        self._tails = TailReader(settings.directory, lambda name: self._attempts.is_known(AttemptName(*name)))
        self._output_streams = OutputStreams(
            settings.directory, settings.output_bytes, self._attempts.is_live, log.warning
        )
        self._results = ResultReporter(
            settings.directory, lambda: self._credentials.identity, self._attempts.record, log.warning
        )
        self._epoch_file = settings.directory / "epoch"
        self._servers = ServerList(settings.directory, settings.addresses)
        self._welcomed = False
        self._backoff = Backoff(random.Random())
        self._leaving = False
        self._deregistered = False
        self._away = False  # the agent ends and its attempts go on
        self._ended = asyncio.Event()  # the keeper has stopped all attempts, and has ended
        self._termination = TerminationWatcher(settings.notice, settings.name)
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Run until the node has left, or `announce_restart` has told the server that the agent ends."""
        # Before the first hello: a machine that is being terminated must not be offered work for a moment.
        if await self._termination.poll():
            self._on_termination_change()
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(self._keep())
            calling = tasks.create_task(self._call())
            sampling = tasks.create_task(self._load.watch(self._attempts.nudge))
            polling = tasks.create_task(self._termination.watch(self._on_termination_change))
            reporting = tasks.create_task(self._results.run())
            await self._left.wait()
            for task in (keeping, calling, sampling, polling, reporting):
                task.cancel()

    async def drain(self, seconds: float) -> None:
        """Accept nothing new, tell the server, and wait up to `seconds` for running attempts to end."""
        # Before the wait: starts that arrive meanwhile are refused.
        self._leaving = True
        self._termination.leave_within(seconds, _TOLD_TO)
        self._attempts.nudge()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._attempts.idle.wait()

    async def leave(self) -> None:
        """Stop all attempts; return when they have ended and the keeper with them.

        Ordering: the server is told first that the node leaves, so that it does not place here again what is
        stopped here. It gets every result before the deregistration: until then the node counts as connected,
        however long a grace period is, and no task is placed elsewhere while it still runs here.
        """
        self._leaving = True
        self._termination.leave_within(0.0, _TOLD_TO)
        self._attempts.nudge()
        # A service manager may have ended the keeper already, and then there is nothing to wait for.
        if not self._ended.is_set():
            await self._attached()
            await self._runtime.quit()
            await self._ended.wait()
        self._attempts.changed.set()

    async def _attached(self) -> None:
        """Wait for the keeper, if the agent is told to leave while it still starts up."""
        async with asyncio.timeout(_ATTACH_SECONDS):
            await self._attempts.attached.wait()

    async def announce_restart(self) -> None:
        """Tell the server that attempts go on without an agent, if it can be reached at once."""
        self._away = True
        self._attempts.nudge()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AWAY_SECONDS):
                await self._left.wait()

    @property
    def is_terminating(self) -> bool:
        """Whether this machine has a termination notice: then a stop of the agent is a leave."""
        return self._termination.is_terminating

    def _on_termination_change(self) -> None:
        log.warning(self._termination.last_change)
        self._attempts.nudge()

    # ---- the keeper's side

    async def _keep(self) -> None:
        """Attach to the keeper and record its reports; reattach until the node has left."""
        settings = self._settings
        self._engine = await containers.find(
            settings.container, settings.mounts, root=settings.container_root
        )
        resources = NodeResources(
            settings.name, self._host.capacity, self._host.gpus, settings.keeping, self._engine
        )
        while True:
            # Attach again after each loss: the state that a keeper sends replaces everything known before.
            reports = await self._runtime.attach(resources)
            self._results.attach(self._runtime.result_endpoints)
            # A result that is still being reported by HTTP holds
            # back its end, so that the server has both in order.
            shown = self._results.defer_ends(reports)
            self._attempts.replace_all(shown, self._runtime.leases, self._runtime.records)
            self._tails.touch(job_reports.job for job_reports in reports)
            await self._drain_outdated()
            async for reports in self._runtime.events():
                self._attempts.record(self._results.defer_ends(reports))
                self._tails.touch(job_reports.job for job_reports in reports)
                await self._drain_outdated()
            # Ordering: results in progress first, because the deregistration follows the loss of the keeper.
            if self._leaving:
                await self._results.finish()
            self._attempts.on_keeper_lost()
            if self._leaving:
                self._ended.set()
                return
            log.error("keeper lost; starting a new one")

    async def _drain_outdated(self) -> None:
        """End a keeper of another release once nothing runs under it; the next attach starts a new one."""
        if self._runtime.is_outdated and self._attempts.is_idle():
            log.info("keeper of another release is replaced")
            await self._runtime.quit()

    # ---- the control plane's side

    async def _call(self) -> None:
        while not self._left.is_set():
            # The inventory of a hello must be complete: without
            # the keeper it would report every attempt as missing.
            if not (self._leaving and self._attempts.keeper_lost):
                await self._attempts.attached.wait()
            elif self._deregistered or not self._welcomed:  # the server knows, or none can be reached
                self._left.set()
                return
            is_lost = await self._call_next()
            if self._away:
                self._left.set()
                return
            is_round = self._servers.rotate()
            if is_lost:
                await asyncio.sleep(self._backoff.after_loss(self._lease_seconds()))
            elif is_round:
                await asyncio.sleep(self._backoff.after_round(self._lease_seconds()))

    async def _call_next(self) -> bool:
        """Run one connection to its end; return True if a server that had welcomed us was lost."""
        self._welcomed = False
        # Cheap and first: a channel to a server that is down would take seconds to fail.
        reason = await dial.probe_port(self._servers.current)
        if reason is not None:
            log.warning("not connected", server=self._servers.current, reason=reason)
            return False
        try:
            if self._credentials.is_expired:
                await self._renew_expired()
            await self._connection()
        except ServerGone:
            return self._welcomed
        except grpc.aio.AioRpcError as error:
            await self._explain(error)
            return self._welcomed
        except Exception as error:  # a fault of ours: attempts go on, and the next connection may succeed
            for cause in flatten_group(error):
                log.error("connection failed", server=self._servers.current, exc_info=cause)
            return self._welcomed
        return False

    async def _renew_expired(self) -> None:
        """Renew an expired certificate: the only call that the server accepts with it."""
        async with dial.channel(self._servers.current, self._credentials.identity) as channel:
            stub = pb_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
            try:
                await self._credentials.renew(stub)
                self._log_renewed()
            except IdentityRefused as refusal:
                # This machine's clock may be wrong: the server knows whether the held one is good.
                log.warning("certificate not renewed", reason=str(refusal))

    def _lease_seconds(self) -> float | None:
        return None if (lease_ms := self._attempts.lease_ms) is None else lease_ms / 1000

    async def _connection(self) -> None:
        async with dial.channel(self._servers.current, self._credentials.identity) as channel:
            stub = pb_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
            stream: Stream = stub.Connect()
            session = AgentSession(stream, lambda: self._servers.is_one)
            # No await between these: the inventory, the termination and the sequence number belong together.
            hello = self._hello()
            session.departure = self._termination.termination
            self._attempts.sent_in(session.sequence.next_n, hello.inventory)
            failures: list[BaseException] = []
            try:
                await session.send(pb.FromNode(hello=wire.hello_to_wire(hello)))
                async with asyncio.TaskGroup() as halves:
                    halves.create_task(self._receive_loop(stub, session, halves))
                    halves.create_task(self._report_loop(session))
                    halves.create_task(self._renew(stub, session))
                    halves.create_task(self._send_tails(stub, session))
            except* ConnectionOver as group:
                for reason in filter(None, map(str, flatten_group(group))):
                    log.warning("disconnected", reason=reason)
                failures += [error for error in flatten_group(group) if isinstance(error, ServerGone)]
            except* grpc.aio.AioRpcError as errors:
                failures += flatten_group(errors)
            finally:
                # The timeout of a result counts only while a server is connected.
                self._results.connected.clear()
            for error in failures:
                raise error

    def _hello(self) -> Hello:
        return Hello(
            machine_id=self._host.machine_id,
            boot_id=self._host.boot_id,
            version=self._settings.version,
            capacity=self._host.capacity,
            labels={
                **self._host.labels,
                **self._runtime.labels,
                **self._settings.labels,
                **containers.labels_of(self._engine, self._settings.container),
            },
            epoch_seen=self._epoch_seen(),
            inventory=self._attempts.inventory(),
            drain=None if (departure := self._termination.termination) is None else as_message(departure),
            session=now_ms(),
        )

    async def _receive_loop(
        self, stub: pb_grpc.AgentStub, session: AgentSession, tasks: asyncio.TaskGroup
    ) -> None:
        async for message in session.stream:
            _check(message)
            # Any message counts as a sign of life, before it is applied, which may take long.
            session.receive()
            # Fencing comes before the content: orders of a deposed leader must not be carried out.
            self._see_epoch(message.epoch)
            match message.WhichOneof("word"):
                case "welcome":
                    self._servers.mark_reached()
                    self._backoff.reset(message.welcome.heartbeat_ms / 1000)
                    self._backoff.spread_seconds = message.welcome.spread_ms / 1000
                    session.beat_seconds = min(message.welcome.heartbeat_ms, BEAT_MS) / 1000
                    session.start()
                    self._load.reset(message.welcome.report_interval_ms / 1000)
                    self._welcomed = True
                    self._results.connected.set()
                    log.info("connected", name=message.welcome.name, epoch=message.epoch)
                case "orders":
                    # Before the leases are renewed: an echo that
                    # waited in a buffer proves nothing about now.
                    session.refuse_stale(message.orders.echo)
                    # Leases before orders: applying orders may take longer than what is left of a lease.
                    await self._renew_leases(message.orders, session)
                    await self._apply_orders(message.orders, may_start=not session.ends)
                case "alive":
                    session.sequence.on_echo(message.alive.echo)
                case "resubmit":
                    await self._resubmit(session, [JobId(job) for job in message.resubmit.jobs])
                case "servers" | "trust" | "pace":
                    await self._learn(message)
                case _:
                    self._output_streams.handle(stub, message, tasks)
        raise ConnectionOver if session.ends else ServerGone

    async def _learn(self, message: pb.ToNode) -> None:
        """Apply what changed in the cluster: its servers, its authorities, or the report interval."""
        match message.WhichOneof("word"):
            case "servers":
                self._servers.update(list(message.servers.addresses))
            case "trust":
                await self._credentials.trust(message.trust.ca, message.trust.spread_ms / 1000)
            case _:
                self._load.report_seconds = message.pace.report_interval_ms / 1000
                self._backoff.spread_seconds = message.pace.spread_ms / 1000

    async def _resubmit(self, session: AgentSession, jobs: list[JobId]) -> None:
        """Send the sealed specs of running jobs to a server that was started without its records."""
        log.info("jobs offered for adoption", jobs=len(jobs))
        for job in jobs:
            resubmission = pb.Resubmission(job=job, record=self._attempts.record_of(job))
            await session.send(pb.FromNode(resubmission=resubmission))

    async def _renew_leases(self, orders: pb.Orders, session: AgentSession) -> None:
        """Extend run leases, counted from when the message that the server echoes was sent.

        Not from now: the server counts from its receipt, which is later than the sending. So the node's lease
        always ends before the server considers it expired.
        """
        sent_ms = session.sequence.acknowledged_ms
        if orders.renews and sent_ms is not None and self._attempts.lease_ms is not None:
            await self._runtime.renew(sent_ms * 1_000_000)

    async def _apply_orders(self, orders: pb.Orders, *, may_start: bool) -> None:
        """Carry out orders. Starts go first, because tasks wait for them; acknowledgements can wait."""
        for order in orders.jobs:
            await self._apply_order(order, may_start=may_start)
        # After new orders, which may have stopped a start that this watermark would release.
        for released in self._attempts.released_by(orders.stored):
            await self._forward_to_keeper(released)
        durable = self._attempts.on_durable(orders.stored)
        if durable:
            # Only what is durable on the server: the keeper forgets these results for good.
            await self._runtime.acknowledge(durable)
        if orders.forget:
            forgotten = [JobId(job) for job in orders.forget]
            await self._runtime.forget(forgotten)
            self._attempts.forget(forgotten)
            self._results.forget(forgotten)

    async def _apply_order(self, order: pb.JobOrders, *, may_start: bool) -> None:
        """Carry out the orders of one job. If that fails, they are refused; other jobs are not affected."""
        try:
            bounds.check(order)
            received = wire.orders_from_wire(order)
            # It is offered again on the next connection; started now, its accept might not become durable.
            if not may_start:
                received = received._replace(start=[])
            self._results.remember_endpoints([received])
            # Facts are read here, because planning does no I/O.
            facts = self._facts(self._attempts.remember_templates([received]))
            accepted = self._attempts.apply_orders([received], facts)
        except Exception as error:
            starts = list(zip(order.start_index, order.start_attempt, strict=False))
            self._refuse(JobId(order.job), starts, error)
            return
        for forwarded in accepted:
            await self._forward_to_keeper(forwarded)

    def _refuse(self, job: JobId, starts: list[tuple[int, int]], error: Exception) -> None:
        """Refuse starts whose order failed here. An invalid order fails them: no node could run them."""
        log.error("order failed", job=job[:60], exc_info=error)
        reason = f"its order failed on this node: {type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
        code = CANNOT_EXECUTE if isinstance(error, BadField) else None
        self._attempts.refuse(job, starts, reason, code)

    async def _forward_to_keeper(self, orders: JobOrders) -> None:
        if orders.start or orders.work is not None:
            try:
                await self._runtime.start(orders.job, orders.work, orders.start)
            except Exception as error:  # the runtime has not taken them
                self._refuse(orders.job, [(start.index, start.attempt) for start in orders.start], error)
        for mode, names in stops(orders).items():
            await self._runtime.stop(names, mode)
        if orders.signals:
            await self._runtime.signal(orders.job, orders.signals)

    def _facts(self, directories: list[str]) -> HostFacts:
        missing = frozenset(path for path in directories if probe.is_missing(path))
        labels = self._runtime.labels
        return HostFacts(
            missing_directories=missing,
            leaving=self._leaving or self._termination.termination is not None,
            outdated_keeper=self._runtime.is_outdated,
            has_runtime=self._engine is not None,
            has_sandbox="sandbox" in labels,
            holds_leases="leases" in labels,
        )

    async def _report_loop(self, session: AgentSession) -> None:
        try:
            async with asyncio.timeout(SUSPECT_MS / 1000):
                await session.welcomed.wait()
        except TimeoutError:
            raise ConnectionOver from None  # the server hangs; another one may answer
        while True:
            await self._attempts.wait(self._beat_seconds(session))
            await self._send_departure(session)
            if self._attempts.keeper_lost:
                if self._leaving:
                    await self._send_goodbye(session)
                # The next hello carries the inventory of the new keeper.
                raise ConnectionOver
            # No await until `sent_in`: a report that is drained must be booked under this message's number.
            reports = self._attempts.drain_changes()
            load = self._load.pop_report()
            wire_load = None if load is None else wire.load_to_wire(load)
            if reports:
                # Booked before the send: the acknowledgement can arrive while the write is awaited.
                self._attempts.sent_in(session.sequence.next_n, reports)
                report = pb.Report(jobs=wire.reports_to_wire(reports), load=wire_load)
                await session.send(pb.FromNode(report=report))
            else:
                await session.send(pb.FromNode(beat=pb.Beat(load=wire_load)))

    def _beat_seconds(self, session: AgentSession) -> float:
        """The heartbeat interval: at least four heartbeats within the shortest run lease."""
        session.holds_leases = (lease_ms := self._attempts.lease_ms) is not None
        return min(session.beat_seconds, (lease_ms or session.beat_seconds * 4000) / 4000)

    async def _send_departure(self, session: AgentSession) -> None:
        """Announce a drain or a restart. Ordering: before any report, so that what ends because of it is not
        placed here again."""
        if session.departure != self._termination.termination:
            session.departure = self._termination.termination
            await self._send_drain(session)
        if self._away:
            await self._send_away(session)

    async def _send_drain(self, session: AgentSession) -> None:
        message = wire.drain_to_wire(as_message(session.departure))
        await session.send(pb.FromNode(drain=message))

    async def _send_goodbye(self, session: AgentSession) -> None:
        reports = self._attempts.drain_changes()
        if reports:
            await session.send(pb.FromNode(report=pb.Report(jobs=wire.reports_to_wire(reports))))
        await session.send(pb.FromNode(leave=pb.Leave(reason=_STOPPED)))
        self._deregistered = True
        await asyncio.sleep(_LEAVE_SECONDS)  # cancelled when the server closes the stream

    async def _send_away(self, session: AgentSession) -> None:
        """Send the last results, then the announcement: results must not wait for the next agent."""
        if reports := self._attempts.drain_changes():
            await session.send(pb.FromNode(report=pb.Report(jobs=wire.reports_to_wire(reports))))
        await session.send(pb.FromNode(away=pb.Away(reason=_AWAY)))
        await asyncio.sleep(_LEAVE_SECONDS)  # cancelled when the server closes the stream

    async def _send_tails(self, stub: pb_grpc.AgentStub, session: AgentSession) -> None:
        await session.welcomed.wait()
        self._tails.reset()
        # Best effort: the node keeps the whole output. A broken connection is noticed by the stream itself.
        with contextlib.suppress(grpc.aio.AioRpcError):
            while True:
                pieces = await self._tails.next()
                if pieces:
                    await stub.KeepTails(wire.tails_to_wire(pieces))

    async def _renew(self, stub: pb_grpc.AgentStub, session: AgentSession) -> None:
        """Renew the certificate in time, then reconnect with it; attempts are not affected.

        The open connection stays tied to the old certificate, which the server refuses once it has expired.
        Ordering: before the reconnect nothing more is started and every accept is made durable, because the
        server would place a task again whose accept it has not stored.
        """
        await self._credentials.keep_current(stub)
        self._log_renewed()
        # Before the wait: a start after this would need an accept that is not waited for.
        session.ends = True
        with contextlib.suppress(TimeoutError):  # then the server does not answer: reconnect anyway
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self._attempts.all_accepts_durable()
        await session.send(pb.FromNode(again=pb.Again()))
        # The server ends the stream when it has received this. An end from our side would look like a fault.
        await asyncio.sleep(_AGAIN_SECONDS)
        raise ConnectionOver

    def _log_renewed(self) -> None:
        end = self._credentials.identity.period.end
        log.info("certificate renewed", until=f"{end:%Y-%m-%d %H:%M:%S} UTC")

    async def _explain(self, error: grpc.aio.AioRpcError) -> None:
        details = dial.reason_of(error)
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            raise NotAllowed(details, hint="get a line with `rota node token` and start with --join")
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            # By the server's clock it has expired: renew it
            # first, even if this machine's clock says otherwise.
            self._credentials.refused = True
        if error.code() is grpc.StatusCode.UNAVAILABLE and not self._welcomed:
            details = await dial.diagnose(self._servers.current, self._credentials.identity)
            details = self._credentials.lapsed or details
        log.warning("not connected", server=self._servers.current, code=error.code().name, reason=details)

    # ---- epochs

    def _epoch_seen(self) -> int:
        try:
            return min(max(0, int(self._epoch_file.read_text())), EPOCH_MAX)
        except (FileNotFoundError, ValueError):
            return 0

    def _see_epoch(self, epoch: int) -> None:
        seen = self._epoch_seen() if self._attempts.epoch is None else self._attempts.epoch
        if epoch < seen:
            log.error("orders of a lower epoch refused", epoch=epoch, seen=seen)
            raise ConnectionOver
        # Fencing: stored before any order of this epoch is carried out. After a crash the agent still refuses
        # leaders of lower epochs.
        if epoch > seen:
            self._store_epoch(epoch)
        self._attempts.epoch = epoch

    def _store_epoch(self, epoch: int) -> None:
        partial = self._epoch_file.with_suffix(".new")
        try:
            partial.write_text(f"{epoch}\n")
            # rename is atomic: a crash leaves the old epoch or the new one, never a torn number.
            partial.replace(self._epoch_file)
        except OSError as error:  # a full disk: it is remembered until this agent ends
            log.warning("epoch not stored", error=error.strerror)
