"""Join tokens are listed without their secrets, revoked before they are used, and limited to addresses."""

import json
from pathlib import Path
from typing import Any

import pytest

from rota.agent.join import join
from rota.identity.tokens import JoinLine
from rota.model.errors import NotAllowed
from rota.testing.cluster import LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from tests.machine import needs

pytestmark = pytest.mark.system


def made(cluster: LocalCluster, **wishes: Any) -> dict[str, Any]:
    answer = cluster.call("POST", "/v1/join-tokens", {"local": True, **wishes})
    assert answer.status == 201, answer
    return dict(answer.body)


def line_of(token: dict[str, Any]) -> JoinLine:
    return JoinLine.parse(str(token["line"]).split("'")[1])


def listed(cluster: LocalCluster) -> dict[str, dict[str, Any]]:
    answer = cluster.rota("node", "token", "ls", "-o", "json")
    assert answer.code == 0, answer.err
    return {token["id"]: token for token in json.loads(answer.out)["join_tokens"]}


def test_join_tokens_are_listed_by_id_with_their_state(shared: LocalCluster, tmp_path: Path) -> None:
    waiting = made(shared, labels={"pool": "prod"}, addresses=["10.0.0.0/8"])
    spent = made(shared)
    node = join(line_of(spent), tmp_path / "spent", "spent", {}).identity.node_id
    found = listed(shared)
    table = shared.rota("node", "token", "ls")

    assert found[waiting["id"]]["state"] == "open"
    assert found[waiting["id"]]["labels"] == {"pool": "prod"}
    assert found[waiting["id"]]["addresses"] == ["10.0.0.0/8"]
    assert (found[spent["id"]]["state"], found[spent["id"]]["used_by"]) == ("used", node)
    assert waiting["token"] not in table.out + json.dumps(found)
    assert waiting["id"] in table.out


def test_a_revoked_join_token_is_refused(shared: LocalCluster, tmp_path: Path) -> None:
    token = made(shared)
    revoked = shared.rota("node", "token", "revoke", token["id"])
    with pytest.raises(NotAllowed, match="join token was revoked"):
        join(line_of(token), tmp_path / "late", "late", {})
    again = shared.rota("node", "token", "revoke", token["id"])
    unknown = shared.rota("node", "token", "revoke", "0" * 16)

    assert (revoked.code, again.code, unknown.code) == (0, 0, 4), (revoked.err, again.err, unknown.err)
    assert listed(shared)[token["id"]]["state"] == "revoked"
    audit = (shared.directory / "server" / "audit.log").read_text()
    assert '"action":"revoke_join_token"' in audit


def test_a_used_join_token_cannot_be_revoked_and_the_remedy_is_named(
    shared: LocalCluster, tmp_path: Path
) -> None:
    token = made(shared)
    join(line_of(token), tmp_path / "used", "used", {})
    revoked = shared.rota("node", "token", "revoke", token["id"])

    assert revoked.code != 0
    assert "rota node revoke" in revoked.err


def test_a_join_token_is_valid_from_its_addresses_only(shared: LocalCluster, tmp_path: Path) -> None:
    elsewhere, here = (
        made(shared, addresses=["10.0.0.0/8", "fd00::/8"]),
        made(shared, addresses=["127.0.0.1"]),
    )
    with pytest.raises(NotAllowed, match=r"not for 127\.0\.0\.1"):
        join(line_of(elsewhere), tmp_path / "elsewhere", "elsewhere", {})
    joined = join(line_of(here), tmp_path / "here", "here", {})

    assert joined.identity.node_id
    assert listed(shared)[elsewhere["id"]]["state"] == "open"


@pytest.mark.parametrize("addresses", ["10.0.0.0/8", ["10.0.0.0/33"], ["ten"], [1], ["10.0.0.0/8"] * 17])
def test_invalid_addresses_are_refused(shared: LocalCluster, addresses: object) -> None:
    answer = shared.call("POST", "/v1/join-tokens", {"local": True, "addresses": addresses})

    assert (answer.status, answer.body["field"]) == (400, "addresses")


@needs("etcd")
@pytest.mark.timeout(600)
def test_addresses_are_checked_also_through_a_standby(tmp_path: Path) -> None:
    """The leader believes a standby, and no header that a caller writes itself."""
    with (
        LocalEtcd(tmp_path / "etcd") as etcd,
        ElectedCluster(tmp_path / "cluster", etcd, servers=2, nodes=0) as cluster,
    ):
        leader = cluster.wait_for_leader()
        [standby] = [number for number in cluster.addresses if number != leader]
        host, _, port = cluster.addresses[standby].http.rpartition(":")
        elsewhere, here = made(cluster, addresses=["10.0.0.0/8"]), made(cluster, addresses=["127.0.0.0/8"])
        lines = [
            JoinLine(host, int(port), line_of(one).token, line_of(one).fingerprint)
            for one in (elsewhere, here)
        ]
        with pytest.raises(NotAllowed, match=r"not for 127\.0\.0\.1"):
            join(lines[0], tmp_path / "elsewhere", "elsewhere", {})
        body = {"token": lines[0].token, "csr": "x", "name": "forged"}
        forged = [
            cluster.call_server(number, "POST", "/v1/enroll", body, **{"rota-origin": "10.1.1.1 " + "0" * 64})
            for number in cluster.addresses
        ]
        joined = join(lines[1], tmp_path / "here", "here", {})

        assert [answer.status for answer in forged] == [403, 403]
        assert joined.identity.node_id
