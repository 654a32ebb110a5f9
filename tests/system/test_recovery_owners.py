"""Every loss goes to the recovery owner of the job: nodes that leave, drains, dead keepers, lost nodes."""

import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wire.generated import controller_pb2 as pb
from rota.wire.generated import controller_pb2_grpc
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
SECONDS = 120
NAME = "ci"
ENDS = {"scheduler": "running", "controller": "unresolved", "cancel": "canceled", "none": "lost"}
MODES = [
    pytest.param(("at_least_once", "at_most_once"), id="without leases"),
    pytest.param(("one_at_a_time",), marks=needs("own pid namespaces"), id="under leases"),
]
LEASE = {"lease": "5s", "lease_margin": "1s"}


class Controller:
    """An external controller made from controller.proto alone: it watches, and answers when asked to."""

    def __init__(self, cluster: LocalCluster, name: str = NAME) -> None:
        self.name = name
        self._channel = grpc.insecure_channel(cluster.grpc, [("grpc.max_reconnect_backoff_ms", 200)])
        self._stub = controller_pb2_grpc.ControllerStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._metadata = (("authorization", f"Bearer {cluster.token}"),)
        self._events: queue.Queue[pb.Event] = queue.Queue()
        self._watching: Any = None

    def watch(self) -> None:
        """Wait until the server counts this controller as connected."""
        request = pb.WatchRequest(subscriber=self.name)
        self._watching = self._stub.Watch(request, metadata=self._metadata, wait_for_ready=True)
        self._watching.initial_metadata()
        threading.Thread(target=self._listen, args=(self._watching,), daemon=True).start()

    def _listen(self, watching: Any) -> None:
        try:
            for batch in watching:
                for event in batch.events:
                    self._events.put(event)
        except grpc.RpcError:
            return

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._channel.close()

    def next(self, kind: str, **fields: str) -> pb.Event:
        """The next event of this kind; others are skipped."""
        while True:
            event = self._events.get(timeout=SECONDS)
            if event.kind == kind and all(getattr(event, name) == value for name, value in fields.items()):
                return event

    def schedule(self, command: list[str], **spec: Any) -> str:
        request = pb.ScheduleRequest(spec_json=json.dumps({**spec, "command": command, "cpu": 0.1}))
        stages = self._stub.Schedule(request, metadata=self._metadata, timeout=SECONDS, wait_for_ready=True)
        job = str(next(stages).job)
        stages.cancel()
        return job

    def resolve(self, event: pb.Event, word: str) -> None:
        request = pb.ResolveRequest(
            subscriber=self.name,
            job=event.job,
            first_index=event.first_index,
            last_index=event.last_index,
            attempt=event.attempt,
            word=word,
        )
        self._stub.Resolve(request, metadata=self._metadata, timeout=SECONDS)

    def acknowledge(self, sequence: str) -> None:
        request = pb.AcknowledgeRequest(subscriber=self.name, sequence=sequence)
        self._stub.Acknowledge(request, metadata=self._metadata, timeout=SECONDS)


Connect = Callable[[LocalCluster], Controller]
Lose = Callable[[LocalCluster], None]


@pytest.fixture
def controllers() -> Iterator[Connect]:
    opened: list[Controller] = []

    def connect(cluster: LocalCluster) -> Controller:
        opened.append(Controller(cluster))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


class Work:
    """A running job of one task for each owner and run mode."""

    def __init__(self, controller: Controller, directory: Path, gate: Gate, modes: tuple[str, ...]) -> None:
        names = [(owner, run) for owner in ENDS for run in modes]
        self.witnesses = {name: Witness(directory / "-".join(name)) for name in names}
        self.jobs = {}
        for (owner, run), witness in self.witnesses.items():
            spec: dict[str, Any] = {"recovery": owner, "run": run, "grace": "1s", "retries": 0}
            spec |= {"controller": NAME} if owner == "controller" else {}
            spec |= LEASE if run == "one_at_a_time" else {}
            self.jobs[owner, run] = controller.schedule(witness.script(gate.wait), **spec)
        for witness in self.witnesses.values():
            witness.wait_for(1)


def interrupted(cluster: LocalCluster) -> None:
    assert cluster.kill_agent(1, signal.SIGINT) == 0


def terminated(cluster: LocalCluster) -> None:
    assert cluster.kill_agent(1, signal.SIGTERM) == 0


def drained_by_an_operator(cluster: LocalCluster) -> None:
    assert cluster.rota("node", "drain", "node-1", "--force").code == 0


def keeper_killed(cluster: LocalCluster) -> None:
    """The node's agent starts another keeper, which must not run the lost task."""
    assert cluster.rota("node", "cordon", "node-1").code == 0
    keepers = [pid for pid in cluster.keepers() if f"{cluster.node_directory(1)}" in argument_of(pid)]
    assert len(keepers) == 1
    os.kill(keepers[0], signal.SIGKILL)


def argument_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def node_lost(cluster: LocalCluster) -> None:
    cluster.kill_node(1)


