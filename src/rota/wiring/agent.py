"""`rota agent`: the identity of this node, its agent, and the runtime that starts work. [I/O]"""

import asyncio
import platform
import signal
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from rota import __version__
from rota.agent import servers
from rota.agent.join import join
from rota.agent.run import Agent, AgentSettings
from rota.config import GPU_MODEL, AgentConfig, AgentOptions, ConfigError, agent_config, drain_seconds
from rota.identity.node_identity import NodeIdentity, load_identity
from rota.identity.tokens import JoinLine
from rota.model.amounts import GPU, WHOLE_GPU, parse_cpu, parse_seconds, parse_size
from rota.model.errors import NotAllowed, Unavailable
from rota.model.limits import LOG_BYTES_MIN, TIMEOUT_SECONDS_MAX
from rota.runtimes.process import ProcessRuntime
from rota.store.lock import DirectoryLock
from rota.wiring.process import Interruption, first_of, guarded, log_to
from rota.wiring.run_as import run_limits

log = structlog.get_logger("rota.agent")

AGENT_LOCK = "agent.lock"
_LEAVE_SECONDS = 30.0  # for the agent to report its last results and sign off


def run_agent(options: AgentOptions) -> int:
    config = agent_config(options)
    log_to(sys.stderr.fileno())
    return guarded(_run(config, Path(str(config.data_dir)).absolute()))


async def _run(config: AgentConfig, directory: Path) -> None:
    # One agent per directory: two would share an identity and report the same attempts twice.
    lock = DirectoryLock(directory, AGENT_LOCK)
    interruption = Interruption(signal.SIGINT, signal.SIGTERM)
    try:
        await _serve(config, directory, _identity(config, directory), interruption)
    except* NotAllowed as refused:
        # The node was deleted or revoked. It may come back as a new one, by a join line only.
        # Without a join line the refusal ends the agent: retrying with the same certificate cannot succeed.
        if config.join is None:
            raise
        log.warning("node no longer known; joining again", reason=str(first_of(refused)))
        await _serve(config, directory, _join(config, directory), interruption)
    lock.release()


async def _serve(
    config: AgentConfig, directory: Path, identity: NodeIdentity, interruption: Interruption
) -> None:
    runtime = ProcessRuntime(directory, run_limits(config, directory))
    agent = Agent(settings_of(config, directory), identity, runtime)
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(agent.run())
        received = await interruption.wait()
        drain = drain_seconds(config)
        # A node whose machine is being terminated never comes
        # back, so its work must be handed over instead.
        if received is signal.SIGTERM and config.keep_work and not agent.is_terminating:
            log.info("agent stops; its work goes on under the keeper until the next agent takes over")
            await agent.announce_restart()
        else:
            if received is signal.SIGTERM and drain is not None:
                await _until_signalled_again(agent.drain(drain))
            log.info("node leaves: its work is stopped, and recovered as each job's recovery says")
            await agent.leave()
            # Bounded: a server that does not answer must not keep the machine from shutting down.
            async with asyncio.timeout(_LEAVE_SECONDS):
                await working
        working.cancel()


async def _until_signalled_again(draining: Coroutine[Any, Any, None]) -> None:
    """Drain until it is done, or until a second signal asks not to wait."""
    second = Interruption(signal.SIGINT, signal.SIGTERM)
    async with asyncio.TaskGroup() as both:
        drained = both.create_task(draining)
        signalled = both.create_task(second.wait())
        await asyncio.wait((drained, signalled), return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        signalled.cancel()


def _identity(config: AgentConfig, directory: Path) -> NodeIdentity:
    """The identity in this directory, or a new one by the join line.

    An expired identity is good for as long as it can be renewed, which the agent does when it connects. A
    join line of a CA that the node does not trust was made after its own CA was replaced: the node joins by
    it, if that works, and else keeps its identity.
    """
    identity = load_identity(directory)
    if identity is not None and identity.renewable_until > datetime.now(UTC):
        if config.join is None or identity.bundle.trusts(JoinLine.parse(config.join).fingerprint):
            return identity
        try:
            return _join(config, directory)
        except (NotAllowed, Unavailable) as reason:
            log.warning("not joined by the line; keeping the identity", reason=str(reason))
            return identity
    if config.join is None:
        raise ConfigError(
            "join", _why_no_identity(identity), "get a line with `rota node token` and start with --join"
        )
    return _join(config, directory)


def _why_no_identity(identity: NodeIdentity | None) -> str:
    if identity is None:
        return "this node has not joined yet"
    expired, until = identity.period.end, identity.renewable_until
    return (
        f"this node's certificate expired on {expired:%Y-%m-%d}, and could be renewed until {until:%Y-%m-%d}"
    )


def _join(config: AgentConfig, directory: Path) -> NodeIdentity:
    assert config.join is not None
    name = config.name or platform.node()
    joined = join(JoinLine.parse(config.join), directory, name, _labels(config))
    servers.write(directory / servers.FILE, joined.agent_addresses)
    return joined.identity


def settings_of(config: AgentConfig, directory: Path) -> AgentSettings:
    return AgentSettings(
        directory=directory,
        addresses=_addresses(config) or servers.read(directory / servers.FILE),
        name=config.name or platform.node(),
        version=__version__,
        labels=_labels(config),
        declared=_declared(config),
        keeping=_output_retention(config),
        output_bytes=parse_size("output_bytes", config.output_bytes),
        container=config.container,
        mounts=tuple(config.mounts),
        container_root=config.container_root,
        notice=config.notice,
    )


def _addresses(config: AgentConfig) -> tuple[str, ...]:
    return tuple(config.server_addr.split(",")) if config.server_addr else ()


def _labels(config: AgentConfig) -> dict[str, str]:
    return config.labels if config.gpu_model is None else {**config.labels, GPU_MODEL: config.gpu_model}


def _output_retention(config: AgentConfig) -> dict[str, int]:
    """The retention of output: bytes per stream and per node, and age."""
    stream_bytes = parse_size("log_bytes", config.log_bytes)
    if stream_bytes < LOG_BYTES_MIN:
        raise ConfigError("log_bytes", f"{config.log_bytes!r} is too little", "write at least 64k")
    age_seconds = parse_seconds("logs_age", config.logs_age, TIMEOUT_SECONDS_MAX)
    return {
        "stream_bytes": stream_bytes,
        "node_bytes": parse_size("logs_bytes", config.logs_bytes),
        "age_ms": round(age_seconds * 1000),
    }


def _declared(config: AgentConfig) -> dict[str, int]:
    """The capacity that is configured instead of detected."""
    declared = {name: int(amount) for name, amount in config.resources.items()}
    if GPU in declared:
        declared[GPU] *= WHOLE_GPU
    if config.cpu is not None:
        declared["cpu"] = parse_cpu("cpu", config.cpu)
    if config.memory is not None:
        declared["memory"] = parse_size("memory", config.memory)
    return declared
