"""All components of a control plane in one process, from the lock to the open listeners. [I/O]"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc

from rota.apiserver.api import Addresses, BeforeToken, no_precondition
from rota.apiserver.ca_dependents import CaDependents, find_ca_dependents
from rota.apiserver.grpc.service import ControllerService, TokenInterceptor
from rota.apiserver.http import make_app
from rota.apiserver.views import certificates
from rota.clusters import assign, cluster_groups, lifecycle, scale
from rota.config import ServerConfig, ServerOptions, machines_dir, renewal_window, server_config
from rota.config.etcd import endpoints, plain_text_endpoint
from rota.controllers import batch, cron, dependencies, expire, system
from rota.controllers.rollout import rollback, rollout
from rota.engine.reconciler import Reconciler
from rota.engine.run import Engine
from rota.engine.time_zones import zone
from rota.identity.audit import AUDIT_FILE, AuditLog
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.model.adoption import jobs_before
from rota.model.errors import LostLeadership, StoreFull, Unavailable
from rota.model.job import Counters
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View
from rota.providers.local import LocalProvider
from rota.scheduler import plan as scheduler
from rota.scheduler import queue_length, unplaceable
from rota.scheduler.cluster_fit import FitCalculator
from rota.scheduler.plan import Scheduler
from rota.scheduler.policy import deadline, drain
from rota.scheduler.round import SchedulerSettings
from rota.scheduler.scale_estimate import estimate_scale
from rota.store.lock import DirectoryLock
from rota.store.memory import MemoryStore
from rota.store.tails import TailStore
from rota.watcher import brake, leave_notices, liveness, revocations, stuck_attempts
from rota.watcher.agent_service import AgentService
from rota.watcher.leadership import LeadershipContext
from rota.watcher.refused_calls import RefusedCalls
from rota.watcher.report_interval import IntervalBounds
from rota.watcher.watcher_service import AttachedWatchers, WatcherService
from rota.wire import service_names
from rota.wire.generated import agent_pb2_grpc, controller_pb2_grpc, watcher_pb2_grpc
from rota.wiring import scheduler_settings
from rota.wiring.api_context import ApiSources, ServerIdentity, make_api
from rota.wiring.client_context import Context
from rota.wiring.console import print_line
from rota.wiring.dev_users import DevUsers
from rota.wiring.gateway import admission, gateway_line, open_gateway
from rota.wiring.leadership.elected import check_etcd_cluster
from rota.wiring.leadership.leadership import Leadership, leadership_for
from rota.wiring.listeners import ports as listeners
from rota.wiring.listeners.tls import ServerTls
from rota.wiring.process import Interruption, first_of, guarded, log_to, raise_descriptor_limit, shielded
from rota.wiring.provider_setup import LocalNodes, join_lines, procure
from rota.wiring.result_endpoints import result_endpoints
from rota.wiring.rotation import keep_rotation
from rota.wiring.sealed_specs import SealedSpecStore
from rota.wiring.server_record import ServerRecord

_CLOSE_SECONDS = 0.5
_CAMPAIGN_AGAIN_SECONDS = 0.5
_ANNOUNCE_AGAIN_SECONDS = 5.0


def run_server(options: ServerOptions) -> int:
    config = server_config(options)
    log_to(sys.stderr.fileno())
    raise_descriptor_limit()

    async def main() -> None:
        interruption = Interruption(signal.SIGINT, signal.SIGTERM)
        if endpoints(config.store):
            await check_etcd_cluster(config)
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(_run_elections(config))
                await interruption.wait()
                serving.cancel()
        else:
            async with running(config) as server:
                _print_ready(server, config)
                await interruption.wait()

    return guarded(main())


async def _run_elections(config: ServerConfig) -> None:
    """Where others may lead, one that does not stands by: everything is read again when it does."""
    while True:
        try:
            async with running(config) as server:
                _print_ready(server, config)
                await asyncio.Event().wait()
        except* (LostLeadership, Unavailable, StoreFull) as reasons:
            print_line(f"Rota server does not lead: {first_of(reasons)}")
        await asyncio.sleep(_CAMPAIGN_AGAIN_SECONDS)


def _print_ready(server: "Server", config: ServerConfig) -> None:
    print_line(f"Rota server ready: api {server.url}, agents {server.addresses.agent}")
    if config.worker_gateway.enabled:
        print_line(gateway_line(server.addresses))
    if (beyond := plain_text_endpoint(config.etcd, config.store)) is not None:
        print_line(
            f"  WARNING: etcd at {beyond} is spoken to in plain text: keys and tokens can be read on the way"
        )
    if server.engine.store.name != MemoryStore.name:
        return
    print_line(
        "  store = memory: no job is on disk; a restart loses those that wait, and adopts what nodes run"
    )
    nodes = len(server.engine.mirror.nodes)
    if nodes:
        print_line(
            f"  jobs that waited before it was stopped are gone; {nodes} nodes may bring back what they run"
        )


@dataclass(frozen=True)
class Server:
    """A control plane that is up."""

    engine: Engine
    vault: Vault
    authority: CertificateAuthority
    addresses: Addresses
    url: str
    local: LocalProvider


@contextlib.asynccontextmanager
async def running(config: ServerConfig, users: DevUsers | None = None) -> AsyncIterator[Server]:
    """`users`: who the jobs of a dev cluster run as, which may change before a token is made."""
    directory = Path(str(config.data_dir))
    async with contextlib.AsyncExitStack() as closing:
        closing.callback(DirectoryLock(directory).release)
        post = await closing.enter_async_context(leadership_for(config, directory))
        authority = CertificateAuthority.open(
            directory / "ca", datetime.now(UTC), renewal_window(config.certificates)
        )
        settings = scheduler_settings.settings(config.placement)
        placing = Scheduler(settings)
        reconcilers = _reconcilers(config, settings, placing, post.ttl_ms)
        engine = Engine(post.store, reconcilers, frozenset(config.placement.granted_labels))
        await post.lead(engine, authority, settings)
        async with _serve(config, engine, authority, post, settings, placing=placing, users=users) as server:
            yield server


@contextlib.asynccontextmanager
async def _serve(
    config: ServerConfig,
    engine: Engine,
    authority: CertificateAuthority,
    post: Leadership,
    settings: SchedulerSettings,
    *,
    placing: Scheduler,
    users: DevUsers | None,
) -> AsyncIterator[Server]:
    directory = Path(str(config.data_dir))
    vault = post.open_vault()
    served = listeners.server_tls(config, authority, datetime.now(UTC))
    http_socket = listeners.bind_http(config.http_server.addr)
    audit, tails = AuditLog(directory / AUDIT_FILE), TailStore(directory / "tails")
    watchers = AttachedWatchers()
    agent_server, controller_server = _grpc_servers(config, authority, vault, audit)
    addresses = Addresses(
        http=listeners.with_port(config.http_server.addr, http_socket.getsockname()[1]),
        agent=listeners.open_agent_port(agent_server, config, served),
        controller=listeners.open_controller_port(controller_server, config, served),
        names=tuple(listeners.host_names(config)),
    )
    specs = SealedSpecStore(authority.seals()) if config.store == MemoryStore.name else None
    leading = _leading(post, vault, partial(_agent_ports, watchers, addresses, post), specs, audit)
    reports = result_endpoints(authority, config.http_server, addresses.http, post.servers)
    lost_ms, pace = _lost_ms(config), _report_interval(config)
    agents = AgentService(engine, authority, lost_ms, pace, tails, leading=leading, reports=reports)
    gateway = open_gateway(config, engine, agents, vault, controller_server, agent_server)
    sources = ApiSources(agents, agents, tails, post.servers, gateway, watchers.addresses)
    limits, before = config.limits, _before_token(users)
    own = ServerIdentity(directory, authority, vault, addresses, served.expiries, audit, limits, before)
    api = make_api(engine, own, settings, sources, known=placing.queue_snapshot)
    servers = partial(_server_ports, addresses, post)
    attached = WatcherService(engine, agents, authority, watchers, leading=leading, servers=servers)
    _register_services(agents, attached, agent_server, ControllerService(api), controller_server)
    web = listeners.web_server(make_app(api), served, config.http_server)
    url, local = f"{web.scheme}://{addresses.http}", _local(directory, users)
    context = Context(vault, directory, url, authority if web.scheme == "https" else None)
    await asyncio.to_thread(context.write, _urls(url, post))
    async with asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(engine.run())
        await _seed(engine, config.store)  # before anybody can submit or join
        await agent_server.start()
        await controller_server.start()
        dialling = [] if gateway is None else [tasks.create_task(gateway.run())]
        serving = tasks.create_task(web.serve(sockets=[http_socket]))
        keeping = tasks.create_task(_spread_servers(post, agents, context))
        renewing = tasks.create_task(served.keep_current(partial(_ending, engine, authority, served)))
        rotating = tasks.create_task(_rotate(engine, authority, agents, context, post))
        announcing = tasks.create_task(_announce(engine, addresses))
        procuring = tasks.create_task(procure(engine, local, join_lines(vault, authority, addresses.http)))
        try:
            yield Server(engine, vault, authority, addresses, url, local)
        finally:
            driving.cancel()  # first: whoever waits for it is told so while the doors are open
            await shielded(_close_web(web, serving, agent_server, controller_server))
            for one in (http_socket, tails, audit):
                one.close()
            _end_all(announcing, *dialling, procuring, keeping, renewing, rotating)


def _leading(
    post: Leadership,
    vault: Vault,
    servers: Callable[[], list[str]],
    specs: SealedSpecStore | None,
    audit: AuditLog,
) -> LeadershipContext:
    return LeadershipContext(
        *(post.ttl_ms, post.lease_valid, servers, vault.has_watcher, specs),
        note_signer=vault.note_watcher_ca,
        refused=RefusedCalls(audit),
    )


def _before_token(users: DevUsers | None) -> BeforeToken:
    return no_precondition if users is None else users.admit_others


def _local(directory: Path, users: DevUsers | None) -> LocalProvider:
    """The provider of machines on this one; those of a dev cluster follow when its users change."""
    if users is None:
        return LocalProvider(machines_dir(directory), LocalNodes())
    local = LocalProvider(machines_dir(directory), LocalNodes(), lambda: users.flags)
    users.follow(local.restart_agents)
    return local


class _GrpcServers(NamedTuple):
    agents: grpc.aio.Server
    controllers: grpc.aio.Server


def _grpc_servers(
    config: ServerConfig, authority: CertificateAuthority, vault: Vault, audit: AuditLog
) -> _GrpcServers:
    token_first = TokenInterceptor(vault, audit, admission(config, vault))
    own, refused = (service_names.AGENT, service_names.WATCHER), RefusedCalls(audit)
    others = listeners.ForwardedCalls(*own, is_retired=authority.is_retired, refused=refused)
    return _GrpcServers(
        listeners.grpc_server(listeners.agent_limits(), others, token_first),
        listeners.grpc_server(listeners.controller_limits(config.grpc_server), token_first),
    )


def _register_services(
    agents: AgentService,
    watchers: WatcherService,
    agent_server: grpc.aio.Server,
    controllers: ControllerService,
    server: grpc.aio.Server,
) -> None:
    """Who answers at which of the two doors; at that of agents also calls which standbys forward."""
    agent_pb2_grpc.add_AgentServicer_to_server(agents, agent_server)  # type: ignore[no-untyped-call]  # generated
    watcher_pb2_grpc.add_WatcherServicer_to_server(watchers, agent_server)  # type: ignore[no-untyped-call]  # generated
    for one in (server, agent_server):
        controller_pb2_grpc.add_ControllerServicer_to_server(controllers, one)  # type: ignore[no-untyped-call]  # generated


def _agent_ports(watchers: AttachedWatchers, addresses: Addresses, post: Leadership) -> list[str]:
    """Where agents may call; nothing where they have no choice."""
    found = watchers.addresses()
    servers = [card.agent for card in post.servers()]
    return [*found, *(servers or ([addresses.agent] if found else []))]


def _server_ports(addresses: Addresses, post: Leadership) -> list[str]:
    return list(dict.fromkeys((addresses.agent, *(card.agent for card in post.servers()))))


def _ending(engine: Engine, authority: CertificateAuthority, served: ServerTls) -> dict[str, str]:
    now = datetime.now(UTC)
    return certificates.expiry_warnings(engine.mirror, served.expiries(), authority.renewal_window, now)


async def _rotate(
    engine: Engine, authority: CertificateAuthority, agents: AgentService, context: Context, post: Leadership
) -> None:
    def depending() -> CaDependents:
        watchers = context.vault.list_watchers()
        return find_ca_dependents(engine.mirror, watchers, authority, datetime.now(UTC))

    async def changed() -> None:
        agents.end_retired()
        with contextlib.suppress(
            Unavailable, OSError
        ):  # a full disk: the file is written with the next change
            await asyncio.to_thread(context.write, _urls(context.url, post))

    await keep_rotation(authority, partial(post.follow_authority, authority), depending, changed)


def _end_all(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()


async def _close_web(
    web: listeners.WebServer, serving: asyncio.Task[None], *servers: grpc.aio.Server
) -> None:
    web.should_exit = web.force_exit = True
    for server in servers:
        await server.stop(_CLOSE_SECONDS)
    await asyncio.wait([serving])  # it may have been cut short, where deciding has failed
    await web.close_all()


def _urls(own: str, post: Leadership) -> list[str]:
    return list(dict.fromkeys((own, *(card.url for card in post.servers()))))


async def _spread_servers(post: Leadership, agents: AgentService, context: Context) -> None:
    """Tell connected nodes and the command line of this user of every server, whenever that changes.

    Nodes are told first: one that knows a single server finds no other when that one is killed.
    """
    known: list[ServerRecord] | None = None
    while True:
        if (servers := post.servers()) != known:
            known = servers
            await agents.send_servers()
            with contextlib.suppress(Unavailable):
                await asyncio.to_thread(context.write, _urls(context.url, post))
        await post.servers_refreshed()


def _reconcilers(
    config: ServerConfig, settings: SchedulerSettings, placing: Scheduler, ttl_ms: int
) -> list[Reconciler]:
    return [
        assign.reconciler(FitCalculator().cluster_fit),
        lifecycle.RECONCILER,
        cluster_groups.reconciler(),
        scale.reconciler(partial(estimate_scale, settings=settings)),
        batch.RECONCILER,
        rollout.RECONCILER,
        rollback.RECONCILER,
        expire.reconciler(_retention(config)),
        dependencies.RECONCILER,
        system.RECONCILER,
        cron.reconciler(zone),
        scheduler.reconciler(scheduler=placing),
        queue_length.reconciler(),
        unplaceable.reconciler(settings.plugins),
        deadline.RECONCILER,
        drain.RECONCILER,
        liveness.reconciler(_lost_ms(config), ttl_ms),
        brake.reconciler(),
        stuck_attempts.reconciler(),
        leave_notices.RECONCILER,
        revocations.RECONCILER,
    ]


def _retention(config: ServerConfig) -> expire.JobRetention:
    said = config.retention
    return expire.JobRetention(round(said.age_seconds * 1000), said.jobs_count)


def _lost_ms(config: ServerConfig) -> int:
    return round(config.lost_seconds * 1000)


def _report_interval(config: ServerConfig) -> IntervalBounds:
    said = config.report_seconds
    return IntervalBounds(round(said.least * 1000), round(said.most * 1000))


async def _announce(engine: Engine, addresses: Addresses) -> None:
    """Tell subscribers that this server leads; a store that has no room or does not answer is waited for.

    A commit that fails makes the engine read everything again, so none is tried while space is short.
    """
    why = f"the server at {addresses.http} leads, with epoch {engine.epoch}"
    event = EventRecord("leader.elected", why, counts={"epoch": engine.epoch})
    while True:
        with contextlib.suppress(Unavailable, StoreFull):
            if not engine.mirror.disk_low:
                await engine.ask("engine", lambda *_: Plan(events=(event,), why=why))
                return
        await asyncio.sleep(_ANNOUNCE_AGAIN_SECONDS)


async def _seed(engine: Engine, store: str) -> None:
    """Without records, numbers go on from where no earlier epoch can have come."""
    first = jobs_before(engine.epoch)

    def seed(view: View, now: Instant) -> Plan:
        del view, now
        return Plan((Counters(jobs=first, nodes=first),))

    if store == MemoryStore.name:
        await engine.ask("apiserver", seed)
