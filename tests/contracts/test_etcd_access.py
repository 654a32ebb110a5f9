"""etcd behind TLS, and behind a user with a password."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import trustme

from rota.model.errors import Unavailable
from rota.store.etcd.client import Access
from rota.store.etcd.store import EtcdStore
from rota.testing.etcd import LocalEtcd
from rota.testing.store_contract import batch, commit


def gateway(etcd: LocalEtcd, path: str, body: dict[str, Any]) -> None:
    """As an operator sets etcd up."""
    connection = HTTPConnection(etcd.endpoints[0], timeout=10)
    connection.request("POST", f"/v3/auth/{path}", json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path / "etcd") as etcd:
        gateway(etcd, "user/add", {"name": "root", "password": "secret"})
        gateway(etcd, "user/grant", {"user": "root", "role": "root"})
        gateway(etcd, "enable", {})
        yield etcd


async def test_a_user_with_a_password_is_let_in(guarded: LocalEtcd) -> None:
    store = EtcdStore(Access(tuple(guarded.endpoints), user="root", password="secret"))
    epoch = await store.lead()
    store._client._token = "stale.1"  # as after a restart of etcd, which remembers none

    assert await commit(store, batch(epoch, puts={"k": b"v"})) == 1
    await store.seat.renew()
    await store.close()


@pytest.mark.parametrize(("user", "password"), [(None, ""), ("root", "wrong")])
async def test_others_are_told_that_they_are_not(guarded: LocalEtcd, user: str | None, password: str) -> None:
    store = EtcdStore(Access(tuple(guarded.endpoints), user=user, password=password))

    with pytest.raises(Unavailable, match=r"user name is empty|invalid user ID or password"):
        await store.lead()

    await store.close()


async def test_with_a_ca_tls_is_spoken_and_a_certificate_shown(tmp_path: Path) -> None:
    ca = trustme.CA()
    server, own = ca.issue_cert("127.0.0.1"), ca.issue_cert("rota")
    (tmp_path / "key.pem").write_bytes(server.private_key_pem.bytes())
    (tmp_path / "cert.pem").write_bytes(server.cert_chain_pems[0].bytes())
    (tmp_path / "ca.pem").write_bytes(ca.cert_pem.bytes())
    key, cert = own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes()
    files = {"cert-file": "cert.pem", "key-file": "key.pem", "trusted-ca-file": "ca.pem"}
    options = [f"--{name}={tmp_path / file}" for name, file in files.items()]

    with LocalEtcd(tmp_path / "etcd", 1, *options, "--client-cert-auth", scheme="https") as etcd:
        store = EtcdStore(Access(tuple(etcd.endpoints), ca.cert_pem.bytes(), cert, key))
        stranger = EtcdStore(Access(tuple(etcd.endpoints), ca.cert_pem.bytes()))

        assert await commit(store, batch(await store.lead(), puts={"k": b"v"})) == 1
        with pytest.raises(Unavailable):
            await stranger.read()
        await stranger.close()
        await store.close()
