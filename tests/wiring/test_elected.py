"""What servers that share etcd agree on, and whom they refuse."""

from pathlib import Path

import pytest

from rota.config import ConfigError, ServerOptions, server_config
from rota.identity.errors import Unsafe
from rota.identity.tokens import Role
from rota.identity.vault import Vault
from rota.store.etcd.client import Access
from rota.store.etcd.store import EtcdStore
from rota.testing.etcd import LocalEtcd
from rota.wiring.cards import Card, card_of, from_bytes, to_bytes
from rota.wiring.elected import is_sound
from rota.wiring.shared_identity import adopt_authority, adopt_vault


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
def test_versions_of_etcd_with_known_faults_are_told(version: str, sound: bool) -> None:
    assert is_sound(version) is sound


def test_a_card_says_where_others_find_a_server() -> None:
    config = server_config(ServerOptions(store="etcd://a:1"), {})
    card = card_of(config)

    assert card == Card("http://127.0.0.1:3000", "127.0.0.1:50001", "127.0.0.1:50000")
    assert from_bytes(to_bytes(card)) == card


@pytest.mark.parametrize("addr", ["127.0.0.1:0", "0.0.0.0:3000"])
def test_an_address_that_tells_others_nothing_is_refused(addr: str) -> None:
    config = server_config(ServerOptions(store="etcd://a:1", http_addr=addr), {})

    with pytest.raises(ConfigError, match=r"http_server\.addr"):
        card_of(config)


async def test_servers_have_one_ca_and_know_each_others_tokens(tmp_path: Path) -> None:
    with LocalEtcd(tmp_path / "etcd") as etcd:
        first, second, stranger = (tmp_path / name for name in ("first", "second", "stranger"))
        access = Access(tuple(etcd.endpoints), call_seconds=30.0)  # on a busy machine all is answered in time
        store = EtcdStore(access)
        epoch = await store.lead()
        await adopt_authority(store, first)
        await adopt_authority(store, second)
        token = Vault.open(first / "vault").make_api_token("me", Role.ADMIN, ("*",), 0)
        await store.board.write("vault", (first / "vault" / "vault.json").read_bytes(), epoch)
        await adopt_vault(store, second)
        other = EtcdStore(access, "other/")
        await adopt_authority(other, stranger)

        assert (first / "ca" / "ca.pem").read_bytes() == (second / "ca" / "ca.pem").read_bytes()
        assert (second / "ca" / "ca.key").stat().st_mode & 0o077 == 0
        assert Vault.open(second / "vault").who(token, 1) is not None
        with pytest.raises(Unsafe, match="another cluster"):
            await adopt_authority(store, stranger)
        await store.close()
        await other.close()
