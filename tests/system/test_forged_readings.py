"""A node answers only what it was asked: its certificate gives no access to readings of another node."""

import contextlib
import io
import signal
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from rota.agent.dial import SERVER_NAME
from rota.identity.node_identity import NodeIdentity, load_identity
from rota.testing.cluster import LocalCluster
from rota.testing.processes import is_stopped, until
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system

FORGED = b"FORGED BY NODE 2"
SWEPT = 100  # readings: more than the server has opened by then
SWEEPS = 3


@pytest.fixture(params=["server", "watcher"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes, at the server or at a watcher; the agent of the second has ended."""
    with LocalCluster(tmp_path / "cluster", nodes=0) as running:
        address = running.agent if request.param == "server" else running.start_watcher(1)
        for number in (1, 2):
            running.start_agent(number, ROTA_SERVER_ADDR=address)
        running.wait_for_nodes()
        running.kill_agent(2)
        yield running


def address_of(cluster: LocalCluster) -> str:
    return cluster.watcher_addresses.get(1, cluster.agent)


@contextmanager
def as_node(address: str, identity: NodeIdentity) -> Iterator[pb_grpc.AgentStub]:
    """A client that calls as the agent does."""
    tls = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)
    options = (("grpc.ssl_target_name_override", SERVER_NAME),)
    with grpc.secure_channel(address, tls, options) as channel:
        yield pb_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated


def sweep(cluster: LocalCluster, payload: bytes) -> None:
    """Push the payload for every reading id that a counter would have reached, as the second node."""
    identity = load_identity(cluster.node_directory(2))
    assert identity is not None
    with as_node(address_of(cluster), identity) as stub:
        for number in range(1, SWEPT + 1):
            done = pb.LogChunk(code="done")
            chunks = iter((pb.LogChunk(id=number, code="begun", data=payload), done))
            with contextlib.suppress(grpc.RpcError):  # the server does not read to the end what it drops
                stub.PushLog(chunks, timeout=60)


def forged_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("result.txt")
        entry.size = len(FORGED)
        archive.addfile(entry, io.BytesIO(FORGED))
    return packed.getvalue()


def test_a_followed_log_holds_nothing_of_another_node(cluster: LocalCluster, gate: Gate) -> None:
    script = f"echo first; {gate.wait}; echo last"
    following = cluster.start_rota(
        "run", "-q", "--no-workdir", "--where", "number == 1", "--", "sh", "-c", script
    )
    assert following.stdout is not None
    first = following.stdout.readline()
    sweep(cluster, FORGED)
    gate.open()
    rest, _ = following.communicate(timeout=60)

    assert first + rest == b"first\nlast\n"


def test_outputs_hold_nothing_of_another_node(cluster: LocalCluster, tmp_path: Path) -> None:
    job = cluster.submit("sh", "-c", "echo mine > $ROTA_OUTPUT_DIR/result.txt", where="number == 1")
    until(lambda: cluster.count(job, "succeeded") == 1, "it has left its output")
    into = tmp_path / "fetched"
    fetching = threading.Thread(target=lambda: cluster.rota("get", job, "--into", str(into)))
    agent = cluster.agent_pid(1)
    cluster.signal_agent(1, signal.SIGSTOP)  # so that the forged bytes come first
    try:
        until(lambda: is_stopped(agent), "the first node is silent")
        fetching.start()
        for _ in range(SWEEPS):
            sweep(cluster, forged_tar())
    finally:
        cluster.signal_agent(1, signal.SIGCONT)
    fetching.join(60)

    assert [path.read_bytes() for path in into.rglob("result.txt")] == [b"mine\n"]
