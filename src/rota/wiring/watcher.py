"""`rota watcher`: its identity, a port for agents, one connection to the leader. [I/O]"""

import asyncio
import contextlib
import platform
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from random import random
from typing import Any

import grpc
import structlog

from rota.agent import servers
from rota.agent.join import enroll
from rota.config import ConfigError
from rota.config.watcher import WatcherConfig, WatcherOptions, watcher_config
from rota.identity.certificates import Period
from rota.identity.errors import IdentityRefused
from rota.identity.tokens import JoinLine, JoinRole
from rota.identity.watcher_identity import WatcherIdentity, WatcherRequest, load_watcher, store_watcher
from rota.model.errors import NotAllowed, Unavailable
from rota.store.lock import DirectoryLock
from rota.watcher.relay.agent_edge import AgentEdge
from rota.watcher.relay.uplink import Uplink
from rota.wire import forwarding, service_names
from rota.wire.generated import watcher_pb2, watcher_pb2_grpc
from rota.wiring.console import print_line
from rota.wiring.leadership.leader_proxy import LeaderNotReached, LeaderProxy, channel_to
from rota.wiring.listeners import ports
from rota.wiring.process import Interruption, guarded, log_to, raise_descriptor_limit

log = structlog.get_logger("rota.watcher")

_LOCK = "watcher.lock"
_CLOSE_SECONDS = 0.5
_RENEW_CHECK_SECONDS = 10.0
_RENEW_SECONDS = 30.0


def run_watcher(options: WatcherOptions) -> int:
    config = watcher_config(options)
    log_to(sys.stderr.fileno())
    raise_descriptor_limit()
    return guarded(_run(config, Path(str(config.data_dir)).absolute()))


async def _run(config: WatcherConfig, directory: Path) -> None:
    lock = DirectoryLock(directory, _LOCK)
    interruption = Interruption(signal.SIGINT, signal.SIGTERM)
    credentials = WatcherCredentials(directory, _identity(config, directory))
    uplink = Uplink(
        config.agent_addr,
        _servers(config, directory),
        lambda server: channel_to(server, credentials.pair),
        None if config.server_addr else lambda addresses: _remember(directory, addresses),
        credentials.trust,
    )
    server = ports.grpc_server(ports.agent_limits())
    others = LeaderProxy((service_names.AGENT,), UplinkRoute(uplink), attest=_attest)
    server.add_generic_rpc_handlers((AgentEdge(uplink), others))
    ports.open_watcher_port(server, config.agent_addr, credentials)
    # Before the uplink is connected: an agent that comes first gets UNAVAILABLE and tries another server.
    await server.start()
    print_line(f"Rota watcher ready: agents {config.agent_addr}")
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(uplink.run()), tasks.create_task(credentials.keep_current(uplink))]
        await interruption.wait()
        for task in working:
            task.cancel()
    # After the uplink: calls in progress end with a status that agents repeat at another server.
    others.close()
    await server.stop(_CLOSE_SECONDS)
    lock.release()


def _attest(context: Any) -> forwarding.Metadata:
    return ((forwarding.NODE_CERTIFICATE, forwarding.shown_certificate(context)),)


def _identity(config: WatcherConfig, directory: Path) -> WatcherIdentity:
    """The identity in this directory while it is valid, else a new one by the join line.

    A join line of a CA that the watcher does not trust was made after its own CA was replaced: the watcher
    joins by it, if that works, and else keeps its identity.
    """
    held = load_watcher(directory)
    if held is not None and held.pair.period.end > datetime.now(UTC):
        if config.join is None or held.bundle.trusts(JoinLine.parse(config.join).fingerprint):
            return held
        try:
            return _join(config, config.join, directory)
        except (NotAllowed, Unavailable) as reason:
            log.warning("not joined by the line; keeping the identity", reason=str(reason))
            return held
    if config.join is None:
        problem = (
            "this watcher has not joined yet" if held is None else "this watcher's certificate has expired"
        )
        raise ConfigError("join", problem, "get a line with `rota watcher token` and start with --join")
    return _join(config, config.join, directory)


def _join(config: WatcherConfig, line: str, directory: Path) -> WatcherIdentity:
    request = WatcherRequest()
    body = {
        "csr": request.request.decode(),
        "name": config.name or platform.node(),
        "role": JoinRole.WATCHER.value,
    }
    answer = enroll(JoinLine.parse(line), body)
    authorities = answer.get("authorities") or answer["ca"]
    joined = request.accept(answer["certificate"].encode(), authorities.encode(), datetime.now(UTC))
    store_watcher(directory, joined)
    servers.write(directory / servers.FILE, answer["agent_addresses"])
    return joined


