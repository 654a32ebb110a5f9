"""`rota server`: all components of the control plane in one process, from the lock to the open ports. [I/O]

Order of the start: the lock of the data directory, leadership (a standby waits here), the engine, which reads
the store, the listeners, then the tasks that run beside them. Order of the end: the engine first, so that
requests which wait for a commit are answered with an error while the connections are still open.
"""

import asyncio
import contextlib
import signal
import socket
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
from rota.config import ServerConfig, ServerOptions, machines_dir, renewal_window, server_config
from rota.config.etcd import endpoints, plain_text_endpoint
from rota.engine.run import Engine
from rota.identity.audit import AUDIT_FILE, AuditLog
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.model.adoption import jobs_before
from rota.model.errors import LostLeadership, StoreFull, Unavailable
from rota.model.job import Counters
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View
from rota.providers.local import LocalProvider
from rota.scheduler.plan import Scheduler
from rota.scheduler.round import SchedulerSettings
from rota.store.lock import DirectoryLock
from rota.store.memory import MemoryStore
from rota.store.tails import TailStore
from rota.watcher.agent_service import AgentService
from rota.watcher.leadership import LeadershipContext
from rota.watcher.refused_calls import RefusedCalls
from rota.watcher.relay.watcher_service import AttachedWatchers, WatcherService
from rota.watcher.report_interval import IntervalBounds
from rota.wire import service_names
from rota.wire.generated import agent_pb2_grpc, controller_pb2_grpc, watcher_pb2_grpc
from rota.wiring import scheduler_settings
from rota.wiring.api_context import ApiSources, ServerIdentity, make_api
from rota.wiring.ca_rotation import keep_rotation
from rota.wiring.client_context import ClientContext
from rota.wiring.console import print_line
from rota.wiring.dev_users import DevUsers
from rota.wiring.gateway import admission, gateway_line, open_gateway
from rota.wiring.leadership.elected import check_etcd_cluster
from rota.wiring.leadership.leadership import Leadership, leadership_for
from rota.wiring.listeners import ports as listeners
from rota.wiring.listeners.tls import ServerTls
from rota.wiring.process import Interruption, first_of, guarded, log_to, raise_descriptor_limit, shielded
from rota.wiring.provider_setup import LocalNodes, join_lines, procure
from rota.wiring.reconcilers import lost_ms, make_reconcilers
from rota.wiring.result_endpoints import result_endpoints
from rota.wiring.sealed_specs import SealedSpecStore
from rota.wiring.server_record import ServerRecord

_CLOSE_SECONDS = 0.5
_CAMPAIGN_RETRY_SECONDS = 0.5
_ANNOUNCE_RETRY_SECONDS = 5.0


def run_server(options: ServerOptions) -> int:
    config = server_config(options)
    log_to(sys.stderr.fileno())
    raise_descriptor_limit()

    async def main() -> None:
        interruption = Interruption(signal.SIGINT, signal.SIGTERM)
        if endpoints(config.store):
            # Before the first election: a directory with the
            # CA of another cluster must not campaign at all.
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
    """Campaign, lead until deposed, repeat. Each term starts from the store, with no earlier state."""
    while True:
        # A new TaskGroup, engine and set of ports for each term:
        # no state of an earlier term can leak into this one.
        try:
            async with running(config) as server:
                _print_ready(server, config)
                await asyncio.Event().wait()
        # Other errors are bugs or need the operator: they end the process.
        except* (LostLeadership, Unavailable, StoreFull) as reasons:
            print_line(f"Rota server does not lead: {first_of(reasons)}")
        # Outside the handler: also after a clean end the next
        # campaign waits, so that a failing etcd is not hammered.
        await asyncio.sleep(_CAMPAIGN_RETRY_SECONDS)


def _print_ready(server: "RunningServer", config: ServerConfig) -> None:
    print_line(f"Rota server ready: api {server.url}, agents {server.addresses.agent}")
    if config.worker_gateway.enabled:
        print_line(gateway_line(server.addresses))
    if (beyond := plain_text_endpoint(config.etcd, config.store)) is not None:
        print_line(f"  WARNING: plain text to etcd at {beyond}: keys and tokens can be read on the way")
    if server.engine.store.name != MemoryStore.name:
        return
    print_line("  store = memory: no job is on disk; a restart loses pending jobs, and adopts what nodes run")
    nodes = len(server.engine.mirror.nodes)
    if nodes:
        print_line(
            f"  jobs that were pending when it stopped are lost; {nodes} nodes may bring back what they run"
        )


