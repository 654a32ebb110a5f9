"""etcd behind TLS, and behind a user with a password."""

import base64
import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import trustme

from rota.model.errors import Unavailable
from rota.store.etcd import store as etcd_store
from rota.store.etcd.client import Compacted, EtcdAccess
from rota.store.etcd.store import EtcdStore
from rota.testing.etcd import LocalEtcd
from rota.testing.store_contract import batch, commit
from tests.machine import needs

pytestmark = needs("etcd")

CALL_SECONDS = 30.0  # long enough for a busy machine


def gateway(etcd: LocalEtcd, path: str, body: dict[str, Any]) -> None:
    """Configure etcd as an operator would."""
    connection = HTTPConnection(etcd.endpoints[0], timeout=CALL_SECONDS)
    connection.request("POST", f"/v3/auth/{path}", json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path / "etcd") as etcd:
        gateway(etcd, "user/add", {"name": "root", "password": "secret"})
        gateway(etcd, "user/grant", {"user": "root", "role": "root"})
        gateway(etcd, "role/add", {"name": "rota"})
        first, end = (base64.b64encode(text).decode() for text in (b"rota/", b"rota0"))
        below = {"permType": "READWRITE", "key": first, "range_end": end}
        gateway(etcd, "role/grant", {"name": "rota", "perm": below})
        gateway(etcd, "user/add", {"name": "rota", "password": "secret"})
        gateway(etcd, "user/grant", {"user": "rota", "role": "rota"})
        gateway(etcd, "enable", {})
        yield etcd


async def test_write_access_below_the_prefix_is_enough(
    guarded: LocalEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "_COMPACT_BYTES", 1)
    rota = EtcdAccess(tuple(guarded.endpoints), user="rota", password="secret", call_seconds=CALL_SECONDS)
    store = EtcdStore(rota, "rota/")
    epoch = await store.acquire_epoch()
    store._client._token = "stale.1"  # as after a restart of etcd, which loses its tokens
    many = {f"k{number}": b"v" for number in range(300)}

    assert await commit(store, batch(epoch, puts={"k": b"v"}, events=b"row")) == 1
    assert await commit(store, batch(epoch, puts=many)) == 2
    assert await commit(store, batch(epoch, deletes=("k",))) == 3
    assert (await store.read()).records == many
    assert await store.members.put_if_absent("name", b"value") == b"value"
    assert (await store.version()).startswith("3.")
    assert not await store._client.is_full()
    await store.leader_lease.renew()
    await store.forget_events(1)
    assert await store.events(0, 10) == []
    with pytest.raises(Compacted):
        await store._client.compact(epoch)  # older revisions are compacted already
    await store.close()


@pytest.mark.parametrize(("user", "password"), [(None, ""), ("root", "wrong")])
async def test_wrong_credentials_are_refused(guarded: LocalEtcd, user: str | None, password: str) -> None:
    access = EtcdAccess(tuple(guarded.endpoints), user=user, password=password, call_seconds=CALL_SECONDS)
    store = EtcdStore(access)

    with pytest.raises(Unavailable, match=r"user name is empty|invalid user ID or password"):
        await store.acquire_epoch()

    await store.close()


async def test_with_a_ca_the_store_uses_tls_and_a_client_certificate(tmp_path: Path) -> None:
    ca = trustme.CA()
    server, own = ca.issue_cert("127.0.0.1"), ca.issue_cert("rota")
    (tmp_path / "key.pem").write_bytes(server.private_key_pem.bytes())
    (tmp_path / "cert.pem").write_bytes(server.cert_chain_pems[0].bytes())
    (tmp_path / "ca.pem").write_bytes(ca.cert_pem.bytes())
    key, cert = own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes()
    files = {"cert-file": "cert.pem", "key-file": "key.pem", "trusted-ca-file": "ca.pem"}
    options = [f"--{name}={tmp_path / file}" for name, file in files.items()]

    with LocalEtcd(tmp_path / "etcd", 1, *options, "--client-cert-auth", scheme="https") as etcd:
        known = EtcdAccess(tuple(etcd.endpoints), ca.cert_pem.bytes(), cert, key, call_seconds=CALL_SECONDS)
        store = EtcdStore(known)
        without_certificate = EtcdStore(EtcdAccess(tuple(etcd.endpoints), ca.cert_pem.bytes()))

        assert await commit(store, batch(await store.acquire_epoch(), puts={"k": b"v"})) == 1
        with pytest.raises(Unavailable):
            await without_certificate.read()
        await without_certificate.close()
        await store.close()
