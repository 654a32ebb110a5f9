"""The gRPC and agent ports of a server that never leads, for clients that know no other server."""

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from rota.identity.node_identity import load_identity
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from rota.wire.generated import controller_pb2 as pb
from rota.wire.generated import controller_pb2_grpc
from tests.machine import needs
from tests.system.test_gateway import Foreign
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(900)]
PATIENCE_SECONDS = 120
NEVER = 3  # the server that never leads
GATEWAY = {"ROTA_WORKER_GATEWAY_ENABLED": "true", "ROTA_LOST_SECONDS": "15"}
JOB_ENDED = "job.ended"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElectedCluster]:
    directory = tmp_path_factory.mktemp("ports")
    with (
        LocalEtcd(directory / "etcd", 1) as etcd,
        ElectedCluster(directory / "cluster", etcd, never_lead=(NEVER,), settings=GATEWAY) as running,
    ):
        yield running


class Controller:
    """A client of the generated stub that knows the server that never leads, and no other."""

    def __init__(self, cluster: ElectedCluster) -> None:
        self._channel = grpc.insecure_channel(cluster.addresses[NEVER].grpc)
        self.stub = controller_pb2_grpc.ControllerStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self.metadata = (("authorization", f"Bearer {cluster.token}"),)

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def schedule(self, *command: str, key: str = "", **spec: Any) -> Any:
        body = json.dumps({**spec, "command": command})
        request = pb.ScheduleRequest(spec_json=body, logs=True, idempotency_key=key)
        return self.stub.Schedule(request, metadata=self.metadata, timeout=PATIENCE_SECONDS)

    def watch(self, **request: Any) -> Any:
        return self.stub.Watch(pb.WatchRequest(**request), metadata=self.metadata, timeout=PATIENCE_SECONDS)


class Load:
    """Schedules one job after the other, each to its end; repeats a call on UNAVAILABLE alone."""

    def __init__(self, controller: Controller) -> None:
        self.ended: dict[str, str] = {}  # job by key
        self.broken = 0
        self.failed: list[grpc.RpcError] = []
        self._controller = controller
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def go_on(self) -> None:
        known = len(self.ended)
        until(lambda: self.failed or len(self.ended) > known + 3, "jobs come through", PATIENCE_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set() and not self.failed:
            key = f"load-{len(self.ended)}"
            try:
                stages = list(self._controller.schedule("echo", key, key=key, name=key))
            except grpc.RpcError as error:
                self.broken += 1
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    self.failed.append(error)
                continue
            assert stages[-1].stage.state == "succeeded"
            self.ended[key] = stages[-1].job


def test_a_controller_has_every_kind_of_call_through_a_standby(cluster: ElectedCluster) -> None:
    with Controller(cluster) as controller:
        watching = controller.watch(subscriber="books")
        stages = list(controller.schedule("sh", "-c", "echo out; exit 3"))
        job = stages[-1].job
        seen = next(event for batch in watching for event in batch.events if event.kind == JOB_ENDED)
        acknowledge = pb.AcknowledgeRequest(subscriber="books", sequence=seen.sequence)
        controller.stub.Acknowledge(acknowledge, metadata=controller.metadata)
        requests = [pb.BulkRequest(id="a", schedule=pb.BulkJob(spec_json='{"command": ["true"]}'))]
        bulk = list(controller.stub.ScheduleMany(iter(requests), metadata=controller.metadata))
        watching.cancel()

    assert [part.log.data for part in stages if part.WhichOneof("what") == "log"] == [b"out\n"]
    assert (stages[-1].stage.state, stages[-1].stage.exit_code) == ("failed", 3)
    assert (seen.job, [reply.id for reply in bulk]) == (job, ["a"])


def test_a_refusal_of_the_leader_is_the_callers_answer(cluster: ElectedCluster) -> None:
    with Controller(cluster) as controller:
        with pytest.raises(grpc.RpcError) as bad:
            list(controller.schedule("true", cpu=-1))
        controller.metadata = (("authorization", "Bearer rota_wrong"),)
        with pytest.raises(grpc.RpcError) as stranger:
            list(controller.schedule("true"))

    assert bad.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "rota-field" in {pair.key for pair in bad.value.trailing_metadata()}
    assert stranger.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_node_cannot_call_what_standbys_forward(cluster: ElectedCluster) -> None:
    identity = load_identity(cluster.node_directory(1))
    assert identity is not None
    leader = cluster.addresses[cluster.wait_for_leader()]
    credentials = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)
    options = [("grpc.ssl_target_name_override", "rota-server")]
    metadata = (("authorization", f"Bearer {cluster.token}"), ("rota-forwarded", "1"))
    with grpc.secure_channel(leader.agent, credentials, options) as channel:
        register: Any = channel.unary_unary("/jobscheduler.Scheduler/RegisterWorker")
        state: Any = channel.unary_stream("/rota.v1.Controller/State")
        refused = []
        for call in (lambda: register(b"", metadata=metadata), lambda: list(state(b"", metadata=metadata))):
            with pytest.raises(grpc.RpcError) as refusal:
                call()
            refused.append(refusal.value.code())

    assert refused == [grpc.StatusCode.PERMISSION_DENIED] * 2


