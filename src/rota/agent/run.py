"""One machine's part: attach to the keeper, call the control plane, obey, report. [I/O]"""

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
CANNOT_EXECUTE = 126  # as a shell says it
_ATTACH_SECONDS = 30.0
_AWAY_SECONDS = 2.0  # a service manager waits for this
_TOLD_TO = "it was told to leave"
_STOPPED = f"{_TOLD_TO}, and has stopped its work"
_AWAY = "its agent was stopped; its work goes on under the keeper"


@dataclass(frozen=True)
class AgentSettings:
    directory: Path
    addresses: tuple[str, ...]  # of servers, one of which leads
    name: str
    version: str
    labels: dict[str, str]
    declared: dict[str, int]  # capacity that was said rather than found
    keeping: dict[str, int]  # how much output, and for how long
    output_bytes: int = OUTPUT_BYTES  # of a job, sent at once
    container: str | None = None  # which runtime; none is said: whichever there is
    mounts: tuple[str, ...] = ()  # what containers may see of this machine
    container_root: bool = False
    notice: str | None = None  # a command that tells when this machine is taken away


def _check(word: pb.ToNode) -> None:
    """Hang up on a server that says what cannot be; its orders are looked at one by one, when obeyed."""
    try:
        bounds.check(word)
    except BadField as nonsense:
        raise ConnectionOver(f"the server says what cannot be: {nonsense} ({nonsense.hint})") from None


