"""All components of a control plane in one process, from the lock to the open doors. [I/O]"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rota import __version__
from rota.apiserver.api import Addresses, Api
from rota.apiserver.fanout import Shared
from rota.apiserver.logs import Logs
from rota.apiserver.rpc import ControllerDoor
from rota.apiserver.watch import Changes
from rota.clusters import assign, lifecycle, scale
from rota.clusters.run import Procurement
from rota.config import ServerConfig, ServerOptions, server_config
from rota.controllers import after, batch, cron, expire, rollout, system
from rota.engine.reconciler import Reconciler
from rota.engine.run import Engine
from rota.engine.zones import zone
from rota.identity.audit import AuditLog
from rota.identity.authority import Authority
from rota.identity.token_files import read_token, write_token
from rota.identity.tokens import Role
from rota.identity.vault import Vault
from rota.model.job import Counters
from rota.model.plan import Instant, Plan
from rota.model.view import View
from rota.providers.command import Command as CommandProvider
from rota.providers.local import Local
from rota.providers.protocol import Provider
from rota.scheduler import deadline, drain
from rota.scheduler import plan as scheduler
from rota.scheduler.explain import why
from rota.scheduler.growth import foresee_growth
from rota.scheduler.round import Settings
from rota.scheduler.survey import Surveyor
from rota.scheduler.what_if import foresee
from rota.scheduler.what_moves import displace
from rota.store.lock import DirectoryLock
from rota.store.memory import MemoryStore
from rota.store.protocol import Store
from rota.store.sqlite import SqliteStore
from rota.store.tails import Tails
from rota.watcher import ages, brake, liveness
from rota.watcher.pace import Bounds
from rota.watcher.run import AgentDoor
from rota.wire.generated import agent_pb2_grpc, controller_pb2_grpc
from rota.wiring import doors, placement
from rota.wiring.machines import Nodes, join_lines
from rota.wiring.process import Interruption, guarded, log_to, tell

_HANG_UP_SECONDS = 0.5
_MEMORY_NUMBERS_PER_EPOCH = 1_000_000  # no number is given out again after a restart that remembers none


def run_server(options: ServerOptions) -> int:
    config = server_config(options)
    log_to(sys.stderr.fileno())

    async def main() -> None:
        interruption = Interruption(signal.SIGINT, signal.SIGTERM)
        async with running(config) as server:
            tell(f"Rota server ready: api {server.url}, agents {server.addresses.agent}")
            await interruption.wait()

    return guarded(main())


@dataclass(frozen=True)
class Server:
    """A control plane that is up."""

    engine: Engine
    vault: Vault
    authority: Authority
    addresses: Addresses
    url: str
    local: Local


@contextlib.asynccontextmanager
async def running(config: ServerConfig) -> AsyncIterator[Server]:
    directory = Path(str(config.data_dir))
    async with contextlib.AsyncExitStack() as closing:
        closing.callback(DirectoryLock(directory).release)
        store = _store(config.store, directory)
        closing.push_async_callback(store.close)
        authority = Authority.open(directory / "ca", datetime.now(UTC))
        vault = Vault.open(directory / "vault")
        settings = placement.settings(config.placement)
        engine = Engine(store, _reconcilers(config, settings))
        await engine.lead()
        async with _doors(config, engine, authority, vault, settings) as server:
            yield server


@contextlib.asynccontextmanager
async def _doors(
    config: ServerConfig, engine: Engine, authority: Authority, vault: Vault, settings: Settings
) -> AsyncIterator[Server]:
    directory = Path(str(config.data_dir))
    keys = authority.server_identity(doors.host_names(config), datetime.now(UTC))
    http_socket = doors.bind_http(config.http_server.addr)
    agent_server, controller_server = doors.grpc_server(), doors.grpc_server()
    addresses = Addresses(
        http=doors.with_port(config.http_server.addr, http_socket.getsockname()[1]),
        agent=doors.open_agent_door(agent_server, config, keys),
        controller=doors.open_controller_door(controller_server, config, keys),
    )
    tails = Tails(directory / "tails")
    agents = AgentDoor(engine, authority, _lost_ms(config), _pace(config), tails)
    changes = Changes(engine)
    api = Api(
        engine=engine,
        changes=changes,
        logs=Logs(engine, changes, Shared(agents), tails),
        outputs=agents,
        vault=vault,
        authority=authority,
        audit=AuditLog(directory / "audit.log"),
        explain=partial(why, plugins=settings.plugins, backfill=settings.backfill),
        foresee=partial(foresee, settings=settings),
        displace=partial(displace, settings=settings),
        addresses=addresses,
        version=__version__,
    )
    agent_pb2_grpc.add_AgentServicer_to_server(agents, agent_server)  # type: ignore[no-untyped-call]  # generated
    controller_pb2_grpc.add_ControllerServicer_to_server(  # type: ignore[no-untyped-call]  # generated
        ControllerDoor(api), controller_server
    )
    local = Local(directory / "machines", Nodes())
    providers: dict[str, Provider] = {"local": local, "command": CommandProvider()}
    procurement = Procurement(engine, providers, join_lines(vault, authority, addresses.http))
    web = doors.web_server(api, directory, config.http_server, keys)
    url = f"{web.scheme}://{addresses.http}"
    _write_context(vault, directory, url, authority.ca_pem if web.scheme == "https" else None)
    await agent_server.start()
    await controller_server.start()
    async with asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(engine.run())
        serving = tasks.create_task(web.serve(sockets=[http_socket]))
        await _seed(engine, config.store)
        procuring = tasks.create_task(procurement.run())
        try:
            yield Server(engine, vault, authority, addresses, url, local)
        finally:
            web.should_exit = web.force_exit = True
            await agent_server.stop(_HANG_UP_SECONDS)
            await controller_server.stop(_HANG_UP_SECONDS)
            tails.close()
            procuring.cancel()
            await serving
            driving.cancel()


def _reconcilers(config: ServerConfig, settings: Settings) -> list[Reconciler]:
    return [
        assign.reconciler(Surveyor().look),
        lifecycle.RECONCILER,
        scale.reconciler(partial(foresee_growth, settings=settings)),
        batch.RECONCILER,
        rollout.RECONCILER,
        expire.reconciler(_retention(config)),
        after.RECONCILER,
        system.RECONCILER,
        cron.reconciler(zone),
        scheduler.reconciler(settings),
        deadline.RECONCILER,
        drain.RECONCILER,
        liveness.reconciler(_lost_ms(config)),
        brake.reconciler(),
        ages.reconciler(),
    ]


def _retention(config: ServerConfig) -> expire.Retention:
    said = config.retention
    return expire.Retention(round(said.age_seconds * 1000), said.jobs_count)


def _lost_ms(config: ServerConfig) -> int:
    return round(config.lost_seconds * 1000)


def _pace(config: ServerConfig) -> Bounds:
    said = config.report_seconds
    return Bounds(round(said.least * 1000), round(said.most * 1000))


def _store(name: str, directory: Path) -> Store:
    return MemoryStore(directory) if name == "memory" else SqliteStore(directory)


async def _seed(engine: Engine, store: str) -> None:
    """Without records, numbers go on from where no earlier epoch can have come."""
    first = engine.epoch * _MEMORY_NUMBERS_PER_EPOCH

    def seed(view: View, now: Instant) -> Plan:
        del view, now
        return Plan((Counters(jobs=first, nodes=first),))

    if store == MemoryStore.name:
        await engine.ask("apiserver", seed)


def _write_context(vault: Vault, directory: Path, url: str, ca_pem: bytes | None) -> None:
    """The token, and the file by which the command line of this user finds this server."""
    token_file = directory / "token"
    now_ms = time.time_ns() // 1_000_000
    try:
        known = vault.who(read_token(token_file), now_ms) is not None
    except (OSError, ValueError):
        known = False
    if not known:
        write_token(token_file, vault.make_api_token("local", Role.ADMIN, ("*",), now_ms))
    lines = [f'addr = "{url}"', f'token_file = "{token_file}"']
    if ca_pem is not None:
        (directory / "ca.crt").write_bytes(ca_pem)
        lines.append(f'ca = "{directory / "ca.crt"}"')
    write_token(_context_file(), "\n".join(lines))


def _context_file() -> Path:
    said = os.environ.get("ROTA_CONFIG")
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "rota"
    return (Path(said).parent if said else home) / "contexts" / "local.toml"
