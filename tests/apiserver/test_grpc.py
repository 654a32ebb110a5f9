"""The gRPC API on a real channel."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.wire.generated import controller_pb2 as pb
from tests.apiserver.builders import RUNNING, attempts, node, node_status, statuses
from tests.apiserver.outside_controller import controller


async def test_stages_and_output_of_a_scheduled_job_are_sent_until_it_has_ended(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        server = outside.server
        stages, output = [], b""
        async for stage in outside.schedule({"command": ["true"]}, logs=True):
            if stage.WhichOneof("what") == "log":
                output += stage.log.data
                continue
            stages.append((stage.stage.state, stage.stage.final))
            if len(stages) == 1:
                server.source.write("1.0.1.stdout", b"hello", ended=True)
                server.source.write("1.0.1.stderr", b"", ended=True)
                await server.put("apiserver", node(1))
                await server.put("watcher", node_status(1))
                await server.put("scheduler", attempts("1", 1, number=[1]))
                await server.put("watcher", statuses("1", 1, number=[1], state=[RUNNING]))
                await server.put("controllers", JobStatus(JobId("1"), JobState.SUCCEEDED, exit_code=0))

    assert stages[0] == ("active", False)
    assert stages[-1] == ("succeeded", True)
    assert output == b"hello"


async def test_scheduling_again_with_the_same_key_follows_the_same_job(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        for _ in range(2):
            call = outside.schedule({"command": ["true"]}, idempotency_key="k")
            first = await call.read()
            call.cancel()

            assert first.job == "1"


async def test_a_job_is_stopped_and_then_deleted(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        call = outside.schedule({"command": ["true"]})
        await call.read()
        stopped = await outside.call("Stop", pb.StopRequest(job="1", reason="enough"))
        await outside.call("Delete", pb.DeleteRequest(job="1"))
        audited = [(line["who"], line["action"], line["outcome"]) for line in outside.server.audited()]

    assert stopped.state == "canceled"
    assert audited == [("outside", action, "ok") for action in ("schedule", "stop", "delete")]


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("Stop", pb.StopRequest(job="7"), grpc.StatusCode.NOT_FOUND),
        ("Delete", pb.DeleteRequest(job="7"), grpc.StatusCode.NOT_FOUND),
        (
            "Acknowledge",
            pb.AcknowledgeRequest(subscriber="a", sequence="x"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            "Acknowledge",
            pb.AcknowledgeRequest(subscriber="", sequence="0.0"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            "Acknowledge",
            pb.AcknowledgeRequest(subscriber="a", sequence="999.0"),
            grpc.StatusCode.OUT_OF_RANGE,
        ),
    ],
)
async def test_a_bad_call_is_refused_with_its_status(
    tmp_path: Path, method: str, request_: Any, code: Any
) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await outside.call(method, request_)

    assert refused.value.code() is code


@pytest.mark.parametrize("spec", ["{", "[]", '{"command": []}', "\0"])
async def test_a_bad_spec_is_refused_before_any_stage(tmp_path: Path, spec: str) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        call = outside.stub.Schedule(pb.ScheduleRequest(spec_json=spec), metadata=outside.metadata)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "metadata", [(), (("authorization", "Bearer rota_wrong"),), (("authorization", "x"),)]
)
async def test_every_method_needs_a_token(tmp_path: Path, metadata: Any) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        for method in pb.DESCRIPTOR.services_by_name["Controller"].methods:
            # A stream sends nothing: for a write that races with the refusal grpcio reports INTERNAL.
            request = None if method.client_streaming else getattr(pb, method.input_type.name)()
            call = getattr(outside.stub, method.name)(request, metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await (call.read() if method.server_streaming else call)

            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_named_subscriber_resumes_after_its_acknowledged_event(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        watching = outside.stub.Watch(pb.WatchRequest(subscriber="a"), metadata=outside.metadata)
        scheduled = outside.schedule({"command": ["true"]})
        await scheduled.read()
        seen = list((await watching.read()).events)
        watching.cancel()
        await outside.call("Acknowledge", pb.AcknowledgeRequest(subscriber="a", sequence=seen[0].sequence))
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        again = outside.stub.Watch(pb.WatchRequest(subscriber="a"), metadata=outside.metadata)
        resumed = list((await again.read()).events)
        again.cancel()

    assert [event.kind for event in seen][:2] == ["job.submitted", "job.active"]
    assert resumed[0] == seen[1]


async def test_a_watch_can_be_for_one_job_and_from_the_beginning(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        for _ in range(2):
            call = outside.schedule({"command": ["true"]})
            await call.read()
        request = pb.WatchRequest(after="0.0", job="2")
        watching = outside.stub.Watch(request, metadata=outside.metadata)
        events = list((await watching.read()).events)
        watching.cancel()

    assert {event.job for event in events} == {"2"}