class Agent:
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
        self._away = False  # the agent ends and its work does not
        self._ended = asyncio.Event()  # the keeper has stopped all work, and is gone
        self._termination = TerminationWatcher(settings.notice, settings.name)
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Until it has left."""
        if await self._termination.poll():
            self._watch_keeper()
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(self._keep())
            calling = tasks.create_task(self._call())
            gauging = tasks.create_task(self._load.watch(self._attempts.nudge))
            looking = tasks.create_task(self._termination.watch(self._watch_keeper))
            reporting = tasks.create_task(self._results.run())
            await self._left.wait()
            keeping.cancel()
            calling.cancel()
            gauging.cancel()
            looking.cancel()
            reporting.cancel()

    async def drain(self, seconds: float) -> None:
        """Take nothing new, say so, and let end what runs here, for so long."""
        self._leaving = True
        self._termination.leave_within(seconds, _TOLD_TO)
        self._attempts.nudge()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._attempts.idle.wait()

    async def leave(self) -> None:
        """Stop the work, and return when all of it has ended and the keeper with it.

        The server hears first that the node leaves, so that it places nothing here that was stopped here. It
        is told of every end before the goodbye: until then the node counts as connected, however long the
        grace of a task is, and no task is placed elsewhere while it still runs here.
        """
        self._leaving = True
        self._termination.leave_within(0.0, _TOLD_TO)
        self._attempts.nudge()
        if not self._ended.is_set():  # a service manager may have told the keeper to end, too
            await self._attached()
            await self._runtime.quit()
            await self._ended.wait()
        self._attempts.changed.set()

    async def _attached(self) -> None:
        """Wait for the keeper of an agent that is told to go while it still starts."""
        async with asyncio.timeout(_ATTACH_SECONDS):
            await self._attempts.attached.wait()

    async def announce_restart(self) -> None:
        """Tell the server that the work goes on without an agent, if that can be told at once."""
        self._away = True
        self._attempts.nudge()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AWAY_SECONDS):
                await self._left.wait()

    @property
    def is_terminating(self) -> bool:
        """Its machine will be: whoever ends the agent ends it for good."""
        return self._termination.is_terminating

    def _watch_keeper(self) -> None:
        log.warning(self._termination.last_change)
        self._attempts.nudge()

    # ---- the keeper's side

    async def _keep(self) -> None:
        said = self._settings
        self._engine = await containers.find(said.container, said.mounts, root=said.container_root)
        room = NodeResources(said.name, self._host.capacity, self._host.gpus, said.keeping, self._engine)
        while True:
            claims = await self._runtime.attach(room)
            self._results.attach(self._runtime.result_endpoints)
            held = self._results.defer_ends(claims)
            self._attempts.replace_all(held, self._runtime.leases, self._runtime.records)
            self._tails.touch(one.job for one in claims)
            await self._drain_outdated()
            async for claims in self._runtime.events():
                self._attempts.record(self._results.defer_ends(claims))
                self._tails.touch(one.job for one in claims)
                await self._drain_outdated()
            if self._leaving:
                await self._results.finish()
            self._attempts.on_keeper_lost()
            if self._leaving:
                self._ended.set()
                return
            log.error("the keeper is gone; a new one is started")

    async def _drain_outdated(self) -> None:
        """End a keeper of another release once nothing runs under it; the next attach starts a new one."""
        if self._runtime.is_outdated and self._attempts.is_idle():
            log.info("keeper of another release is replaced")
            await self._runtime.quit()

    # ---- the control plane's side

    async def _call(self) -> None:
        while not self._left.is_set():
            if not (self._leaving and self._attempts.keeper_lost):
                await self._attempts.attached.wait()
            elif self._deregistered or not self._welcomed:  # told, or nobody is there to be
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
        """One connection to its end; whether a server that had welcomed us is gone."""
        self._welcomed = False
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
        except Exception as error:  # unforeseen: the work goes on, and the next connection may do better
            for cause in flatten_group(error):
                log.error("a connection failed", server=self._servers.current, exc_info=cause)
            return self._welcomed
        return False

    async def _renew_expired(self) -> None:
        """The server lets a node with an expired certificate renew it, and do nothing else."""
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
            conversation = AgentSession(stream, lambda: self._servers.is_one)
            hello = self._hello()
            conversation.departure = self._termination.termination
            self._attempts.sent_in(conversation.sequence.next_n, hello.inventory)
            broken: list[BaseException] = []
            try:
                await conversation.send(pb.FromNode(hello=wire.hello_to_wire(hello)))
                async with asyncio.TaskGroup() as halves:
                    halves.create_task(self._receive_loop(stub, conversation, halves))
                    halves.create_task(self._report_loop(conversation))
                    halves.create_task(self._renew(stub, conversation))
                    halves.create_task(self._send_tails(stub, conversation))
            except* ConnectionOver as group:
                for reason in filter(None, map(str, flatten_group(group))):
                    log.warning("hung up", reason=reason)
                broken += [one for one in flatten_group(group) if isinstance(one, ServerGone)]
            except* grpc.aio.AioRpcError as errors:
                broken += flatten_group(errors)
            finally:
                self._results.connected.clear()
            for error in broken:
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
        self, stub: pb_grpc.AgentStub, conversation: AgentSession, tasks: asyncio.TaskGroup
    ) -> None:
        async for word in conversation.stream:
            _check(word)
            conversation.receive()
            self._see_epoch(word.epoch)
            match word.WhichOneof("word"):
                case "welcome":
                    self._servers.mark_reached()
                    self._backoff.reset(word.welcome.heartbeat_ms / 1000)
                    self._backoff.spread_seconds = word.welcome.spread_ms / 1000
                    conversation.beat_seconds = min(word.welcome.heartbeat_ms, BEAT_MS) / 1000
                    conversation.start()
                    self._load.reset(word.welcome.report_interval_ms / 1000)
                    self._welcomed = True
                    self._results.connected.set()
                    log.info("connected", name=word.welcome.name, epoch=word.epoch)
                case "orders":
                    conversation.refuse_stale(word.orders.echo)
                    await self._renew_leases(word.orders, conversation)
                    await self._apply_orders(word.orders, may_start=not conversation.ends)
                case "alive":
                    conversation.sequence.on_echo(word.alive.echo)
                case "resubmit":
                    await self._resubmit(conversation, [JobId(job) for job in word.resubmit.jobs])
                case "servers" | "trust" | "pace":
                    await self._learn(word)
                case _:
                    self._output_streams.handle(stub, word, tasks)
        raise ConnectionOver if conversation.ends else ServerGone

    async def _learn(self, word: pb.ToNode) -> None:
        """What has changed in the control plane: its servers, its authorities, how often it wants reports."""
        match word.WhichOneof("word"):
            case "servers":
                self._servers.update(list(word.servers.addresses))
            case "trust":
                await self._credentials.trust(word.trust.ca, word.trust.spread_ms / 1000)
            case _:
                self._load.report_seconds = word.pace.report_interval_ms / 1000
                self._backoff.spread_seconds = word.pace.spread_ms / 1000

    async def _resubmit(self, conversation: AgentSession, jobs: list[JobId]) -> None:
        """Bring back jobs of the inventory to a server that was started without its records."""
        log.info("jobs are brought back to the server", jobs=len(jobs))
        for job in jobs:
            brought = pb.Resubmission(job=job, record=self._attempts.record_of(job))
            await conversation.send(pb.FromNode(resubmission=brought))

    async def _renew_leases(self, orders: pb.Orders, conversation: AgentSession) -> None:
        """Run leases count from when the word that the server echoes was said."""
        heard_ms = conversation.sequence.acknowledged_ms
        if orders.renews and heard_ms is not None and self._attempts.lease_ms is not None:
            await self._runtime.renew(heard_ms * 1_000_000)

    async def _apply_orders(self, orders: pb.Orders, *, may_start: bool) -> None:
        """What is to start comes first: nobody waits for the rest."""
        for order in orders.jobs:
            await self._apply_order(order, may_start=may_start)
        for one in self._attempts.released_by(orders.stored):
            await self._forward_to_keeper(one)
        stored = self._attempts.on_durable(orders.stored)
        if stored:
            await self._runtime.acknowledge(stored)
        if orders.forget:
            forgotten = [JobId(job) for job in orders.forget]
            await self._runtime.forget(forgotten)
            self._attempts.forget(forgotten)
            self._results.forget(forgotten)

    async def _apply_order(self, order: pb.JobOrders, *, may_start: bool) -> None:
        """An order that cannot be obeyed is refused for its job; those of other jobs are obeyed."""
        try:
            bounds.check(order)
            jobs = [wire.orders_from_wire(order)]
            if not may_start:  # it is offered again on the next connection
                jobs = [one._replace(start=[]) for one in jobs]
            self._results.remember_endpoints(jobs)
            obeyed = self._attempts.apply_orders(jobs, self._facts(self._attempts.remember_templates(jobs)))
        except Exception as error:
            starts = list(zip(order.start_index, order.start_attempt, strict=False))
            self._refuse(JobId(order.job), starts, error)
            return
        for one in obeyed:
            await self._forward_to_keeper(one)

    def _refuse(self, job: JobId, starts: list[tuple[int, int]], error: Exception) -> None:
        """Another node may be able to; but of what cannot be none is, and the job is told so."""
        log.error("an order cannot be obeyed", job=job[:60], exc_info=error)
        reason = f"this node cannot obey its order: {type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
        code = CANNOT_EXECUTE if isinstance(error, BadField) else None
        self._attempts.refuse(job, starts, reason, code)

    async def _forward_to_keeper(self, one: JobOrders) -> None:
        if one.start or one.work is not None:
            try:
                await self._runtime.start(one.job, one.work, one.start)
            except Exception as error:  # the runtime has not taken them
                self._refuse(one.job, [(start.index, start.attempt) for start in one.start], error)
        for how, names in stops(one).items():
            await self._runtime.stop(names, how)
        if one.signals:
            await self._runtime.signal(one.job, one.signals)

    def _facts(self, directories: list[str]) -> HostFacts:
        missing = frozenset(path for path in directories if probe.is_missing(path))
        labels = self._runtime.labels
        can = (self._engine is not None, "sandbox" in labels, "leases" in labels)
        return HostFacts(
            missing,
            self._leaving or self._termination.termination is not None,
            self._runtime.is_outdated,
            *can,
        )

    async def _report_loop(self, conversation: AgentSession) -> None:
        try:
            async with asyncio.timeout(SUSPECT_MS / 1000):
                await conversation.welcomed.wait()
        except TimeoutError:
            raise ConnectionOver from None  # it hangs; another call may find one that does not
        while True:
            await self._attempts.wait(self._beat_seconds(conversation))
            await self._send_departure(conversation)
            if self._attempts.keeper_lost:
                if self._leaving:
                    await self._send_goodbye(conversation)
                raise ConnectionOver  # with a new keeper everything is told anew
            claims = self._attempts.drain_changes()
            load = self._load.pop_report()
            wire_load = None if load is None else wire.load_to_wire(load)
            if claims:
                self._attempts.sent_in(conversation.sequence.next_n, claims)
                report = pb.Report(jobs=wire.reports_to_wire(claims), load=wire_load)
                await conversation.send(pb.FromNode(report=report))
            else:
                await conversation.send(pb.FromNode(beat=pb.Beat(load=wire_load)))

    def _beat_seconds(self, conversation: AgentSession) -> float:
        """At least four times in the shortest lease."""
        conversation.holds_leases = (lease_ms := self._attempts.lease_ms) is not None
        return min(conversation.beat_seconds, (lease_ms or conversation.beat_seconds * 4000) / 4000)

    async def _send_departure(self, conversation: AgentSession) -> None:
        """Before any report: what this node stops because it leaves is not to be placed here again."""
        if conversation.departure != self._termination.termination:
            conversation.departure = self._termination.termination
            await self._send_drain(conversation)
        if self._away:
            await self._send_away(conversation)

    async def _send_drain(self, conversation: AgentSession) -> None:
        word = wire.drain_to_wire(as_message(conversation.departure))
        await conversation.send(pb.FromNode(drain=word))

    async def _send_goodbye(self, conversation: AgentSession) -> None:
        claims = self._attempts.drain_changes()
        if claims:
            await conversation.send(pb.FromNode(report=pb.Report(jobs=wire.reports_to_wire(claims))))
        await conversation.send(pb.FromNode(leave=pb.Leave(reason=_STOPPED)))
        self._deregistered = True
        await asyncio.sleep(_LEAVE_SECONDS)  # cut short when the other half hears the server hang up

    async def _send_away(self, conversation: AgentSession) -> None:
        """Results first: what has ended by now is not to wait for the next agent."""
        if claims := self._attempts.drain_changes():
            await conversation.send(pb.FromNode(report=pb.Report(jobs=wire.reports_to_wire(claims))))
        await conversation.send(pb.FromNode(away=pb.Away(reason=_AWAY)))
        await asyncio.sleep(_LEAVE_SECONDS)  # cut short when the other half hears the server hang up

    async def _send_tails(self, stub: pb_grpc.AgentStub, conversation: AgentSession) -> None:
        await conversation.welcomed.wait()
        self._tails.reset()
        # Best effort: the node keeps the whole output. A broken connection is noticed by the stream itself.
        with contextlib.suppress(grpc.aio.AioRpcError):
            while True:
                pieces = await self._tails.next()
                if pieces:
                    await stub.KeepTails(wire.tails_to_wire(pieces))

    async def _renew(self, stub: pb_grpc.AgentStub, conversation: AgentSession) -> None:
        """After a renewal the node calls again, with the new certificate: the work does not notice.

        The open connection stays tied to the old one, which the server stops accepting when it expires.
        First nothing more is started, and what was started is told: the server would place it again.
        """
        await self._credentials.keep_current(stub)
        self._log_renewed()
        conversation.ends = True
        with contextlib.suppress(TimeoutError):  # a server that does not answer is left as well
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self._attempts.all_accepts_durable()
        await conversation.send(pb.FromNode(again=pb.Again()))
        # Until the server has heard it, and ends the stream: else it would take the end for a fault.
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
            log.error("orders of an older epoch are refused", epoch=epoch, seen=seen)
            raise ConnectionOver
        if epoch > seen:
            self._store_epoch(epoch)
        self._attempts.epoch = epoch

    def _store_epoch(self, epoch: int) -> None:
        partial = self._epoch_file.with_suffix(".new")
        try:
            partial.write_text(f"{epoch}\n")
            partial.replace(self._epoch_file)
        except OSError as error:  # a full disk: it is known for as long as this agent lives
            log.warning("the epoch cannot be stored", error=error.strerror)
