"""A node that sends an invalid message is refused with the field; the server and other nodes continue."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.agent.dial import SERVER_NAME
from rota.agent.join import join
from rota.identity.node_identity import NodeIdentity
from rota.identity.tokens import JoinLine
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

pytestmark = pytest.mark.system

LEAVES = pb.Drain(reason="x", within_ms=2**64 - 1, moves=True)
CLAIM: dict[str, Any] = {
    "job": "1",
    "index": [0],
    "attempt": [1],
    "said": [5],
    "exit_code": [0],
    "signal": [0],
    "started_at_ms": [0],
    "ended_at_ms": [0],
    "ran_us": [0],
    "cpu_us": [0],
    "peak_kib": [0],
}


@pytest.fixture(scope="module")
def hostile(shared: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> NodeIdentity:
    """The identity of a node that has joined, without an agent."""
    directory: Path = tmp_path_factory.mktemp("hostile")
    return join(JoinLine.parse(shared.join_line()), directory, "hostile", {}).identity


def status_after(
    cluster: LocalCluster, identity: NodeIdentity, hello: pb.Hello, *messages: pb.FromNode
) -> grpc.RpcError:
    """The status with which the server ends the call after this message."""

    def speaks() -> Iterator[pb.FromNode]:
        yield pb.FromNode(n=1, hello=hello)
        for n, message in enumerate(messages, 2):
            message.n = n
            yield message

    tls = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)
    options = (("grpc.ssl_target_name_override", SERVER_NAME),)
    with grpc.secure_channel(cluster.agent, tls, options) as channel:
        stub = pb_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
        with pytest.raises(grpc.RpcError) as ended:
            list(stub.Connect(speaks(), timeout=60))
    return ended.value


def hello(**fields: Any) -> pb.Hello:
    defaults = {"machine_id": "m", "boot_id": f"{time.time_ns()}", "version": "0", "protocol": 1}
    return pb.Hello(**{**defaults, "capacity": {"cpu": 1000}, **fields})


def works(cluster: LocalCluster) -> None:
    job = cluster.submit("true", where="number == 1")
    until(lambda: cluster.call("GET", f"/v1/jobs/{job}").body["state"] == "succeeded", "another job ends")


@pytest.mark.parametrize(
    ("hello_fields", "field"),
    [
        ({"drain": LEAVES}, "hello.drain.within_ms"),
        ({"capacity": {"tasks": 5}}, "hello.capacity"),
        ({"capacity": {"cpu": -(2**63)}}, "hello.capacity.cpu"),
        ({"labels": {"a\u202eb": "x"}}, "hello.labels"),
        ({"epoch_seen": 2**64 - 2}, "hello.epoch_seen"),
        ({"inventory": [pb.JobClaims(job="1", index=[0])]}, "hello.inventory[0].attempt"),
    ],
)
def test_an_invalid_hello_is_refused(
    shared: LocalCluster, hostile: NodeIdentity, hello_fields: dict[str, Any], field: str
) -> None:
    refused = status_after(shared, hostile, hello(**hello_fields))

    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.details()
    assert (refused.details() or "").startswith(f"{field}: ")
    works(shared)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.FromNode(drain=LEAVES), "drain.within_ms"),
        (
            pb.FromNode(report=pb.Report(jobs=[pb.JobClaims(**CLAIM | {"ran_us": [2**63 - 1]})])),
            "report.jobs[0].ran_us",
        ),
        (
            pb.FromNode(report=pb.Report(jobs=[pb.JobClaims(**CLAIM, reasons={9: "x"})])),
            "report.jobs[0].reasons",
        ),
        (pb.FromNode(beat=pb.Beat(load=pb.Load(memory_free=-(2**63)))), "beat.load.memory_free"),
    ],
)
def test_an_invalid_message_ends_the_call(
    shared: LocalCluster, hostile: NodeIdentity, message: pb.FromNode, field: str
) -> None:
    refused = status_after(shared, hostile, hello(), message)

    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.details()
    assert (refused.details() or "").startswith(f"{field}: ")
    works(shared)


def test_a_repeated_invalid_message_is_logged_once(shared: LocalCluster, hostile: NodeIdentity) -> None:
    for _ in range(3):
        status_after(shared, hostile, hello(version="x" * 65))

    log = (shared.directory / "server.log").read_text()
    assert log.count("hello.version") == 1


def test_an_implausible_epoch_is_never_offered_for_acceptance(
    shared: LocalCluster, hostile: NodeIdentity
) -> None:
    refused = status_after(shared, hostile, hello(epoch_seen=2**63 - 3))
    accepted = shared.rota("store", "accept")

    assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "rota node revoke" in (refused.details() or "")
    assert "rota store accept" not in (refused.details() or "")
    assert accepted.code == 1
    works(shared)
