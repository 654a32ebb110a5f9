"""A client without a token costs the gRPC ports no memory, and no other client its response."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rota.model.limits import GUESSES_AT_ONCE
from rota.testing.cluster import LocalCluster
from rota.testing.processes import resident_bytes
from rota.wire.generated import controller_pb2 as pb
from tests.system.strangers import MIB

CALLS = 6
LARGE = 64 * MIB - 1024  # as much as the port took once
METHODS = (
    "/rota.v1.Controller/Stop",
    "/rota.v1.Controller/ScheduleMany",
    "/jobscheduler.Scheduler/RegisterWorker",
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A server without nodes, and with its gateway for workers open."""
    settings = {"ROTA_WORKER_GATEWAY_ENABLED": "true"}
    with LocalCluster(tmp_path_factory.mktemp("alone"), nodes=0, settings=settings) as running:
        yield running


@pytest.mark.parametrize("method", METHODS)
def test_large_messages_without_a_token_are_not_read(alone: LocalCluster, method: str) -> None:
    message = bytes(LARGE)
    with grpc.insecure_channel(alone.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        dial: Any = channel.stream_stream(method)
        calls = [dial(iter([message])) for _ in range(CALLS)]
        before = resident_bytes(alone.server_pid)

        codes = [call.code() for call in calls]

    assert set(codes) <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert (resident_bytes(alone.server_pid) - before) / (CALLS * LARGE) < 0.1
    assert alone.call("GET", "/v1/server").status == 200


def test_the_largest_job_of_http_is_accepted_over_grpc(alone: LocalCluster) -> None:
    spec: dict[str, Any] = {"command": ["true"], "env": {f"V{n}": "x" * 1000 for n in range(120)}}
    padding = " " * (MIB - len(json.dumps(spec)))
    heard = pb.Heard(
        logs=[pb.LogPosition(index=n, attempt=1, stream="stdout", offset=2**40) for n in range(20_000)]
    )
    request = pb.ScheduleRequest(spec_json=json.dumps(spec) + padding, heard=heard, logs=True)
    with grpc.insecure_channel(alone.grpc) as channel:
        call = channel.unary_stream(
            "/rota.v1.Controller/Schedule", pb.ScheduleRequest.SerializeToString, pb.Stage.FromString
        )(request, metadata=(("authorization", f"Bearer {alone.token}"),))
        first = next(call)
        call.cancel()

    assert first.job


def test_an_oversized_message_is_refused_also_with_a_token(alone: LocalCluster) -> None:
    with grpc.insecure_channel(alone.grpc) as channel:
        stop: Any = channel.unary_unary("/rota.v1.Controller/Stop")
        with pytest.raises(grpc.RpcError) as refused:
            stop(bytes(3 * MIB), metadata=(("authorization", f"Bearer {alone.token}"),))

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_address_that_guesses_tokens_is_limited_and_a_known_token_is_not(alone: LocalCluster) -> None:
    with grpc.insecure_channel(alone.grpc) as channel:
        stop = channel.unary_unary(
            "/rota.v1.Controller/Stop", pb.StopRequest.SerializeToString, pb.StopReply.FromString
        )

        def status(token: str) -> grpc.StatusCode:
            with pytest.raises(grpc.RpcError) as refused:
                stop(pb.StopRequest(job="7"), metadata=(("authorization", f"Bearer {token}"),))
            code: grpc.StatusCode = refused.value.code()
            return code

        guessed = {status(f"rota_{number:043}") for number in range(2 * GUESSES_AT_ONCE)}
        known = status(alone.token)

    assert guessed == {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert known is grpc.StatusCode.NOT_FOUND  # there is no such job
