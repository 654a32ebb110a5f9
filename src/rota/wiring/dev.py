"""A whole cluster on this machine: the server in this process, each agent in one of its own. [I/O]"""

import asyncio
import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rota.config import DevOptions, ServerOptions, default_data_dir, server_config
from rota.engine.mirror import Mirror
from rota.engine.run import Engine
from rota.identity.tokens import JoinLine
from rota.model.amounts import show_size
from rota.model.cluster import DEFAULT
from rota.store.lock import AlreadyRunning, DirectoryLock
from rota.wiring.agent import AGENT_LOCK
from rota.wiring.process import Interruption, guarded, log_to, tell
from rota.wiring.server import Server, running

_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.02  # a node is open a moment after the commit that greets it


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
        log_to(diary.fileno())

    async def main() -> None:
        interruption = Interruption(signal.SIGINT, signal.SIGTERM)
        async with running(config) as server, _agents(server, directory, options.nodes):
            _tell_ready(server, time.monotonic() - began)
            await interruption.wait()
            tell("stopping: running tasks end now, unfinished jobs go on at the next start")

    return guarded(main())


@contextlib.asynccontextmanager
async def _agents(server: Server, directory: Path, count: int) -> AsyncIterator[None]:
    names = [platform.node()] if count == 1 else [f"node-{number}" for number in range(1, count + 1)]
    processes = [await _start(server, directory / name, name) for name in names]
    try:
        await _until_open(server.engine, count)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        for process in processes:
            await _end(process)


def _prepare(server: Server, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / "server").write_text(server.addresses.agent + "\n")  # the port may be another one this time


async def _start(server: Server, directory: Path, name: str) -> asyncio.subprocess.Process:
    _prepare(server, directory)
    await _relieve(directory)
    host, _, port = server.addresses.http.rpartition(":")
    secret = server.vault.make_join_token(time.time_ns() // 1_000_000, labels={}, cluster=DEFAULT)
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


async def _relieve(directory: Path) -> None:
    """An agent left over from a dev cluster that was killed makes room for a new one; its work goes on."""
    async with asyncio.timeout(_STOP_SECONDS):
        while True:
            try:
                DirectoryLock(directory, AGENT_LOCK).release()
                return
            except AlreadyRunning as running_already:
                if _is_agent_of(directory, running_already.pid):
                    os.kill(running_already.pid, signal.SIGTERM)
                await asyncio.sleep(_LOOK_SECONDS)


def _is_agent_of(directory: Path, pid: int) -> bool:
    """A lock's number may be a moment old: only a process that was started for this directory is ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return False
    return b"agent" in words and str(directory).encode() in words


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()


async def _until_open(engine: Engine, count: int) -> None:
    async with asyncio.timeout(_STOP_SECONDS):
        while await engine.read(_open_nodes) < count:
            await asyncio.sleep(_LOOK_SECONDS)


def _open_nodes(mirror: Mirror) -> int:
    return sum(entry.open for entry in mirror.nodes.values())


def _tell_ready(server: Server, seconds: float) -> None:
    tell(f"  Rota dev cluster ready in {seconds:.1f} s")
    tell(f"    api   {server.url}")
    for entry in sorted(server.engine.mirror.nodes.values(), key=lambda entry: entry.spec.name):
        if entry.open and entry.status is not None:
            capacity = entry.status.capacity
            cpu, gpu = capacity.get("cpu", 0) / 1000, capacity.get("gpu", 0)
            memory = show_size(capacity.get("memory", 0))
            tell(f"    node  {entry.spec.name}   {cpu:g} cpu   {memory}   gpu {gpu}   ready")
    tell("  next: rota run -- echo hello · rota ls · rota node ls        Ctrl-C ends the cluster")
