"""Config -> running processes: the only file that names concrete classes. [I/O]"""

import asyncio
import contextlib
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import structlog
import uvicorn
import uvloop

from rota import __version__
from rota.agent.join import join
from rota.agent.run import Agent, Settings
from rota.apiserver.api import Addresses, Api
from rota.apiserver.http import make_app
from rota.apiserver.logs import Logs
from rota.apiserver.rpc import ControllerDoor
from rota.apiserver.watch import Changes
from rota.clusters import assign
from rota.config import (
    AgentOptions,
    ConfigError,
    DevOptions,
    ServerConfig,
    ServerOptions,
    agent_config,
    default_data_dir,
    is_loopback,
    server_config,
)
from rota.controllers import batch
from rota.engine.reconciler import Reconciler
from rota.engine.run import Engine
from rota.identity.audit import AuditLog
from rota.identity.authority import Authority, KeyPair
from rota.identity.node_identity import load_identity
from rota.identity.token_files import read_token, write_token
from rota.identity.tokens import JoinLine, Role
from rota.identity.vault import Vault
from rota.model.amounts import parse_size
from rota.model.errors import RotaError
from rota.model.job import Counters
from rota.model.plan import Instant, Plan
from rota.model.view import View
from rota.runtimes.process import ProcessRuntime
from rota.scheduler import plan as scheduler
from rota.scheduler.explain import why
from rota.store.lock import AlreadyRunning, DirectoryLock
from rota.store.memory import MemoryStore
from rota.store.protocol import Store
from rota.store.sqlite import SqliteStore
from rota.watcher import liveness
from rota.watcher.run import AgentDoor
from rota.wire.generated import agent_pb2_grpc, controller_pb2_grpc

_GRPC_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a rival
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
]
_MEMORY_JOBS_PER_EPOCH = 1_000_000  # so that a job number is not given out again after a restart without records
_STOP_SECONDS = 30.0


# ---- the three commands


def run_server(options: ServerOptions) -> int:
    config = server_config(options)
    _log_to(sys.stderr.fileno())

    async def main() -> None:
        async with _running(config) as server:
            _tell(f"Rota server ready: api {server.url}, agents {server.addresses.agent}")
            await _interrupted(signal.SIGINT, signal.SIGTERM)

    return _guarded(main())


def run_agent(options: AgentOptions) -> int:
    config = agent_config(options)
    directory = Path(str(config.data_dir))
    _log_to(sys.stderr.fileno())

    async def main() -> None:
        lock = DirectoryLock(directory, "agent.lock")
        settings, identity = _join(config.join, directory, config.name, dict(config.labels))
        settings = replace(
            settings,
            cpu_milli=None if config.cpu is None else round(config.cpu * 1000),
            memory_bytes=None if config.memory is None else parse_size("memory", config.memory),
        )
        agent = Agent(settings, identity, ProcessRuntime(directory))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(agent.run())
            stop = await _either(running, _interrupted(signal.SIGINT, signal.SIGTERM))
            if stop is signal.SIGINT:  # a person ends it: the work ends with it
                async with asyncio.timeout(_STOP_SECONDS):
                    await agent.leave()
                    await running
            running.cancel()  # otherwise it will be started again: the work goes on under its keeper
        lock.release()

    return _guarded(main())


def run_dev(options: DevOptions) -> int:
    began = time.monotonic()
    directory = Path(options.data_dir or default_data_dir("dev")).absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    host = options.listen or "127.0.0.1"
    config = server_config(
        ServerOptions(
            data_dir=str(directory / "server"),
            store=options.store,
            http_addr=f"{host}:{options.http_port}",
            grpc_addr=f"{host}:{options.grpc_port}",
            agent_addr=f"{host}:{options.agent_port}",
        )
    )
    with (directory / "server.log").open("ab") as diary:
        _log_to(diary.fileno())

        async def main() -> None:
            async with _running(config) as server, _agents(server, directory, options.nodes):
                _tell_ready(server, time.monotonic() - began)
                await _interrupted(signal.SIGINT, signal.SIGTERM)
                _tell("stopping: the cluster ends its work; its jobs are kept")

        return _guarded(main())


# ---- a server


@dataclass(frozen=True)
class Server:
    engine: Engine
    vault: Vault
    authority: Authority
    addresses: Addresses
    url: str


