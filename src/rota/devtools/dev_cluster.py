"""A whole cluster on this machine: the server in this process, each agent in a process of its own. [I/O]"""

import asyncio
import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from rota.config import (
    ChaosOptions,
    ConfigError,
    DevOptions,
    ServerConfig,
    ServerOptions,
    default_data_dir,
    server_config,
)
from rota.devtools import chaos
from rota.devtools.chaos_run import run_chaos
from rota.devtools.dev_node import DevNode
from rota.devtools.relay import relay_to
from rota.engine.run import Engine
from rota.engine.state.mirror import Mirror
from rota.identity import vault
from rota.model.amounts import CPU, show_size
from rota.model.cluster import DEFAULT, ClusterIntent
from rota.model.errors import Unavailable
from rota.model.plan import EventRecord, Plan
from rota.wiring import node_processes
from rota.wiring.console import print_line
from rota.wiring.dev_users import DevUsers
from rota.wiring.process import Interruption, guarded, log_to, open_private
from rota.wiring.server import RunningServer, running

_IDLE_SECONDS = 15.0  # short: a new node is there within a second
_POLL_SECONDS = 0.02  # a node is open shortly after its handshake
_READY_SECONDS = 120.0  # for all nodes; many agents start slowly on a busy machine


def run_dev(options: DevOptions) -> int:
    began = time.monotonic()
    _refuse_unknown_nodes(options)
    directory = Path(options.data_dir or default_data_dir("dev")).absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    config = _config(options, directory)
    with open_private(directory / "server.log") as log:
        log_to(log.fileno())

    async def main() -> None:
        interruption = Interruption(signal.SIGINT, signal.SIGTERM)
        users = DevUsers(directory, Path(str(config.data_dir)) / vault.DIRECTORY, options.listen)
        async with running(config, users) as server, _nodes(server, directory, options, users) as nodes:
            await _resize_default_cluster(server, options)
            _print_ready(server, time.monotonic() - began)
            users.print_reason()
            async with _with_chaos(server, nodes, options.chaos, config.lost_seconds):
                await interruption.wait()
            print_line("stopping: running tasks end now, unfinished jobs continue at the next start")
            await server.local.remove_all()

    return guarded(main())


async def _resize_default_cluster(server: RunningServer, options: DevOptions) -> None:
    """Configure the default cluster for this run; machines of the last run ended with it."""
    intent = ClusterIntent(DEFAULT)
    if options.elastic is not None:
        least, most = options.elastic
        intent = ClusterIntent(
            DEFAULT,
            provider="local",
            capacity={CPU: 1000},
            min_nodes=least,
            max_nodes=most,
            idle_seconds=_IDLE_SECONDS,
        )
        print_line(f"  elastic: {least} to {most} nodes of one core, by demand; see rota cluster why default")
    before = server.engine.mirror.cluster_intents.get(DEFAULT, ClusterIntent(DEFAULT))
    if before != intent and "local" in (before.provider, intent.provider):
        size = (
            f"{intent.min_nodes} to {intent.max_nodes} nodes of one core"
            if intent.max_nodes
            else "its own nodes"
        )
        why = f"rota dev gives cluster {DEFAULT} {size}"
        events = (EventRecord("cluster.wished", why, cluster=DEFAULT),)
        await server.engine.ask("apiserver", lambda *_: Plan((intent,), events=events, why=why))


def _refuse_unknown_nodes(options: DevOptions) -> None:
    names = _names(options.nodes)
    for flag, by_node in (("--label", options.labels), ("--resource", options.resources)):
        for node in by_node:
            if node and node not in names:
                raise ConfigError(flag, f"there is no node {node!r}", f"its nodes are {', '.join(names)}")


def _config(options: DevOptions, directory: Path) -> ServerConfig:
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
    if options.chaos is None or "ROTA_LOST_SECONDS" in os.environ:
        return config
    return replace(config, lost_seconds=max(1.0, options.chaos.pace * chaos.LOST_SECONDS))