@dataclass(frozen=True)
class RunningServer:
    """A running control plane."""

    engine: Engine
    vault: Vault
    authority: CertificateAuthority
    addresses: Addresses
    url: str
    local: LocalProvider


@contextlib.asynccontextmanager
async def running(config: ServerConfig, users: DevUsers | None = None) -> AsyncIterator[RunningServer]:
    """A server that leads, until the block is left. `users`: whom the jobs of a dev cluster run as."""
    directory = Path(str(config.data_dir))
    async with contextlib.AsyncExitStack() as closing:
        # First of all: two servers on one directory would overwrite each other's CA and tokens.
        closing.callback(DirectoryLock(directory).release)
        # After the lock and before anything else is opened: with etcd this also takes over the shared CA.
        leadership = await closing.enter_async_context(leadership_for(config, directory))
        authority = CertificateAuthority.open(
            directory / "ca", datetime.now(UTC), renewal_window(config.certificates)
        )
        settings = scheduler_settings.settings(config.placement)
        placing = Scheduler(settings)
        reconcilers = make_reconcilers(config, settings, placing, leadership.ttl_ms)
        engine = Engine(leadership.store, reconcilers, frozenset(config.placement.granted_labels))
        # Returns only as leader; the standby's ports are closed by then, so the leader's can be bound.
        await leadership.lead(engine, authority, settings)
        async with _serve(
            config, engine, authority, leadership, settings, placing=placing, users=users
        ) as server:
            yield server


@contextlib.asynccontextmanager
async def _serve(
    config: ServerConfig,
    engine: Engine,
    authority: CertificateAuthority,
    leadership: Leadership,
    settings: SchedulerSettings,
    *,
    placing: Scheduler,
    users: DevUsers | None,
) -> AsyncIterator[RunningServer]:
    directory = Path(str(config.data_dir))
    vault = leadership.open_vault()
    served = listeners.server_tls(config, authority, datetime.now(UTC))
    http_socket = listeners.bind_http(config.http_server.addr)
    audit, tails = AuditLog(directory / AUDIT_FILE), TailStore(directory / "tails")
    watchers = AttachedWatchers()
    grpc_servers = _grpc_servers(config, authority, vault, audit)
    addresses = _open_ports(config, served, http_socket, grpc_servers)
    agent_ports = partial(_agent_ports, watchers, addresses, leadership)
    specs = SealedSpecStore(authority.seals()) if config.store == MemoryStore.name else None
    context = _leadership_context(leadership, vault, agent_ports, specs, audit)
    endpoints = result_endpoints(authority, config.http_server, addresses.http, leadership.servers)
    timing = (lost_ms(config), _report_bounds(config))
    agents = AgentService(engine, authority, *timing, tails, leadership=context, endpoints=endpoints)
    gateway = open_gateway(config, engine, agents.sessions, vault, *grpc_servers)
    sources = ApiSources(agents.logs, agents.logs, tails, leadership.servers, gateway, watchers.addresses)
    limits, before = config.limits, _before_token(users)
    own = ServerIdentity(directory, authority, vault, addresses, served.expiries, audit, limits, before)
    api = make_api(engine, own, settings, sources, known=placing.queue_snapshot)
    servers = partial(_server_ports, addresses, leadership)
    attached = WatcherService(engine, agents, authority, watchers, leadership=context, servers=servers)
    _register_services(grpc_servers, agents, attached, ControllerService(api))
    web = listeners.web_server(make_app(api), served, config.http_server)
    url, local = f"{web.scheme}://{addresses.http}", _local(directory, users)
    client_context = await _write_client_context(vault, directory, url, authority, leadership)
    async with asyncio.TaskGroup() as tasks:
        # Ordering: the loop runs before any port accepts, since every request is a command to it.
        driving = tasks.create_task(engine.run())
        await _seed(engine, config.store)  # before a client can submit or a node can join
        for grpc_server in grpc_servers:
            await grpc_server.start()
        serving = tasks.create_task(web.serve(sockets=[http_socket]))
        background = [
            *([] if gateway is None else [gateway.run()]),
            _publish_servers(leadership, agents, client_context),
            served.keep_current(partial(_expiry_warnings, engine, authority, served)),
            _rotate(engine, authority, agents, client_context, leadership),
            _announce(engine, addresses),
            procure(engine, local, join_lines(vault, authority, addresses.http)),
        ]
        background_tasks = [tasks.create_task(work) for work in background]
        try:
            yield RunningServer(engine, vault, authority, addresses, url, local)
        finally:
            driving.cancel()  # first: requests that wait for a commit fail while their connections are open
            await shielded(_close_web(web, serving, *grpc_servers))
            for resource in (http_socket, tails, audit):
                resource.close()
            for task in background_tasks:
                task.cancel()


