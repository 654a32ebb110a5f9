"""The CA is rotated while work runs: no node is dropped, and the old CA is not trusted afterwards."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.agent import dial
from rota.identity import certificates
from rota.identity.audit import AUDIT_FILE
from rota.identity.node_identity import NodeIdentity, Renewal, load_identity
from rota.identity.tokens import JoinLine
from rota.identity.watcher_identity import load_watcher
from rota.testing.cluster import LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from rota.wire.generated import agent_pb2, agent_pb2_grpc
from tests.machine import needs
from tests.system.test_results import REPORT
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
ROTATION = "/v1/ca/rotation"
PATIENT = {"ROTA_LOST_SECONDS": "60"}
QUICK = {"ROTA_LOST_SECONDS": "3"}


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes, which are suspect when their connections break, and lost after a minute."""
    with LocalCluster(tmp_path / "cluster", nodes=3, settings=PATIENT) as running:
        yield running


def rotation(cluster: LocalCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.call("GET", ROTATION).body
    return found


def started(cluster: LocalCluster, **body: Any) -> dict[str, Any]:
    answer = cluster.call("POST", ROTATION, body)
    assert answer.status == 201, answer.body
    return dict(answer.body)


def identity_of(cluster: LocalCluster, number: int) -> NodeIdentity:
    identity = load_identity(cluster.node_directory(number))
    assert identity is not None
    return identity


def all_renewed(cluster: LocalCluster) -> bool:
    found = rotation(cluster)
    return not found["dependents"] and all(
        identity_of(cluster, number).is_current for number in cluster.numbers
    )


def ready(cluster: LocalCluster) -> list[str]:
    nodes = cluster.call("GET", "/v1/nodes").body["nodes"]
    return [node["id"] for node in nodes if node["state"] == "ready"]


def kinds(cluster: LocalCluster) -> set[str]:
    return {event["kind"] for event in cluster.call("GET", "/v1/events?since=0.0&limit=1000").body["events"]}


@contextmanager
def agent_stub(cluster: LocalCluster, identity: NodeIdentity) -> Iterator[agent_pb2_grpc.AgentStub]:
    """A client that calls as the agent does, with its certificate."""
    credentials = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)
    options = [("grpc.ssl_target_name_override", dial.SERVER_NAME), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(cluster.agent, credentials, options) as channel:
        yield agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated


def renewal(cluster: LocalCluster, identity: NodeIdentity, *, follows: bool = True) -> agent_pb2.RenewReply:
    request = agent_pb2.RenewRequest(csr=Renewal(identity).request, follows=follows)
    with agent_stub(cluster, identity) as stub:
        reply: agent_pb2.RenewReply = stub.Renew(request, timeout=60)
    return reply


def test_a_rotation_disturbs_no_node_and_no_attempt(patient: LocalCluster, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    witness = Witness(tmp_path / "witness")
    report = f"{sys.executable} -c '{REPORT}' 0 '{{}}'"
    reporting = patient.submit("sh", "-c", f"{gate.wait}; {report}", results=True)
    working = patient.submit(*witness.script(gate.wait), count=3)
    witness.wait_for(3)
    until(lambda: patient.count(reporting, "running") == 1, "the other job runs")
    old = identity_of(patient, 1)
    old_server = patient.call("GET", "/v1/ca").body

    begun = started(patient)
    until(lambda: all_renewed(patient), "all nodes have certificates of the new CA")
    assert begun["phase"] == "overlap"
    assert [authority["signs"] for authority in begun["authorities"]] == [True, False]
    assert renewal(patient, old).certificate, "the old one is good for the overlap"
    finished = patient.call("POST", f"{ROTATION}/finish", {})
    assert finished.status == 200, finished.body
    assert [authority["fingerprint"] for authority in finished.body["retired"]] == [old_server["fingerprint"]]
    gate.open()
    for job in (reporting, working):
        assert patient.rota("wait", job).code == 0, "by the token that it was given before the rotation"

    assert not kinds(patient) & {"node.suspect", "node.lost", "node.left", "task.retried"}
    assert witness.starts() == {0: 1, 1: 1, 2: 1}
    assert patient.rota("logs", reporting).out == "[201]\n"
    with pytest.raises(grpc.RpcError) as refused:
        renewal(patient, old)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, "TLS refuses it"
    until(lambda: len(identity_of(patient, 1).bundle.roots) == 1, "nodes trust the old CA no more")
    assert patient.rota("run", "--quiet", "--", "echo", "well").out == "well\n"


def test_a_rotation_is_refused_during_another_and_cannot_finish_before_it_starts(
    shared: LocalCluster,
) -> None:
    early = shared.call("POST", f"{ROTATION}/finish", {})
    odd = shared.call("POST", ROTATION, {"overlap_seconds": "soon"})

    assert (early.status, odd.status) == (409, 400)
    assert rotation(shared)["phase"] == "stable"


def test_an_end_is_refused_while_a_node_depends_on_the_old_ca_and_forced(patient: LocalCluster) -> None:
    patient.kill_agent(3)
    started(patient)
    until(lambda: rotation(patient)["dependents"] == 1, "the others have renewed")

    again = patient.rota("ca", "rotate")
    refused = patient.rota("ca", "rotate", "--finish")
    shown = patient.rota("ca", "status").out
    forced = patient.rota("ca", "rotate", "--finish", "--force")
    patient.start_agent(3)
    until(lambda: "get a line with `rota node token`" in patient.agent_log(3), "its agent says what to do")

    assert again.code != 0
    assert "already in progress" in again.err
    assert refused.code != 0
    assert "needed by node node-3" in refused.err
    assert "node-3: certificate of the old CA" in shown
    assert (forced.code, "join again" in forced.err) == (0, True)
    audit = (patient.directory / "server" / AUDIT_FILE).read_text()
    assert f"{ROTATION}/finish" in audit
    assert "by force" in audit
    assert patient.node(1)["state"] == patient.node(2)["state"] == "ready"


def test_a_node_that_was_offline_returns_within_the_overlap_and_renews(patient: LocalCluster) -> None:
    patient.kill_agent(2)
    node = patient.node(2)["id"]
    started(patient)
    until(lambda: rotation(patient)["dependents"] == 1, "the others have renewed")
    patient.start_agent(2)

    until(lambda: all_renewed(patient), "it has renewed, too")

    assert patient.node(2)["id"] == node
    assert patient.call("POST", f"{ROTATION}/finish", {}).status == 200


def test_an_overlap_that_is_over_ends_when_all_that_are_connected_have_renewed(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=2, settings={"ROTA_LOST_SECONDS": "15"}) as cluster:
        cluster.kill_agent(2)
        started(cluster, overlap_seconds=0)

        until(lambda: rotation(cluster)["phase"] == "stable", "the rotation is finished by itself", 120)

        assert cluster.node(2)["state"] == "lost"
        assert cluster.node(1)["state"] == "ready"
        assert identity_of(cluster, 1).is_current


def test_replacing_a_leaked_key_ends_all_trust_immediately(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, settings=QUICK) as cluster:
        old, spent = identity_of(cluster, 1), cluster.join_line()
        ended = cluster.rota("ca", "rotate", "--now")
        with pytest.raises(grpc.RpcError) as refused:
            renewal(cluster, old)
        until(lambda: cluster.node(1)["state"] == "lost", "its certificate is worth nothing")
        until(lambda: "get a line with `rota node token`" in cluster.agent_log(1), "it is told what to do")
        cluster.kill_agent(1)
        cluster.start_agent(1, ROTA_JOIN=cluster.join_line())
        until(lambda: identity_of(cluster, 1).node_id != old.node_id, "it has joined again, as it was told")
        until(lambda: len(ready(cluster)) == 1, "it is ready")
        cluster.kill_agent(1)
        cluster.start_agent(1, ROTA_JOIN=spent)
        until(lambda: "keeping the identity" in cluster.agent_log(1), "a line that is spent does no harm")
        until(lambda: len(ready(cluster)) == 1, "it is ready again")

        assert (ended.code, "join again" in ended.err) == (0, True)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert rotation(cluster)["phase"] == "stable"


def test_a_join_line_made_before_the_rotation_is_valid_in_the_overlap(
    patient: LocalCluster, tmp_path: Path
) -> None:
    line = patient.join_line()
    started(patient)
    fingerprint = JoinLine.parse(line).fingerprint
    assert fingerprint != patient.call("GET", "/v1/ca").body["fingerprint"]
    patient.start_agent(4, join=line)

    until(lambda: patient.node(4).get("state") == "ready", "it has joined")

    assert identity_of(patient, 4).is_current
    assert len(identity_of(patient, 4).bundle.roots) == 2


def test_an_agent_without_rotation_support_stays_on_the_old_ca_and_delays_the_end(
    patient: LocalCluster,
) -> None:
    """It does not set `follows`: a certificate of a CA that it does not know would lock it out."""
    old = identity_of(patient, 1)
    started(patient)

    renewed = renewal(patient, old, follows=False)

    issuer = certificates.issuer_key_id(renewed.certificate)
    assert issuer == certificates.key_id_of(old.bundle.roots[0])


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_a_server_killed_in_a_rotation_continues_it(tmp_path: Path, store: str) -> None:
    settings = {**PATIENT, "ROTA_STORE": store}
    gate, witness = Gate(tmp_path / "gate"), Witness(tmp_path / "witness")
    with LocalCluster(tmp_path / "cluster", nodes=2, settings=settings) as cluster:
        job = cluster.submit(*witness.script(gate.wait), count=2)
        witness.wait_for(2)
        until(lambda: cluster.count(job, "running") == 2, "the server knows")
        started(cluster)
        cluster.kill_server()
        cluster.start_server()
        cluster.wait_for_nodes()
        until(lambda: all_renewed(cluster), "all nodes have renewed")
        assert cluster.call("POST", f"{ROTATION}/finish", {}).status == 200
        cluster.kill_server()
        cluster.start_server()
        cluster.wait_for_nodes()
        until(lambda: cluster.call("GET", f"/v1/jobs/{job}").status == 200, "the job is known: its seal is")
        gate.open()

        assert cluster.rota("wait", job).code == 0
        assert rotation(cluster)["phase"] == "stable"
        assert witness.starts() == {0: 1, 1: 1}
        assert "node.lost" not in kinds(cluster)


def test_a_backup_holds_both_authorities(patient: LocalCluster, tmp_path: Path) -> None:
    file, restored = str(tmp_path / "backup"), tmp_path / "restored"
    begun = started(patient)
    assert patient.rota("store", "backup", file).code == 0

    assert patient.rota("store", "restore", file, "--data-dir", str(restored)).code == 0

    ring = json.loads((restored / "ca" / "ca.json").read_text())
    assert ring["previous"] is not None
    assert ring["overlap_until_ms"] == begun["overlap_until_ms"]
    assert ring["current"]["certificate"] == (restored / "ca" / "ca.pem").read_text()


def test_watchers_follow_a_rotation_and_their_nodes_stay_ready(tmp_path: Path) -> None:
    gate, witness = Gate(tmp_path / "gate"), Witness(tmp_path / "witness")
    with LocalCluster(tmp_path / "cluster", nodes=0, settings=PATIENT) as cluster:
        address = cluster.start_watcher(1)
        for number in (1, 2):
            cluster.start_agent(number, ROTA_SERVER_ADDR=address)
        cluster.numbers = range(1, 3)
        cluster.wait_for_nodes()
        job = cluster.submit(*witness.script(gate.wait), count=2)
        witness.wait_for(2)
        started(cluster)
        until(lambda: all_renewed(cluster), "watcher and nodes have renewed", 120)
        finished = cluster.call("POST", f"{ROTATION}/finish", {})
        held = load_watcher(cluster.directory / "watcher-1")
        until(lambda: cluster.node(1)["state"] == cluster.node(2)["state"] == "ready", "all is well")
        gate.open()

        assert finished.status == 200, finished.body
        assert held is not None
        assert held.is_current
        assert cluster.rota("wait", job).code == 0
        assert witness.starts() == {0: 1, 1: 1}
        assert not kinds(cluster) & {"node.suspect", "node.lost"}


@needs("etcd")
def test_a_rotation_survives_a_fail_over_and_a_server_that_was_down(tmp_path: Path) -> None:
    gate, witness = Gate(tmp_path / "gate"), Witness(tmp_path / "witness")
    with LocalEtcd(tmp_path / "etcd") as etcd, Elected(tmp_path / "cluster", etcd) as cluster:
        job = cluster.submit(*witness.script(gate.wait), count=2)
        witness.wait_for(2)
        leader = cluster.wait_for_leader()
        standby, down = (number for number in cluster.addresses if number != leader)
        cluster.kill(down)
        started(cluster)
        cluster.kill(leader)
        assert cluster.wait_for_leader(other_than=leader) == standby
        cluster.wait_for_nodes()
        until(lambda: all_renewed(cluster), "all nodes have renewed", 120)
        assert cluster.call("POST", f"{ROTATION}/finish", {}).status == 200
        cluster.launch(down)
        cluster.launch(leader)
        until(lambda: cluster.status_of(down) and cluster.status_of(leader), "both are back")
        current = cluster.call("GET", "/v1/ca").body["fingerprint"]
        for number in (down, leader):
            until(
                lambda number=number: (
                    cluster.call_server(number, "GET", "/v1/ca").body["fingerprint"] == current
                ),  # type: ignore[misc]
                "each server has the new CA",
            )
        cluster.kill(standby)
        cluster.wait_for_leader(other_than=standby)
        cluster.wait_for_nodes()
        gate.open()

        assert cluster.rota("wait", job).code == 0
        assert witness.starts() == {0: 1, 1: 1}
        assert "node.lost" not in kinds(cluster)


class Elected(ElectedCluster):
    def __init__(self, directory: Path, etcd: LocalEtcd) -> None:
        super().__init__(directory, etcd, servers=3, nodes=2)
        self.environment["ROTA_LOST_SECONDS"] = "60"