def test_a_leader_killed_under_load_costs_a_controller_at_most_a_repeated_call(
    cluster: ElectedCluster, tmp_path: Path
) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    with Controller(cluster) as controller:
        long = controller.schedule(*witness.script(gate.wait), count=4, key="long")
        job = next(long).job
        witness.wait_for(4)
        with Load(controller) as load:
            load.go_on()
            leader = cluster.wait_for_leader()
            cluster.kill(leader)
            with pytest.raises(grpc.RpcError) as broken:
                list(long)
            cluster.wait_for_leader(other_than=leader)
            load.go_on()
        cluster.launch(leader)
        gate.open()
        ended = list(controller.schedule(*witness.script(gate.wait), count=4, key="long"))[-1]
    jobs = cluster.call("GET", "/v1/jobs?limit=1000").body["jobs"]

    assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    assert load.failed == []
    assert (ended.job, ended.stage.state) == (job, "succeeded")
    assert witness.starts() == dict.fromkeys(range(4), 1)
    assert Counter(job["name"] for job in jobs if job["name"] in load.ended) == dict.fromkeys(load.ended, 1)


def test_calls_leave_a_frozen_leader_for_the_next_one(cluster: ElectedCluster) -> None:
    leader = cluster.wait_for_leader()
    with Controller(cluster) as controller:
        watching = controller.watch()
        stages = list(controller.schedule("true"))
        assert any(event.job == stages[-1].job for event in next(watching).events)
        with cluster.paused(leader):
            with pytest.raises(grpc.RpcError) as left:
                list(watching)
            then = list(controller.schedule("true", key="after"))

    assert left.value.code() is grpc.StatusCode.UNAVAILABLE
    assert then[-1].stage.state == "succeeded"


def test_a_call_that_waits_for_a_leader_reaches_the_next_one(cluster: ElectedCluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.kill(leader)
    with Controller(cluster) as controller:
        stages = [0]

        def succeeds() -> bool:
            """Calls may go to the killed server until the standby notices."""
            stages[0] += 1
            with contextlib.suppress(grpc.RpcError):
                return bool(list(controller.schedule("true", key="patient"))[-1].stage.state == "succeeded")
            return False

        until(succeeds, "it reaches the next leader", PATIENCE_SECONDS)
    cluster.launch(leader)

    assert stages[0] <= 3, "a call is answered by the next leader, not refused until there is one"


def test_an_agent_connected_to_a_standby_survives_the_leader(cluster: ElectedCluster, tmp_path: Path) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    cluster.wait_for_leader()
    cluster.start_agent(3, ROTA_SERVER_ADDR=cluster.addresses[NEVER].agent)
    cluster.wait_for_nodes()
    agent = psutil.Process(cluster.agent_pid(3))
    port = int(cluster.addresses[NEVER].agent.rpartition(":")[2])
    connected = [
        connection.raddr.port
        for connection in agent.net_connections()
        if connection.status == psutil.CONN_ESTABLISHED
    ]
    job = cluster.submit(*witness.script(f"{gate.wait}; echo done"), count=2, where=["number == 3"])
    witness.wait_for(2)
    leader = cluster.wait_for_leader()
    cluster.kill(leader)
    cluster.wait_for_leader(other_than=leader)
    cluster.launch(leader)
    gate.open()
    until(lambda: cluster.count(job, "succeeded") == 2, "both have ended", PATIENCE_SECONDS)
    output = cluster.rota("logs", job, ROTA_ADDR=cluster.addr, ROTA_TOKEN=cluster.token)

    assert connected == [port]
    assert witness.starts() == {0: 1, 1: 1}
    assert output.out.count("done\n") == 2
    cluster.wait_for_nodes()


def test_a_worker_registers_and_deregisters_through_a_standby(cluster: ElectedCluster, stubs: Path) -> None:
    cluster.wait_for_leader()
    worker = Foreign(cluster.addresses[NEVER].grpc, stubs)
    try:
        worker.greet()

        def node() -> Any:
            nodes = cluster.call("GET", "/v1/nodes").body["nodes"]
            return next((node for node in nodes if node["name"].endswith(f"-{worker.port}")), {})

        until(lambda: node().get("state") == "ready", "it is a node", PATIENCE_SECONDS)
        leader = cluster.wait_for_leader()
        cluster.kill(leader)
        cluster.wait_for_leader(other_than=leader)
        cluster.launch(leader)
        until(lambda: node().get("state") == "ready", "the next leader dials it", PATIENCE_SECONDS)
        job = cluster.submit("echo hello", on=node()["name"])
        until(lambda: cluster.count(job, "succeeded") == 1, "it has run", PATIENCE_SECONDS)
        worker.say("deregister")

        assert worker.printed("deregistered") == "True"
        until(lambda: node()["state"] == "left", "it has left", PATIENCE_SECONDS)
    finally:
        worker.close()
