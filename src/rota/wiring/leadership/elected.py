"""Leadership by election on etcd: follow, campaign, lead, renew the leader lease, step down in time. [I/O]

Safety rests on the epoch: every commit compares the leader key, so a deposed leader cannot write. In addition
a leader steps down `fence_ms` after its last renewal, counted from when it asked for it and therefore before
the lease can expire in etcd: until then no other server can have been elected.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rota.config import ConfigError, ServerConfig
from rota.config.etcd import endpoints
from rota.engine.leadership import LeaseAction, LeaseTiming, lease_valid, next_step
from rota.engine.run import Engine
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.model.errors import LostLeadership, StoreFull, Unavailable
from rota.scheduler.round import SchedulerSettings
from rota.store.etcd.client import EtcdAccess
from rota.store.etcd.leader_lease import LeaderLease, boot_ms
from rota.store.etcd.store import EtcdStore
from rota.wiring.console import print_line
from rota.wiring.leadership.following import Following
from rota.wiring.leadership.standby import Standby
from rota.wiring.process import first_of, shielded
from rota.wiring.server_record import ServerRecord, from_bytes, server_record, to_bytes
from rota.wiring.shared_identity import (
    adopt_authority,
    adopt_vault,
    follow_authority,
    publisher,
    ring_publisher,
)

_RETRY_SECONDS = 1.0
_START_MS = 10_000  # for etcd to come up, when both are started with the machine
_SERVERS_SECONDS = 0.25  # poll of the member list: nodes must know a new server before the leader dies
_SOUND = ((3, 4, 22), (3, 5, 6))  # first release of each minor version without bugs in leases and reads


class ElectedLeadership:
    """One of several servers on the same etcd: a standby until it is elected."""

    def __init__(self, store: EtcdStore, config: ServerConfig, directory: Path) -> None:
        self.store = store
        self.lease_timing = LeaseTiming(config.etcd.ttl_seconds * 1000)
        self.ttl_ms = self.lease_timing.ttl_ms
        self._config = config
        self._directory = directory
        self._servers: list[ServerRecord] = []
        self._refreshed = asyncio.Condition()
        self._standby = Standby(config, directory, self.servers)

    async def lead(
        self, engine: Engine, authority: CertificateAuthority, settings: SchedulerSettings
    ) -> None:
        """Serve as a standby until this server leads; returns then, with its ports free."""
        following = Following(engine, self.store, self._directory, authority)
        async with self._standby.serving(engine, authority, settings, following):
            while True:
                try:
                    print_line(f"Rota server stands by: {await self._who_leads() or 'nobody'} leads")
                    async with following.running():
                        # Inside `running`, so that the watch keeps
                        # delivering while this server waits for the lease.
                        await self._become_leader(engine, following)
                    # The watch may not have delivered the last tokens and CA that the previous leader stored.
                    # Ordering: tokens and CA are adopted after the lease
                    # was acquired, when no other server can change them.
                    await adopt_vault(self.store, self._directory)
                    await self.follow_authority(authority)
                    authority.publish_by(ring_publisher(self.store, asyncio.get_running_loop()))
                    break
                except* (Unavailable, StoreFull) as reasons:
                    print_line(f"Rota server stands by: {first_of(reasons)}")
                await asyncio.sleep(_RETRY_SECONDS)
        # The hooks belong to the API of the standby, which is closed; those of the leader are added later.
        engine.remove_commit_hooks()

    async def _become_leader(self, engine: Engine, following: Following) -> None:
        if self._config.never_lead:
            # Never campaigns, and keeps serving as a standby until it is stopped.
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
        async with self._refreshed:
            await self._refreshed.wait()

    async def refresh_servers(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                self._servers = [from_bytes(record) for record in await self.store.members.list_servers()]
            async with self._refreshed:
                self._refreshed.notify_all()
            await asyncio.sleep(_SERVERS_SECONDS)

    async def _who_leads(self) -> str | None:
        leader = await self.store.leader_lease.read_leader()
        return None if leader is None else from_bytes(leader.server_record).url


@contextlib.asynccontextmanager
async def elected(config: ServerConfig, directory: Path) -> AsyncIterator[ElectedLeadership]:
    record = _server_record(config)
    store = EtcdStore(access_of(config), config.etcd.prefix, config.etcd.ttl_seconds, record)
    try:
        # Registered once is enough: a server that campaigns again is known in etcd from the first time.
        with contextlib.suppress(Unavailable):
            await adopt_authority(store, directory)
            await store.members.register(config.http_server.addr, record)
        leadership = ElectedLeadership(store, config, directory)
        # One TaskGroup for the lease and the work: LostLeadership
        # in the renewal cancels everything at once.
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(hold_lease(store.leader_lease, leadership.lease_timing))
            refreshing = tasks.create_task(leadership.refresh_servers())
            yield leadership
            # After the block: the lease is renewed until the server has stopped serving.
            renewing.cancel()
            refreshing.cancel()
    finally:
        # Shielded, because it revokes the lease: without that a standby would wait for the whole TTL.
        await shielded(store.close())


def _server_record(config: ServerConfig) -> bytes:
    """What this server publishes about itself; empty if it never leads and has no public address."""
    try:
        return to_bytes(server_record(config))
    except ConfigError:
        if config.never_lead:
            return b""
        raise


async def hold_lease(lease: LeaderLease, timing: LeaseTiming) -> None:
    """Renew the lease once it is acquired. Raises LostLeadership when it may have expired."""
    # Before that there is nothing to renew, and a standby must not be ended by a fence.
    await lease.acquired.wait()
    tried_at_ms = lease.renewed_at_ms
    while True:
        step = next_step(timing, lease.renewed_at_ms, tried_at_ms, boot_ms())
        match step.action:
            case LeaseAction.STEP_DOWN:
                raise LostLeadership(
                    f"the lease could not be renewed for {timing.fence_ms} ms: another may lead"
                )
            case LeaseAction.RENEW:
                # Also when the renewal fails: the retry interval
                # counts from here, so a dead etcd is not flooded.
                tried_at_ms = boot_ms()
                # A failed renewal is retried by the next step, until the fence is reached.
                with contextlib.suppress(Unavailable, TimeoutError):
                    async with asyncio.timeout(step.within_ms / 1000):
                        await lease.renew()
            case LeaseAction.WAIT:
                await asyncio.sleep(step.within_ms / 1000)


async def check_etcd_cluster(config: ServerConfig) -> None:
    """Check before the start that etcd answers and belongs to this cluster. Raises Unavailable, Unsafe.

    It is waited for, as etcd may be starting together with this server.
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
    deadline_ms = boot_ms() + _START_MS
    while True:
        try:
            return await store.version()
        except Unavailable as reason:
            if boot_ms() >= deadline_ms:
                raise
            print_line(f"Rota server waits for etcd: {reason}")
        await asyncio.sleep(_RETRY_SECONDS)


def is_sound(version: str) -> bool:
    found = tuple(int(part) for part in version.partition("-")[0].split("."))
    floor = next((sound for sound in _SOUND if sound[:2] == found[:2]), None)
    return found >= floor if floor is not None else found > _SOUND[-1]


def access_of(config: ServerConfig) -> EtcdAccess:
    etcd = config.etcd
    return EtcdAccess(
        endpoints(config.store),
        _bytes("etcd.ca_file", etcd.ca_file),
        _bytes("etcd.crt_file", etcd.crt_file),
        _bytes("etcd.key_file", etcd.key_file),
        etcd.user,
        (_bytes("etcd.password_file", etcd.password_file) or b"").decode().strip(),
    )


def _bytes(key: str, path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(key, f"{path} cannot be read: {error.strerror}") from None