def _leadership_context(
    leadership: Leadership,
    vault: Vault,
    servers: Callable[[], list[str]],
    specs: SealedSpecStore | None,
    audit: AuditLog,
) -> LeadershipContext:
    return LeadershipContext(
        *(leadership.ttl_ms, leadership.lease_valid, servers, vault.has_watcher, specs),
        note_signer=vault.note_watcher_ca,
        refused=RefusedCalls(audit),
    )


def _before_token(users: DevUsers | None) -> BeforeToken:
    return no_precondition if users is None else users.admit_others


def _local(directory: Path, users: DevUsers | None) -> LocalProvider:
    """The provider of machines on this host; in a dev cluster their agents restart when its users change."""
    if users is None:
        return LocalProvider(machines_dir(directory), LocalNodes())
    local = LocalProvider(machines_dir(directory), LocalNodes(), lambda: users.flags)
    users.follow(local.restart_agents)
    return local


class _GrpcServers(NamedTuple):
    """The gRPC servers of the two ports."""

    agents: grpc.aio.Server
    controllers: grpc.aio.Server


def _grpc_servers(
    config: ServerConfig, authority: CertificateAuthority, vault: Vault, audit: AuditLog
) -> _GrpcServers:
    check_token = TokenInterceptor(vault, audit, admission(config, vault))
    own, refused = (service_names.AGENT, service_names.WATCHER), RefusedCalls(audit)
    others = listeners.ForwardedCalls(*own, is_retired=authority.is_retired, refused=refused)
    return _GrpcServers(
        listeners.grpc_server(listeners.agent_limits(), others, check_token),
        listeners.grpc_server(listeners.controller_limits(config.grpc_server), check_token),
    )


def _open_ports(
    config: ServerConfig, served: ServerTls, http_socket: socket.socket, servers: _GrpcServers
) -> Addresses:
    return Addresses(
        http=listeners.with_port(config.http_server.addr, http_socket.getsockname()[1]),
        agent=listeners.open_agent_port(servers.agents, config, served),
        controller=listeners.open_controller_port(servers.controllers, config, served),
        names=tuple(listeners.host_names(config)),
    )


def _register_services(
    servers: _GrpcServers, agents: AgentService, watchers: WatcherService, controllers: ControllerService
) -> None:
    """Register the services at the two ports; the agent port also takes calls that standbys forward."""
    agent_pb2_grpc.add_AgentServicer_to_server(agents, servers.agents)  # type: ignore[no-untyped-call]  # generated
    watcher_pb2_grpc.add_WatcherServicer_to_server(watchers, servers.agents)  # type: ignore[no-untyped-call]  # generated
    for server in servers:
        controller_pb2_grpc.add_ControllerServicer_to_server(controllers, server)  # type: ignore[no-untyped-call]  # generated


def _agent_ports(watchers: AttachedWatchers, addresses: Addresses, leadership: Leadership) -> list[str]:
    """Addresses that agents may connect to; empty if there is only this server."""
    found = watchers.addresses()
    servers = [record.agent for record in leadership.servers()]
    return [*found, *(servers or ([addresses.agent] if found else []))]