@contextlib.asynccontextmanager
async def _running(config: ServerConfig) -> Any:
    """All components of a control plane in this process, from the lock to the open doors."""
    directory = Path(str(config.data_dir))
    lock = DirectoryLock(directory)
    authority = Authority.open(directory / "ca", datetime.now(UTC))
    vault = Vault.open(directory / "vault")
    store = _store(config.store, directory)
    engine = Engine(store, _reconcilers(config))
    await engine.lead()
    http_socket = _bind("http_server.addr", config.http_server.addr)
    keys = authority.server_identity(_hosts(config), datetime.now(UTC))
    agents = AgentDoor(engine, authority)
    agent_server = grpc.aio.server(options=_GRPC_OPTIONS)
    agent_pb2_grpc.add_AgentServicer_to_server(agents, agent_server)  # type: ignore[no-untyped-call]
    agent_addr = _open_door(agent_server, "agent_server.addr", config.agent_server.addr, _mutual_tls(keys))
    changes = Changes(engine)
    controller_server = grpc.aio.server(options=_GRPC_OPTIONS)
    door_keys = None if is_loopback(_host(config.grpc_server.addr)) else keys
    controller_addr = _open_door(
        controller_server, "grpc_server.addr", config.grpc_server.addr, door_keys and _server_tls(door_keys)
    )
    addresses = Addresses(_address_of(http_socket, config.http_server.addr), agent_addr, controller_addr)
    api = Api(
        engine=engine,
        changes=changes,
        logs=Logs(engine, changes, agents),
        vault=vault,
        authority=authority,
        audit=AuditLog(directory / "audit.log"),
        explain=why,
        addresses=addresses,
        version=__version__,
    )
    controllers = ControllerDoor(api)
    controller_pb2_grpc.add_ControllerServicer_to_server(controllers, controller_server)  # type: ignore[no-untyped-call]
    web = _web(api, directory, config, keys)
    url = f"{'http' if web.config.ssl_certfile is None else 'https'}://{addresses.http}"
    _write_context(vault, directory, url, None if web.config.ssl_certfile is None else authority.ca_pem)
    await agent_server.start()
    await controller_server.start()
    async with asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(engine.run())
        serving = tasks.create_task(web.serve(sockets=[http_socket]))
        await _seed_memory_store(engine, config.store)
        try:
            yield Server(engine, vault, authority, addresses, url)
        finally:
            web.should_exit = True
            web.force_exit = True
            await agent_server.stop(0.5)
            await controller_server.stop(0.5)
            await serving
            driving.cancel()
    await store.close()
    lock.release()


def _reconcilers(config: ServerConfig) -> list[Reconciler]:
    return [
        assign.RECONCILER,
        batch.RECONCILER,
        scheduler.reconciler(),
        liveness.reconciler(round(config.lost_seconds * 1000)),
    ]


def _store(name: str, directory: Path) -> Store:
    return MemoryStore(directory) if name == "memory" else SqliteStore(directory)


async def _seed_memory_store(engine: Engine, store: str) -> None:
    if store != "memory":
        return
    first = engine.epoch * _MEMORY_JOBS_PER_EPOCH

    def seed(view: View, now: Instant) -> Plan:
        del view, now
        return Plan((Counters(jobs=first, nodes=first),))

    await engine.ask("apiserver", seed)