DRAINING = {"ROTA_DRAIN": "1s"}
LOSSES: dict[str, tuple[Lose, Mapping[str, str]]] = {
    "SIGINT": (interrupted, {}),
    "SIGTERM": (terminated, {}),
    "the end of the agent's drain time": (terminated, DRAINING),
    "the end of an operator's drain": (drained_by_an_operator, {}),
    "a dead keeper": (keeper_killed, {}),
    "a lost node": (node_lost, {"ROTA_LOST_SECONDS": "5"}),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("modes", MODES)
def test_each_loss_goes_to_the_owner_of_the_job(
    tmp_path: Path, controllers: Connect, gate: Gate, loss: str, modes: tuple[str, ...]
) -> None:
    lose, settings = LOSSES[loss]
    with LocalCluster(tmp_path / "c", nodes=1, settings=settings) as cluster:
        controller = controllers(cluster)
        controller.watch()
        work = Work(controller, tmp_path, gate, modes)
        cluster.start_agent(2)
        cluster.wait_for_nodes()

        lose(cluster)

        for (owner, run), job in work.jobs.items():
            state = "lost" if run == "at_most_once" else ENDS[owner]
            what = f"the task of {owner}, {run}, is {state}"
            until(lambda: cluster.count(job, state) == 1, what, SECONDS)  # noqa: B023  # called before the next
        for name, job in work.jobs.items():
            if name[0] == "controller" and name[1] != "at_most_once":
                unresolved = controller.next("task.unresolved", job=job)
                assert work.witnesses[name].starts() == {0: 1}, "nothing is placed before the answer"
                controller.resolve(unresolved, "again")
        for (owner, run), witness in work.witnesses.items():
            is_moved = owner in ("scheduler", "controller") and run != "at_most_once"
            witness.wait_for(2 if is_moved else 1)
        gate.open()
        for name, job in work.jobs.items():
            cluster.rota("wait", job)
            is_moved = name[0] in ("scheduler", "controller") and name[1] != "at_most_once"
            assert work.witnesses[name].starts() == {0: 2 if is_moved else 1}, name


def test_jobs_of_a_connected_controller_are_recovered_by_it_by_default(
    tmp_path: Path, controllers: Connect, witness: Witness, gate: Gate
) -> None:
    with LocalCluster(tmp_path / "c", nodes=1) as cluster:
        controller = controllers(cluster)
        before = controller.schedule(["true"])
        controller.watch()
        job = controller.schedule(witness.script(gate.wait), grace="1s")
        witness.wait_for(1)

        assert cluster.call("GET", f"/v1/jobs/{before}").body["spec"]["recovery"] == "scheduler"
        assert cluster.call("GET", f"/v1/jobs/{job}").body["spec"]["recovery"] == "controller"
        terminated(cluster)
        controller.resolve(controller.next("task.unresolved", job=job), "lost")
        until(lambda: cluster.count(job, "lost") == 1, "it has ended as its controller says")
        assert witness.starts() == {0: 1}


def test_a_leave_is_reported_until_the_controller_answers_also_by_the_next_server(
    tmp_path: Path, controllers: Connect, witness: Witness, gate: Gate
) -> None:
    with LocalCluster(tmp_path / "c", nodes=1) as cluster:
        controller = controllers(cluster)
        controller.watch()
        named = {"recovery": "controller", "controller": NAME}
        job = controller.schedule(witness.script(gate.wait), grace="1s", **named)
        witness.wait_for(1)
        cluster.start_agent(2)
        cluster.wait_for_nodes()

        terminated(cluster)

        first = controller.next("task.unresolved", job=job)
        assert f"task 0 of job {job} was stopped on node-1" in first.why
        cluster.kill_server()
        cluster.start_server()
        controller = controllers(cluster)
        controller.watch()
        again = controller.next("task.unresolved", job=job)
        while "told" not in again.why:  # the first one is replayed, because it was not acknowledged
            again = controller.next("task.unresolved", job=job)
        assert witness.starts() == {0: 1}
        controller.resolve(again, "fail")
        assert cluster.rota("wait", job).code != 0
        assert cluster.count(job, "failed") == 1
        assert witness.starts() == {0: 1}


def test_a_leave_event_is_repeated_until_the_controller_acknowledges_it(
    tmp_path: Path, controllers: Connect
) -> None:
    with LocalCluster(tmp_path / "c", nodes=1) as cluster:
        controller = controllers(cluster)
        controller.watch()

        terminated(cluster)

        first = controller.next("node.left")
        assert first.why == "node node-1 left: it was told to leave, and has stopped its work"
        again = controller.next("node.left")
        assert again.why == f"{first.why}, told 2 times"
        controller.acknowledge(first.sequence)
        cluster.kill_server()
        cluster.start_server()
        follower = controllers(cluster)
        follower.watch()
        assert follower.next("node.left").sequence == again.sequence, "what was acknowledged is not replayed"
