"""`rota watcher`: an identity, a port for agents, one connection to the leader. [I/O]"""

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
from rota.watcher.agent_edge import AgentEdge
from rota.watcher.uplink import Uplink
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
        None if config.server_addr else lambda told: _remember(directory, told),
        credentials.trust,
    )
    server = ports.grpc_server(ports.agent_limits())
    others = LeaderProxy((service_names.AGENT,), UplinkRoute(uplink), attest=_attest)
    server.add_generic_rpc_handlers((AgentEdge(uplink), others))
    ports.open_watcher_port(server, config.agent_addr, credentials)
    await server.start()
    print_line(f"Rota watcher ready: agents {config.agent_addr}")
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(uplink.run()), tasks.create_task(credentials.keep_current(uplink))]
        await interruption.wait()
        for task in working:
            task.cancel()
    others.close()
    await server.stop(_CLOSE_SECONDS)
    lock.release()


def _attest(context: Any) -> forwarding.Metadata:
    return ((forwarding.NODE_CERTIFICATE, forwarding.shown_certificate(context)),)


def _identity(config: WatcherConfig, directory: Path) -> WatcherIdentity:
    """The one this directory holds while it is good, else a new one by the join line.

    A line of a CA that the watcher does not trust was made after its own was replaced: it counts, if it can
    be used.
    """
    held = load_watcher(directory)
    if held is not None and held.pair.period.end > datetime.now(UTC):
        if config.join is None or held.bundle.trusts(JoinLine.parse(config.join).fingerprint):
            return held
        try:
            return _join(config, config.join, directory)
        except (NotAllowed, Unavailable) as reason:
            log.warning("not joined by the line; this watcher stays what it is", reason=str(reason))
            return held
    if config.join is None:
        lacking = (
            "this watcher has not joined yet" if held is None else "this watcher's certificate has expired"
        )
        raise ConfigError("join", lacking, "get a line with `rota watcher token` and start with --join")
    return _join(config, config.join, directory)


def _join(config: WatcherConfig, line: str, directory: Path) -> WatcherIdentity:
    asked = WatcherRequest()
    body = {
        "csr": asked.request.decode(),
        "name": config.name or platform.node(),
        "role": JoinRole.WATCHER.value,
    }
    answer = enroll(JoinLine.parse(line), body)
    authorities = answer.get("authorities") or answer["ca"]
    joined = asked.accept(answer["certificate"].encode(), authorities.encode(), datetime.now(UTC))
    store_watcher(directory, joined)
    servers.write(directory / servers.FILE, answer["agent_addresses"])
    return joined


def _servers(config: WatcherConfig, directory: Path) -> tuple[str, ...]:
    named = tuple(config.server_addr.split(",")) if config.server_addr else ()
    return named or servers.read(directory / servers.FILE)


def _remember(directory: Path, told: list[str]) -> None:
    with contextlib.suppress(OSError):  # a full disk: they are known for as long as this process lives
        servers.write(directory / servers.FILE, told)


class WatcherCredentials:
    """The identity that this watcher shows; the next handshake uses what is held then."""

    def __init__(self, directory: Path, identity: WatcherIdentity) -> None:
        self._directory = directory
        self._hold(identity)

    def _hold(self, identity: WatcherIdentity) -> None:
        self.identity = identity
        self.pair = identity.pair
        self.period: Period = identity.pair.period
        self._jitter = random()

    def refresh(self, now: datetime) -> bool:
        """It is not replaced by looking: the leader has to be asked."""
        del now
        return False

    def trust(self, ca_pem: bytes) -> None:
        """Trust the authorities that the leader names, from the next handshake on."""
        try:
            self._hold(self.identity.trusting(ca_pem))
        except IdentityRefused as refusal:
            log.warning("authorities not trusted", reason=str(refusal))
            return
        log.info("authorities learned", authorities=len(self.identity.bundle.roots))

    async def keep_current(self, uplink: Uplink) -> None:
        """Ask the leader for a new certificate at half the life of this one; look at the clock often.

        Also when another authority signs now. Then it attaches again: the leader counts what it has shown.
        """
        stored = self.identity
        while True:
            await asyncio.sleep(min(_RENEW_CHECK_SECONDS, self.period.life.total_seconds() / 40))
            channel, held = uplink.channel, self.identity
            try:
                if stored != held:
                    await asyncio.to_thread(store_watcher, self._directory, held)
                    stored = held
                is_due = not held.is_current or self.period.is_due(datetime.now(UTC), self._jitter)
                if channel is None or not is_due:
                    continue
                await self._renew(channel)
                stored = self.identity
                if not held.is_current:
                    uplink.attach_again()
            except grpc.aio.AioRpcError as error:
                log.warning("certificate not renewed", reason=error.details() or error.code().name)
            except (IdentityRefused, OSError) as reason:
                log.warning("certificate not renewed", reason=str(reason))

    async def _renew(self, channel: grpc.aio.Channel) -> None:
        asked = WatcherRequest()
        stub = watcher_pb2_grpc.WatcherStub(channel)  # type: ignore[no-untyped-call]  # generated
        request = watcher_pb2.RenewWatcherRequest(csr=asked.request, follows=True)
        reply = await stub.RenewWatcher(request, timeout=_RENEW_SECONDS)
        trusting = self.identity.trusting(reply.ca) if reply.ca else self.identity
        renewed = asked.accept(reply.certificate, trusting.bundle.pem, datetime.now(UTC))
        await asyncio.to_thread(store_watcher, self._directory, renewed)
        self._hold(renewed)
        log.info("certificate renewed", until=f"{self.period.end:%Y-%m-%d %H:%M:%S} UTC")


class UplinkRoute:
    """Calls of agents other than their streams take the connection that this watcher has to the leader."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink

    def leader(self) -> str | None:
        return self._uplink.leader

    async def changed(self, known: str | None) -> None:
        await self._uplink.changes(known)

    @contextlib.asynccontextmanager
    async def reached(self, patience_seconds: float) -> AsyncIterator[tuple[str, grpc.aio.Channel]]:
        """At once or not at all: an agent whose watcher has no leader calls elsewhere."""
        del patience_seconds
        leader, channel = self._uplink.leader, self._uplink.channel
        if leader is None or channel is None:
            raise LeaderNotReached("this watcher has no connection to the server that leads")
        yield leader, channel