class _Web(uvicorn.Server):
    """uvicorn without its own ideas about signals: the process has one place for those."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _web(api: Api, directory: Path, config: ServerConfig, keys: KeyPair) -> _Web:
    door = config.http_server
    files: dict[str, Any] = {}
    if not is_loopback(_host(door.addr)) or door.use_tls:
        files = {"ssl_certfile": door.crt_file, "ssl_keyfile": door.key_file}
        if door.crt_file is None:
            write_token(directory / "http.key", keys.key_pem.decode())
            (directory / "http.crt").write_bytes(keys.cert_pem)
            files = {"ssl_certfile": str(directory / "http.crt"), "ssl_keyfile": str(directory / "http.key")}
    return _Web(
        uvicorn.Config(
            make_app(api),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            **files,
        )
    )


def _write_context(vault: Vault, directory: Path, url: str, ca_pem: bytes | None) -> None:
    """The token and the file by which the command line of this user finds this server."""
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


# ---- doors


def _mutual_tls(keys: KeyPair) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(keys.key_pem, keys.cert_pem)], keys.ca_pem, require_client_auth=True)


def _server_tls(keys: KeyPair) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(keys.key_pem, keys.cert_pem)])


def _open_door(server: grpc.aio.Server, key: str, addr: str, tls: grpc.ServerCredentials | None) -> str:
    try:
        port = server.add_insecure_port(addr) if tls is None else server.add_secure_port(addr, tls)
    except RuntimeError:
        raise _in_use(key, addr) from None
    return f"{addr.rpartition(':')[0]}:{port}"


def _bind(key: str, addr: str) -> socket.socket:
    host, _, port = addr.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, int(port)))
    except OSError as error:
        bound.close()
        raise _in_use(key, addr, error.strerror) from None
    return bound


def _in_use(key: str, addr: str, problem: str | None = None) -> ConfigError:
    return ConfigError(key, f"{addr}: {problem or 'cannot be opened'}", "choose another port, or 0 for a free one")


def _address_of(bound: socket.socket, addr: str) -> str:
    return f"{addr.rpartition(':')[0]}:{bound.getsockname()[1]}"


def _host(addr: str) -> str:
    return addr.rpartition(":")[0].strip("[]")


def _hosts(config: ServerConfig) -> list[str]:
    addrs = (config.http_server.addr, config.grpc_server.addr, config.agent_server.addr)
    return sorted({platform.node(), *(_host(addr) for addr in addrs)} - {"0.0.0.0", "::", ""})


# ---- an agent


def _join(line: str | None, directory: Path, name: str | None, labels: dict[str, str]) -> tuple[Settings, Any]:
    """The identity this directory holds, or one got by the join line."""
    identity = load_identity(directory)
    server_file = directory / "server"
    if identity is None or identity.expires_at < datetime.now(UTC):
        if line is None:
            problem = "this node has not joined yet" if identity is None else "this node's certificate has expired"
            raise ConfigError("join", problem, "get a line with `rota node token` and start with --join")
        joined = join(JoinLine.parse(line), directory, name or platform.node(), labels)
        server_file.write_text(joined.agent_address + "\n")
        identity = joined.identity
    address = server_file.read_text().strip()
    return Settings(directory, address, name or platform.node(), __version__, labels), identity


@contextlib.asynccontextmanager
async def _agents(server: Server, directory: Path, count: int) -> Any:
    """Agents as processes of their own, on this machine."""
    names = [platform.node()] if count == 1 else [f"node-{number}" for number in range(1, count + 1)]
    processes = [await _start_agent(server, directory / name, name) for name in names]
    try:
        await _until_ready(server.engine, count)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        for process in processes:
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()


async def _start_agent(server: Server, directory: Path, name: str) -> asyncio.subprocess.Process:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / "server").write_text(server.addresses.agent + "\n")  # its port may be another one this time
    host, _, port = server.addresses.http.rpartition(":")
    secret = server.vault.make_join_token(time.time_ns() // 1_000_000)
    line = JoinLine(host.strip("[]"), int(port), secret, server.authority.fingerprint).render()
    with (directory / "agent.log").open("ab") as diary:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rota.cli.main", "agent"),
            *("--data-dir", str(directory), "--name", name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=diary,
            stderr=diary,
            start_new_session=True,
            env={**os.environ, "ROTA_JOIN": line},  # not in argv, where everybody can read it
        )


async def _until_ready(engine: Engine, count: int) -> None:
    changed = asyncio.Event()
    engine.listen(lambda _: changed.set())
    async with asyncio.timeout(_STOP_SECONDS):
        while sum(bool(opened) for opened in engine.mirror.room.open) < count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):  # a node is open a moment after the commit that greets it
                    await changed.wait()
            changed.clear()


# ---- the process


def _guarded(main: Coroutine[Any, Any, None]) -> int:
    """Run it; the user's and the world's errors become a line on stderr and an exit code."""
    try:
        uvloop.run(main)
    except BaseExceptionGroup as group:
        return _tell_error(_first(group))
    except (AlreadyRunning, ConfigError, RotaError, ValueError, OSError) as error:
        return _tell_error(error)
    return 0


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _tell_error(error: BaseException) -> int:
    if not isinstance(error, AlreadyRunning | ConfigError | RotaError | ValueError | OSError):
        raise error
    code = "already_running" if isinstance(error, AlreadyRunning) else getattr(error, "code", "failed")
    _tell(f"error: {code}: {error}")
    hint = getattr(error, "hint", None)
    if hint:
        _tell(f"hint: {hint}")
    return 75 if isinstance(error, AlreadyRunning) else int(getattr(error, "exit_code", 1))


async def _interrupted(*signals: signal.Signals) -> signal.Signals:
    """The first of these signals; a second one ends the process as usual."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[signal.Signals] = loop.create_future()

    def take(which: signal.Signals) -> None:
        for one in signals:
            loop.remove_signal_handler(one)
        if not came.done():
            came.set_result(which)

    for one in signals:
        loop.add_signal_handler(one, take, one)
    return await came


async def _either(running: asyncio.Task[None], stop: Awaitable[signal.Signals]) -> signal.Signals | None:
    stopping = asyncio.ensure_future(stop)
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        return stopping.result()
    stopping.cancel()
    running.result()
    return None


def _log_to(descriptor: int) -> None:
    def write(line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(descriptor, line.encode() + b"\n")

    del write
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.WriteLoggerFactory(file=os.fdopen(os.dup(descriptor), "w", buffering=1)),
    )


def _tell_ready(server: Server, seconds: float) -> None:
    _tell(f"  Rota dev cluster ready in {seconds:.1f} s")
    _tell(f"    api   {server.url}")
    for entry in server.engine.mirror.nodes.values():
        if entry.open and entry.status is not None:
            capacity = entry.status.capacity
            memory = capacity.get("memory", 0) / 2**30
            cpu, gpu = capacity.get("cpu", 0) / 1000, capacity.get("gpu", 0)
            _tell(f"    node  {entry.spec.name}   {cpu:g} cpu   {memory:.1f} GiB   gpu {gpu}   ready")
    _tell("  next: rota run -- echo hello · rota ls · rota node ls        Ctrl-C ends the cluster")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


Ready = Callable[[Server], None]
