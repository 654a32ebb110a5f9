"""controller.proto against a real server: an external controller has what the built-in ones have."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wire.generated import controller_pb2 as pb
from rota.wire.generated import controller_pb2_grpc
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system
SECONDS = 120


@pytest.fixture
def controller(shared: LocalCluster) -> Iterator["Controller"]:
    with Controller(shared) as connected:
        yield connected


class Controller:
    """An external controller, with the admin's token."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._channel = grpc.insecure_channel(cluster.grpc, [("grpc.max_reconnect_backoff_ms", 200)])
        self._stub = controller_pb2_grpc.ControllerStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._metadata = (("authorization", f"Bearer {cluster.token}"),)

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def schedule(self, *command: str, key: str = "", **spec: Any) -> Any:
        request = pb.ScheduleRequest(
            spec_json=json.dumps({**spec, "command": command}), logs=True, idempotency_key=key
        )
        return self._stub.Schedule(request, metadata=self._metadata, timeout=SECONDS, wait_for_ready=True)

    def watch(self, **request: Any) -> Any:
        return self._stub.Watch(
            pb.WatchRequest(**request), metadata=self._metadata, timeout=SECONDS, wait_for_ready=True
        )

    def stop(self, job: str) -> pb.StopReply:
        reply: pb.StopReply = self._stub.Stop(
            pb.StopRequest(job=job, reason="enough"), metadata=self._metadata
        )
        return reply

    def delete(self, job: str) -> None:
        self._stub.Delete(pb.DeleteRequest(job=job), metadata=self._metadata)

    def acknowledge(self, subscriber: str, sequence: str) -> None:
        request = pb.AcknowledgeRequest(subscriber=subscriber, sequence=sequence)
        self._stub.Acknowledge(request, metadata=self._metadata)


def test_a_scheduled_job_streams_its_stages_and_logs(controller: Controller) -> None:
    received = list(controller.schedule("sh", "-c", "echo out; echo err >&2; exit 3"))

    logs = {part.log.stream: part.log.data for part in received if part.WhichOneof("what") == "log"}
    stages = [part.stage for part in received if part.WhichOneof("what") == "stage"]
    assert logs == {"stdout": b"out\n", "stderr": b"err\n"}
    assert [stage.final for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert (stages[-1].state, stages[-1].exit_code) == ("failed", 3)
    assert dict(stages[-1].counts)["failed"] == 1


def test_the_same_key_schedules_once(controller: Controller) -> None:
    first = list(controller.schedule("true", key="once"))
    again = list(controller.schedule("true", key="once"))

    assert first[-1].job == again[-1].job


def test_a_bad_spec_is_refused_with_its_field(controller: Controller) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(controller.schedule("true", cpu=-1))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (refused.value.details() or "").startswith("cpu: ")
    assert "rota-field" in {pair.key for pair in refused.value.trailing_metadata()}


def test_a_job_is_stopped_and_then_deleted(shared: LocalCluster, controller: Controller, gate: Gate) -> None:
    stages = controller.schedule("sh", "-c", gate.wait)
    job = next(stages).job
    until(lambda: shared.count(job, "running") == 1, "it runs")
    with pytest.raises(grpc.RpcError) as refused:
        controller.delete(job)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    assert controller.stop(job).state == "canceling"

    last = list(stages)[-1].stage
    assert (last.state, last.reason, last.final) == ("canceled", "enough", True)
    controller.delete(job)
    assert shared.call("GET", f"/v1/jobs/{job}").status == 404


def test_a_subscriber_continues_after_its_acknowledged_event(controller: Controller) -> None:
    watching = controller.watch(subscriber="keeper-of-books")
    job = list(controller.schedule("true"))[-1].job
    seen = events_until(watching, job, "job.ended")
    watching.cancel()
    controller.acknowledge("keeper-of-books", seen[1].sequence)

    again = controller.watch(subscriber="keeper-of-books")

    assert events_until(again, job, "job.ended") == seen[2:]
    again.cancel()


def test_a_watch_across_a_restart_neither_loses_nor_repeats_events(cluster: LocalCluster) -> None:
    with Controller(cluster) as controller:
        watching = controller.watch(after="0.0")
        first = list(controller.schedule("true"))[-1].job
        seen = events_until(watching, first, "job.ended")
        queued = cluster.submit("true", cpu=100)

        cluster.kill_server()
        cluster.start_server()
        cluster.wait_for_nodes()
        second = list(controller.schedule("true"))[-1].job
        rest = events_until(controller.watch(after=seen[-1].sequence), second, "job.ended")
        history = events_until(controller.watch(after="0.0"), second, "job.ended")

    sequences = [tuple(map(int, event.sequence.split("."))) for event in history]
    assert seen + rest == history
    assert sequences == sorted(set(sequences))
    assert next(event.kind for event in history if event.job == queued) == "job.submitted"


def events_until(watching: Any, job: str, kind: str) -> list[pb.Event]:
    """All events up to the expected one."""
    seen: list[pb.Event] = []
    for batch in watching:
        for event in batch.events:
            seen.append(event)
            if (event.job, event.kind) == (job, kind):
                return seen
    raise AssertionError(f"the stream ended before {kind}")
