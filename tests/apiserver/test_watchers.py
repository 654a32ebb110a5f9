"""Watchers join by tokens of their own, are listed, and are refused once they are removed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rota.identity import certificates
from rota.identity.errors import IdentityRefused
from rota.identity.node_identity import make_request
from rota.identity.tokens import Role
from rota.identity.watcher_identity import WatcherRequest, load_watcher, store_watcher
from rota.store.memory import MemoryStore
from tests.apiserver.serving import serving


async def test_a_watcher_joins_with_a_token_of_its_role_alone(tmp_path: Path) -> None:
    watcher_request = WatcherRequest()
    async with serving(tmp_path, MemoryStore) as server:
        made = await server.call("POST", "/v1/join-tokens", {"local": True, "role": "watcher"})
        body: dict[str, Any] = {
            "token": made.json["token"],
            "name": "edge",
            "csr": watcher_request.request.decode(),
        }
        as_node = await server.call("POST", "/v1/enroll", body, Authorization="")
        odd = await server.call("POST", "/v1/enroll", {**body, "role": "king"}, Authorization="")
        joined = await server.call("POST", "/v1/enroll", {**body, "role": "watcher"}, Authorization="")
        again = await server.call("POST", "/v1/enroll", {**body, "role": "watcher"}, Authorization="")
        nodes = await server.call("GET", "/v1/nodes")
        may_watch = server.api.vault.has_watcher(joined.json["node_id"])
    identity = watcher_request.accept(
        joined.json["certificate"].encode(), joined.json["ca"].encode(), datetime.now(UTC)
    )
    store_watcher(tmp_path / "watcher", identity)

    assert made.json["line"].startswith("rota watcher --join 'rota://")
    assert (as_node.status, as_node.json["hint"]) == (403, "this one is for `rota watcher`")
    assert (odd.status, odd.json["field"]) == (400, "role")
    assert (joined.status, again.status) == (201, 403)
    assert nodes.json["nodes"] == []
    assert (identity.watcher_id, may_watch) == (joined.json["node_id"], True)
    assert load_watcher(tmp_path / "watcher") == identity


async def test_a_watchers_certificate_names_no_node_and_no_host(tmp_path: Path) -> None:
    watcher_request = WatcherRequest()
    async with serving(tmp_path, MemoryStore) as server:
        signed = server.api.authority.sign_watcher(watcher_request.request, "w1", datetime.now(UTC))
        node = server.api.authority.sign_node(make_request(tmp_path / "node"), "n1", "one", datetime.now(UTC))

    assert certificates.watcher_id_of(signed) == "w1"
    assert not certificates.is_server(signed)
    with pytest.raises(IdentityRefused, match="not a node's certificate"):
        certificates.node_id_of(signed)
    assert certificates.watcher_id_of(node) is None


async def test_a_removed_watcher_is_no_longer_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        made = await server.call("POST", "/v1/join-tokens", {"local": True, "role": "watcher"})
        csr = WatcherRequest().request.decode()
        body = {"token": made.json["token"], "name": "edge", "csr": csr, "role": "watcher"}
        joined = await server.call("POST", "/v1/enroll", body, Authorization="")
        listed = await server.call("GET", "/v1/watchers")
        stranger = await server.call(
            "DELETE", "/v1/watchers/edge", Authorization=server.token_for(Role.SUBMITTER, "*")
        )
        removed = await server.call("DELETE", "/v1/watchers/edge")
        again = await server.call("DELETE", "/v1/watchers/edge")
        may_watch = server.api.vault.has_watcher(joined.json["node_id"])

    assert [(watcher["id"], watcher["name"]) for watcher in listed.json["watchers"]] == [
        (joined.json["node_id"], "edge")
    ]
    assert (stranger.status, removed.status, again.status) == (403, 204, 404)
    assert not may_watch