def _server_ports(addresses: Addresses, leadership: Leadership) -> list[str]:
    return list(dict.fromkeys((addresses.agent, *(record.agent for record in leadership.servers()))))


def _expiry_warnings(engine: Engine, authority: CertificateAuthority, served: ServerTls) -> dict[str, str]:
    now = datetime.now(UTC)
    return certificates.expiry_warnings(engine.mirror, served.expiries(), authority.renewal_window, now)


async def _rotate(
    engine: Engine,
    authority: CertificateAuthority,
    agents: AgentService,
    client_context: ClientContext,
    leadership: Leadership,
) -> None:
    def dependents() -> CaDependents:
        watchers = client_context.vault.list_watchers()
        return find_ca_dependents(engine.mirror, watchers, authority, datetime.now(UTC))

    async def changed() -> None:
        # TLS checks the CA at the handshake only: sessions that are older than the change have to be ended.
        agents.sessions.end_retired()
        # On a full disk the file is written with the next change.
        with contextlib.suppress(Unavailable, OSError):
            await asyncio.to_thread(client_context.write, _urls(client_context.url, leadership))

    await keep_rotation(authority, partial(leadership.follow_authority, authority), dependents, changed)


async def _close_web(
    web: listeners.WebServer, serving: asyncio.Task[None], *servers: grpc.aio.Server
) -> None:
    # Called shielded: a second cancellation must not leave ports open that the next term has to bind.
    web.should_exit = web.force_exit = True
    for server in servers:
        await server.stop(_CLOSE_SECONDS)
    # Waited for, not awaited for its result: it is cancelled if the engine has failed.
    await asyncio.wait([serving])
    await web.close_all()


async def _write_client_context(
    vault: Vault, directory: Path, url: str, authority: CertificateAuthority, leadership: Leadership
) -> ClientContext:
    trusted = authority if url.startswith("https:") else None
    client_context = ClientContext(vault, directory, url, trusted)
    await asyncio.to_thread(client_context.write, _urls(url, leadership))
    return client_context


def _urls(own: str, leadership: Leadership) -> list[str]:
    return list(dict.fromkeys((own, *(record.url for record in leadership.servers()))))


async def _publish_servers(
    leadership: Leadership, agents: AgentService, client_context: ClientContext
) -> None:
    """Send the list of servers to connected nodes, and write it for this user's command line, at each change.

    Nodes come first: a node that knows one server only finds no other when that one is killed.
    """
    known: list[ServerRecord] | None = None
    while True:
        # Compared by value: only a change is sent, since each one reaches every connected node.
        if (servers := leadership.servers()) != known:
            known = servers
            await agents.sessions.send_servers()
            with contextlib.suppress(Unavailable):
                await asyncio.to_thread(client_context.write, _urls(client_context.url, leadership))
        await leadership.servers_refreshed()


def _report_bounds(config: ServerConfig) -> IntervalBounds:
    seconds = config.report_seconds
    return IntervalBounds(round(seconds.least * 1000), round(seconds.most * 1000))


async def _announce(engine: Engine, addresses: Addresses) -> None:
    """Publish the event that this server leads; retried until the store takes it.

    Not while disk space is low: a failed commit makes the engine reload everything.
    """
    why = f"the server at {addresses.http} leads, with epoch {engine.epoch}"
    event = EventRecord("leader.elected", why, counts={"epoch": engine.epoch})
    while True:
        with contextlib.suppress(Unavailable, StoreFull):
            if not engine.mirror.disk_low:
                await engine.ask("engine", lambda *_: Plan(events=(event,), why=why))
                return
        await asyncio.sleep(_ANNOUNCE_RETRY_SECONDS)


async def _seed(engine: Engine, store: str) -> None:
    """With a store in memory, start job and node numbers above all that earlier epochs can have used."""
    first = jobs_before(engine.epoch)

    def seed(view: View, now: Instant) -> Plan:
        del view, now
        return Plan((Counters(jobs=first, nodes=first),))

    # Records of earlier epochs are gone, and nodes may still run their jobs: no number may be given twice.
    if store == MemoryStore.name:
        await engine.ask("apiserver", seed)
