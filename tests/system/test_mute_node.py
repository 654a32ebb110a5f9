"""A connected node does not answer an offer: the task is placed on another one after a minute."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rota.agent.dial import SERVER_NAME
from rota.agent.join import join
from rota.identity.tokens import JoinLine
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

pytestmark = pytest.mark.system
BEAT_SECONDS = 2.0
SECONDS = 150  # the offer times out after 60 s, detected within 10 s


class Mute:
    """A node's agent that says hello, sends heartbeats, and answers no offer."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        identity = join(JoinLine.parse(cluster.join_line()), directory, "mute", {}).identity
        tls = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)
        self._channel = grpc.secure_channel(
            cluster.agent, tls, (("grpc.ssl_target_name_override", SERVER_NAME),)
        )
        self._over = threading.Event()
        self._listening = threading.Thread(target=self._listen)
        self.offers = 0

    def __enter__(self) -> "Mute":
        self._listening.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._channel.close()
        self._listening.join()

    def _says(self) -> Iterator[pb.FromNode]:
        capacity = {"cpu": 64_000, "memory": 1 << 40}
        hello = pb.Hello(machine_id="mute", boot_id="1", version="0", protocol=1, capacity=capacity)
        yield pb.FromNode(n=1, hello=hello)
        n = 1
        while not self._over.wait(BEAT_SECONDS):
            n += 1
            yield pb.FromNode(n=n, beat=pb.Beat())

    def _listen(self) -> None:
        stub = pb_grpc.AgentStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        with contextlib.suppress(grpc.RpcError, ValueError):  # the channel is closed at the end
            for message in stub.Connect(self._says()):
                self.offers += sum(len(order.start_index) for order in message.orders.jobs)


def test_an_unanswered_offer_is_placed_on_another_node(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster, Mute(cluster, tmp_path / "mute") as mute:
        until(lambda: cluster.call("GET", "/v1/nodes/mute").body["state"] == "ready", "it is there")
        job = cluster.submit("true", prefer=["node == mute weight 100"])
        until(lambda: mute.offers == 1, "it hears of the offer")

        until(lambda: cluster.count(job, "succeeded") == 1, "another node has run it", SECONDS)

        events = cluster.call("GET", f"/v1/events?job={job}").body["events"]
        ends = [event for event in events if event["kind"] == "task.ended"]
        placed_ms = next(event["at_ms"] for event in events if event["kind"] == "task.placed")
        assert [event["state"] for event in ends] == ["refused", "succeeded"]
        assert "on mute: its node did not answer the offer in 60 s" in ends[0]["why"]
        assert 60_000 <= ends[0]["at_ms"] - placed_ms <= 80_000