@contextlib.asynccontextmanager
async def _nodes(
    server: RunningServer, directory: Path, options: DevOptions, users: DevUsers
) -> AsyncIterator[list[DevNode]]:
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for name in _names(options.nodes):
            relay = None
            if options.chaos is not None:
                relay = await stack.enter_async_context(relay_to(server.addresses.agent))
            nodes.append(DevNode(server, directory / name, users, relay, _flags(options, name)))
            users.follow(nodes[-1].restart_agent)
        if options.chaos is not None:
            await stack.enter_async_context(_guarded(nodes))
        try:
            for node in nodes:
                await node.start()
            await _until_open(server.engine, nodes)
            yield nodes
        finally:
            # All nodes leave concurrently, then each is awaited.
            for node in nodes:
                node.ask_to_leave()
            for node in nodes:
                await node.has_left()


def _names(count: int) -> list[str]:
    return [platform.node()] if count == 1 else [f"node-{number}" for number in range(1, count + 1)]


def _flags(options: DevOptions, name: str) -> list[str]:
    """Labels and resources of a node, as flags of its agent."""
    declared = (("--label", options.labels), ("--resource", options.resources))
    return [
        argument
        for flag, by_node in declared
        for key, value in {**by_node.get("", {}), **by_node.get(name, {})}.items()
        for argument in (flag, f"{key}={value}")
    ]


@contextlib.asynccontextmanager
async def _guarded(nodes: list[DevNode]) -> AsyncIterator[None]:
    """Run a guard process: if this one is killed, it ends the nodes, also frozen ones."""
    guard = await asyncio.create_subprocess_exec(
        # Started by its file: as a module it would import all of the wiring.
        *(sys.executable, "-P", node_processes.__file__, *(str(node.directory) for node in nodes)),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        assert guard.stdin is not None, "it is a pipe"
        guard.stdin.close()
        await guard.wait()


@contextlib.asynccontextmanager
async def _with_chaos(
    server: RunningServer, nodes: list[DevNode], options: ChaosOptions | None, lost_seconds: float
) -> AsyncIterator[None]:
    if options is None:
        yield
        return
    silence = chaos.show_seconds(lost_seconds)
    print_line(
        f"  chaos: nodes are killed, frozen and cut off at random; one is lost after {silence} of silence"
    )
    print_line(f"  to repeat: --chaos-seed {options.seed}")
    async with asyncio.TaskGroup() as tasks:
        chaos_task = tasks.create_task(run_chaos(server.engine, nodes, options))
        yield
        # Before the nodes leave: a frozen node could not be asked to.
        chaos_task.cancel()


async def _until_open(engine: Engine, nodes: list[DevNode]) -> None:
    """Wait until every node is open; raise Unavailable if an agent has ended or time is up."""
    began = time.monotonic()
    while await engine.read(_open_nodes) < len(nodes):
        seconds = time.monotonic() - began
        if seconds > _READY_SECONDS or not all(node.runs for node in nodes):
            logs = ", ".join(str(node.directory / "agent.log") for node in nodes if not node.is_ready)
            raise Unavailable(f"some nodes are not ready after {seconds:.0f} s; see {logs}")
        await asyncio.sleep(_POLL_SECONDS)


def _open_nodes(mirror: Mirror) -> int:
    return sum(entry.open for entry in mirror.nodes.values())


def _print_ready(server: RunningServer, seconds: float) -> None:
    print_line(f"  Rota dev cluster ready in {seconds:.1f} s")
    print_line(f"    api   {server.url}")
    for entry in sorted(server.engine.mirror.nodes.values(), key=lambda entry: entry.spec.name):
        if entry.open and entry.status is not None:
            capacity = entry.status.capacity
            cpu, gpu = capacity.get("cpu", 0) / 1000, capacity.get("gpu", 0) / 1000
            memory = show_size(capacity.get("memory", 0))
            print_line(f"    node  {entry.spec.name}   {cpu:g} cpu   {memory}   gpu {gpu:g}   ready")
    print_line("  next: rota run -- echo hello · rota ls · rota node ls        Ctrl-C ends the cluster")
