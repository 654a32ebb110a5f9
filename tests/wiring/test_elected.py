"""The identity that servers on one etcd share, and which servers are refused."""

import asyncio
import zlib
from pathlib import Path

import msgspec
import pytest

from rota.config import ConfigError, ServerOptions, server_config
from rota.identity.errors import Unsafe
from rota.identity.tokens import Role, StoredJoinToken, digest
from rota.identity.vault import MAX_TOKENS, Vault, VaultContents
from rota.store.etcd.client import EtcdAccess
from rota.store.etcd.store import EtcdStore
from rota.testing.etcd import LocalEtcd
from rota.wiring.leadership.elected import is_sound
from rota.wiring.server_record import ServerRecord, from_bytes, server_record, to_bytes
from rota.wiring.shared_identity import adopt_authority, adopt_vault, publisher
from tests.machine import needs


@pytest.mark.parametrize(
    ("version", "sound"),
    [
        ("3.4.21", False),
        ("3.4.23", True),
        ("3.5.0", False),
        ("3.5.6", True),
        ("3.5.21", True),
        ("3.6.0-rc.1", True),
        ("3.3.27", False),
    ],
)
def test_versions_of_etcd_with_known_faults_are_detected(version: str, sound: bool) -> None:
    assert is_sound(version) is sound


def test_a_server_record_has_the_addresses_of_a_server() -> None:
    config = server_config(ServerOptions(store="etcd://127.0.0.1:1"), {})
    card = server_record(config)

    assert card == ServerRecord("http://127.0.0.1:3000", "127.0.0.1:50001", "127.0.0.1:50000")
    assert from_bytes(to_bytes(card)) == card


@pytest.mark.parametrize("addr", ["127.0.0.1:0", "0.0.0.0:3000"])
def test_an_address_that_others_cannot_reach_is_refused(addr: str) -> None:
    config = server_config(ServerOptions(store="etcd://127.0.0.1:1", http_addr=addr), {})

    with pytest.raises(ConfigError, match=r"http_server\.addr"):
        server_record(config)


@needs("etcd")
async def test_servers_have_one_ca_and_know_each_others_tokens(tmp_path: Path) -> None:
    with LocalEtcd(tmp_path / "etcd") as etcd:
        first, second, stranger = (tmp_path / name for name in ("first", "second", "stranger"))
        access = EtcdAccess(
            tuple(etcd.endpoints), call_seconds=30.0
        )  # on a busy machine all is answered in time
        store = EtcdStore(access)
        await store.acquire_epoch()
        await adopt_authority(store, first)
        await adopt_authority(store, second)
        token = Vault.open(first / "vault").make_api_token("me", Role.ADMIN, ("*",), 0)
        await store.share("vault", zlib.compress((first / "vault" / "vault.json").read_bytes()))
        await adopt_vault(store, second)
        other = EtcdStore(access, "other/")
        await adopt_authority(other, stranger)

        assert (first / "ca" / "ca.pem").read_bytes() == (second / "ca" / "ca.pem").read_bytes()
        assert (second / "ca" / "ca.key").stat().st_mode & 0o077 == 0
        assert Vault.open(second / "vault").authenticate(token, 1) is not None
        with pytest.raises(Unsafe, match="another cluster"):
            await adopt_authority(store, stranger)
        await store.close()
        await other.close()


@needs("etcd")
async def test_as_many_tokens_as_a_vault_holds_fit_into_etcd(tmp_path: Path) -> None:
    with LocalEtcd(tmp_path / "etcd") as etcd:
        store = EtcdStore(EtcdAccess(tuple(etcd.endpoints), call_seconds=30.0))
        await store.acquire_epoch()
        _fill(tmp_path / "first" / "vault", MAX_TOKENS - 1)
        vault = Vault.open(tmp_path / "first" / "vault", publisher(store, asyncio.get_running_loop()))
        secret = await asyncio.to_thread(vault.make_join_token, 0, labels={}, cluster="main")
        await adopt_vault(store, tmp_path / "second")
        await store.close()
    second = Vault.open(tmp_path / "second" / "vault")

    assert len(second.list_join_tokens()) == MAX_TOKENS
    assert second.use_join_token(secret, "n1", 1).cluster == "main"


def _fill(directory: Path, tokens: int) -> None:
    """A vault with join tokens that were used."""
    vault = Vault.open(directory)
    used = [
        StoredJoinToken(
            digest=digest(str(number)),
            made_at_ms=number,
            expires_at_ms=number + 1_000_000,
            labels={},
            cluster="main",
            used_by=f"n{number}",
        )
        for number in range(tokens)
    ]
    (directory / "vault.json").write_bytes(msgspec.json.encode(VaultContents(join_tokens=tuple(used))))
    (directory / "vault.json").chmod(0o600)
    assert len(vault.list_join_tokens()) == tokens


@pytest.mark.slow
@needs("etcd")
async def test_repeated_sharing_does_not_fill_etcd(tmp_path: Path) -> None:
    """A thousand nodes that join change the vault two thousand times, and each change is all of it."""
    with LocalEtcd(tmp_path / "etcd", 1, "--quota-backend-bytes", str(200 << 20)) as etcd:
        store = EtcdStore(EtcdAccess(tuple(etcd.endpoints), call_seconds=30.0), ttl_seconds=300)
        await store.acquire_epoch()
        for _ in range(240):
            await store.share("vault", bytes(1 << 20))

        assert await store.has_space()
        await store.close()