def _servers(config: WatcherConfig, directory: Path) -> tuple[str, ...]:
    named = tuple(config.server_addr.split(",")) if config.server_addr else ()
    return named or servers.read(directory / servers.FILE)


def _remember(directory: Path, addresses: list[str]) -> None:
    with contextlib.suppress(OSError):  # on a full disk they are known to this process only
        servers.write(directory / servers.FILE, addresses)


class WatcherCredentials:
    """The identity of this watcher; each TLS handshake uses the current one."""

    def __init__(self, directory: Path, identity: WatcherIdentity) -> None:
        self._directory = directory
        self._hold(identity)

    def _hold(self, identity: WatcherIdentity) -> None:
        self.identity = identity
        self.pair = identity.pair
        self.period: Period = identity.pair.period
        self._jitter = random()

    def refresh(self, now: datetime) -> bool:
        """False: unlike a file, it is replaced by `keep_current`, which asks the leader."""
        del now
        return False

    def trust(self, ca_pem: bytes) -> None:
        """Trust the CAs that the leader names, from the next handshake on."""
        try:
            self._hold(self.identity.trusting(ca_pem))
        except IdentityRefused as refusal:
            log.warning("CAs not trusted", reason=str(refusal))
            return
        log.info("CAs updated", count=len(self.identity.bundle.roots))

    async def keep_current(self, uplink: Uplink) -> None:
        """Store changed CAs, and renew the certificate at half its life or when another CA signs now.

        In the latter case the watcher reconnects: a rotation ends when no connection uses the old CA.
        """
        stored = self.identity
        while True:
            await asyncio.sleep(min(_RENEW_CHECK_SECONDS, self.period.life.total_seconds() / 40))
            # Read together before the await: the uplink may attach to another server meanwhile.
            channel, held = uplink.channel, self.identity
            try:
                # Stored in a thread and only when changed: the
                # disk must not block the streams of all agents.
                if stored != held:
                    await asyncio.to_thread(store_watcher, self._directory, held)
                    stored = held
                is_due = not held.is_current or self.period.is_due(datetime.now(UTC), self._jitter)
                if channel is None or not is_due:
                    continue
                await self._renew(channel)
                stored = self.identity
                # Only then: a renewed certificate alone does not need another connection.
                if not held.is_current:
                    uplink.attach_again()
            except grpc.aio.AioRpcError as error:
                log.warning("certificate not renewed", reason=error.details() or error.code().name)
            except (IdentityRefused, OSError) as reason:
                log.warning("certificate not renewed", reason=str(reason))

    async def _renew(self, channel: grpc.aio.Channel) -> None:
        own = WatcherRequest()
        stub = watcher_pb2_grpc.WatcherStub(channel)  # type: ignore[no-untyped-call]  # generated
        request = watcher_pb2.RenewWatcherRequest(csr=own.request, follows=True)
        reply = await stub.RenewWatcher(request, timeout=_RENEW_SECONDS)
        trusting = self.identity.trusting(reply.ca) if reply.ca else self.identity
        renewed = own.accept(reply.certificate, trusting.bundle.pem, datetime.now(UTC))
        # Ordering: stored before it is used, so that a crash leaves a usable identity.
        await asyncio.to_thread(store_watcher, self._directory, renewed)
        self._hold(renewed)
        log.info("certificate renewed", until=f"{self.period.end:%Y-%m-%d %H:%M:%S} UTC")


class UplinkRoute:
    """Forwards calls of agents, other than their streams, over the watcher's connection to the leader."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink

    def leader(self) -> str | None:
        return self._uplink.leader

    async def changed(self, known: str | None) -> None:
        await self._uplink.changes(known)

    @contextlib.asynccontextmanager
    async def reached(self, timeout_seconds: float) -> AsyncIterator[tuple[str, grpc.aio.Channel]]:
        """Does not wait: an agent whose watcher has no leader connects elsewhere."""
        del timeout_seconds
        leader, channel = self._uplink.leader, self._uplink.channel
        if leader is None or channel is None:
            raise LeaderNotReached("this watcher is not connected to the leader")
        yield leader, channel
