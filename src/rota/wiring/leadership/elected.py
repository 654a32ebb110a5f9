"""A server that stands for leadership on etcd: waits, leads, renews, and steps down in time. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from rota.apiserver.api import Addresses
from rota.apiserver.http import make_app
from rota.apiserver.standby import StandbyApp
from rota.config import ConfigError, ServerConfig
from rota.config.etcd import endpoints
from rota.engine.leadership import LeaseAction, LeaseTiming, lease_valid, next_step
from rota.engine.run import Engine
from rota.identity.audit import AUDIT_FILE, AuditLog
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.model.errors import LostLeadership, StoreFull, Unavailable
from rota.scheduler.round import SchedulerSettings
from rota.store.etcd.client import EtcdAccess
from rota.store.etcd.leader_lease import LeaderLease, boot_ms
from rota.store.etcd.store import EtcdStore
from rota.wiring.api_context import ApiSources, ServerIdentity, StandbySources, make_api
from rota.wiring.console import print_line
from rota.wiring.leadership.following import Following
from rota.wiring.leadership.standby_ports import StandbyPorts
from rota.wiring.listeners import ports
from rota.wiring.process import first_of, shielded
from rota.wiring.server_record import ServerRecord, from_bytes, server_record, to_bytes
from rota.wiring.shared_identity import (
    adopt_authority,
    adopt_vault,
    follow_authority,
    publisher,
    ring_publisher,
)

_AGAIN_SECONDS = 1.0
_START_MS = 10_000  # for etcd to come up, where it is started with the server
_SERVERS_SECONDS = 0.25  # how soon a new server is known to nodes and clients: the leader may die next
_SOUND = ((3, 4, 22), (3, 5, 6))  # of each line: before, leases or reads could go wrong


class ElectedLeadership:
    def __init__(self, store: EtcdStore, config: ServerConfig, directory: Path) -> None:
        self.store = store
        self.lease_timing = LeaseTiming(config.etcd.ttl_seconds * 1000)
        self.ttl_ms = self.lease_timing.ttl_ms
        self._config = config
        self._directory = directory
        self._servers: list[ServerRecord] = []
        self._told = asyncio.Condition()

    async def lead(
        self, engine: Engine, authority: CertificateAuthority, settings: SchedulerSettings
    ) -> None:
        following = Following(engine, self.store, self._directory, authority)
        async with self._standby_listener(engine, authority, settings, following):
            while True:
                try:
                    print_line(f"Rota server stands by: {await self._who_leads() or 'nobody'} leads")
                    async with following.running():
                        await self._become_leader(engine, following)
                    await adopt_vault(self.store, self._directory)
                    await self.follow_authority(authority)
                    authority.publish_by(ring_publisher(self.store, asyncio.get_running_loop()))
                    break
                except* (Unavailable, StoreFull) as reasons:
                    print_line(f"Rota server stands by: {first_of(reasons)}")
                await asyncio.sleep(_AGAIN_SECONDS)
        engine.remove_commit_hooks()

    async def _become_leader(self, engine: Engine, following: Following) -> None:
        if self._config.never_lead:
            await asyncio.Event().wait()
        await engine.lead(following.caught_up)

    def lease_valid(self) -> bool:
        return lease_valid(self.lease_timing, self.store.leader_lease.renewed_at_ms, boot_ms())

    def open_vault(self) -> Vault:
        return Vault.open(self._directory / "vault", publisher(self.store, asyncio.get_running_loop()))

    async def follow_authority(self, authority: CertificateAuthority) -> None:
        await follow_authority(self.store, authority)

    def servers(self) -> list[ServerRecord]:
        return self._servers

    async def servers_refreshed(self) -> None:
        async with self._told:
            await self._told.wait()

    async def refresh_servers(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                self._servers = [from_bytes(card) for card in await self.store.members.list_servers()]
            async with self._told:
                self._told.notify_all()
            await asyncio.sleep(_SERVERS_SECONDS)

    @contextlib.asynccontextmanager
    async def _standby_listener(
        self,
        engine: Engine,
        authority: CertificateAuthority,
        settings: SchedulerSettings,
        following: Following,
    ) -> AsyncIterator[None]:
        served = ports.server_tls(self._config, authority, datetime.now(UTC))
        web_door = self._config.http_server
        socket = ports.bind_http(web_door.addr)
        http = ports.with_port(web_door.addr, socket.getsockname()[1])
        vault = Vault.open(self._directory / "vault")
        forwarding = StandbyPorts(self._config, served, vault, following)
        audit = AuditLog(self._directory / AUDIT_FILE)
        names = tuple(ports.host_names(self._config))
        own = ServerIdentity(
            self._directory,
            authority,
            vault,
            Addresses(http, self._config.agent_server.addr, forwarding.controller_address, names),
            served.expiries,
            audit,
            self._config.limits,
        )
        nodes = ApiSources(StandbySources(), StandbySources(), None, self.servers)
        api = make_api(engine, own, settings, nodes, following)
        face = StandbyApp(make_app(api), following, own.vault, own.addresses, authority)
        web = ports.web_server(face, served, web_door)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(web.serve(sockets=[socket]))
            renewing = tasks.create_task(served.keep_current())
            tunneling = tasks.create_task(forwarding.run())
            try:
                yield
            finally:
                renewing.cancel()
                tunneling.cancel()
                await shielded(forwarding.close())
                await shielded(_close_web(web, serving))
                face.close()
                socket.close()
                audit.close()

    async def _who_leads(self) -> str | None:
        holder = await self.store.leader_lease.read_leader()
        return None if holder is None else from_bytes(holder.server_record).url


async def _close_web(web: ports.WebServer, serving: asyncio.Task[None]) -> None:
    web.should_exit = web.force_exit = True
    await asyncio.wait([serving])
    await web.close_all()


@contextlib.asynccontextmanager
async def elected(config: ServerConfig, directory: Path) -> AsyncIterator[ElectedLeadership]:
    card = _server_record(config)
    store = EtcdStore(access_of(config), config.etcd.prefix, config.etcd.ttl_seconds, card)
    try:
        with contextlib.suppress(Unavailable):  # it was reached before: this server is known there by now
            await adopt_authority(store, directory)
            await store.members.register(config.http_server.addr, card)
        post = ElectedLeadership(store, config, directory)
        async with asyncio.TaskGroup() as tasks:
            holding = tasks.create_task(hold_lease(store.leader_lease, post.lease_timing))
            knowing = tasks.create_task(post.refresh_servers())
            yield post
            holding.cancel()
            knowing.cancel()
    finally:
        await shielded(store.close())


def _server_record(config: ServerConfig) -> bytes:
    """What others are told of this server; nothing of one that never leads at an address they cannot use."""
    try:
        return to_bytes(server_record(config))
    except ConfigError:
        if config.never_lead:
            return b""
        raise


async def hold_lease(seat: LeaderLease, tenure: LeaseTiming) -> None:
    """Renew from when it leads, until it must not believe in itself any more: `Deposed`."""
    await seat.acquired.wait()
    tried_at_ms = seat.renewed_at_ms
    while True:
        what = next_step(tenure, seat.renewed_at_ms, tried_at_ms, boot_ms())
        match what.action:
            case LeaseAction.STEP_DOWN:
                raise LostLeadership(
                    f"the lease could not be renewed for {tenure.fence_ms} ms: another may lead"
                )
            case LeaseAction.RENEW:
                tried_at_ms = boot_ms()
                with contextlib.suppress(Unavailable, TimeoutError):
                    async with asyncio.timeout(what.within_ms / 1000):
                        await seat.renew()
            case LeaseAction.WAIT:
                await asyncio.sleep(what.within_ms / 1000)


async def check_etcd_cluster(config: ServerConfig) -> None:
    """Before anything is begun: is it there, is it sound, is it ours? Raises `Unavailable`, `Unsafe`.

    It may be starting, too: whoever boots a machine starts both.
    """
    store = EtcdStore(access_of(config), config.etcd.prefix)
    try:
        version = await _version(store)
        await adopt_authority(store, Path(str(config.data_dir)))
    finally:
        await store.close()
    if not is_sound(version):
        print_line(f"warning: etcd {version} has known faults; use 3.4.22 or later, 3.5.6 or later, or 3.6")


async def _version(store: EtcdStore) -> str:
    give_up_ms = boot_ms() + _START_MS
    while True:
        try:
            return await store.version()
        except Unavailable as reason:
            if boot_ms() >= give_up_ms:
                raise
            print_line(f"Rota server waits for etcd: {reason}")
        await asyncio.sleep(_AGAIN_SECONDS)


def is_sound(version: str) -> bool:
    found = tuple(int(part) for part in version.partition("-")[0].split("."))
    floor = next((sound for sound in _SOUND if sound[:2] == found[:2]), None)
    return found >= floor if floor is not None else found > _SOUND[-1]


def access_of(config: ServerConfig) -> EtcdAccess:
    said = config.etcd
    return EtcdAccess(
        endpoints(config.store),
        _bytes("etcd.ca_file", said.ca_file),
        _bytes("etcd.crt_file", said.crt_file),
        _bytes("etcd.key_file", said.key_file),
        said.user,
        (_bytes("etcd.password_file", said.password_file) or b"").decode().strip(),
    )


def _bytes(key: str, path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(key, f"{path} cannot be read: {error.strerror}") from None
