"""Rate limits of tokens: requests over the limit are refused with Retry-After, streams are delayed."""

import asyncio
import json
from pathlib import Path

import grpc
import pytest

from rota.apiserver.access import Caller
from rota.apiserver.rate_limits import RateLimited, RateLimits
from rota.identity.tokens import Role
from rota.store.memory import MemoryStore
from rota.wire.generated import controller_pb2 as pb
from tests.apiserver.outside_controller import controller
from tests.apiserver.serving import serving

CI = Caller("ci", Role.SUBMITTER, ("team",), token="t1")


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_bucket_empties_and_refills() -> None:
    clock = Clock()
    rates = RateLimits(per_second=2, burst=3, now=clock)
    for _ in range(3):
        rates.acquire(CI)
    with pytest.raises(RateLimited, match="ci makes more than 2 requests a second"):
        rates.acquire(CI)
    clock.seconds += 0.5

    rates.acquire(CI)
    with pytest.raises(RateLimited):
        rates.acquire(CI)


def test_each_token_has_its_own_bucket_and_admins_of_all_have_none() -> None:
    rates = RateLimits(per_second=1, burst=1, now=Clock())
    rates.acquire(CI)

    rates.acquire(Caller("ci", Role.SUBMITTER, ("team",), token="t2"))
    for _ in range(100):
        rates.acquire(Caller("ada", Role.ADMIN, ("*",), token="t3"))
    with pytest.raises(RateLimited):
        rates.acquire(CI)


def test_buckets_of_inactive_tokens_are_dropped() -> None:
    clock = Clock()
    rates = RateLimits(per_second=10, burst=10, now=clock)
    for number in range(10_000):
        clock.seconds += 1
        rates.acquire(Caller("ci", Role.SUBMITTER, ("team",), token=f"t{number}"))

    assert len(rates._buckets) <= 2_000


async def test_a_request_over_the_limit_is_refused_with_retry_after(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, rates=RateLimits(per_second=0.001, burst=2)) as server:
        token = server.token_for(Role.VIEWER, "*")
        replies = [await server.call("GET", "/v1/jobs", Authorization=token) for _ in range(3)]
        admin = await server.call("GET", "/v1/jobs")

    assert [reply.status for reply in replies] == [200, 200, 429]
    assert replies[-1].headers["retry-after"] == "1"
    assert (replies[-1].json["code"], admin.status) == ("rate_limited", 200)


async def test_grpc_calls_count_against_the_limit(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        rates = outside.server.api.rates
        rates.per_second, rates.burst = 0.001, 1
        await outside.schedule({"command": ["true"]}).read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await outside.call("Stop", pb.StopRequest(job="1"))

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_bulk_stream_is_slowed_down_and_nothing_is_refused(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        rates = outside.server.api.rates
        rates.per_second, rates.burst = 100, 2
        call = outside.stub.ScheduleMany(metadata=outside.metadata)
        for number in range(10):
            job = pb.BulkJob(spec_json=json.dumps({"command": ["true"]}))
            await call.write(pb.BulkRequest(id=str(number), schedule=job))
        replies = [await call.read() for _ in range(10)]
        call.cancel()

    assert [reply.WhichOneof("what") for reply in replies] == ["accepted"] * 10


async def test_an_address_that_guesses_tokens_is_limited_and_its_known_tokens_are_not(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        server.api.guesses.burst, server.api.guesses.per_second = 3, 0
        wrong = [
            await server.call("GET", "/v1/jobs", Authorization=f"Bearer rota_{number}") for number in range(5)
        ]
        right = await server.call("GET", "/v1/jobs")

    assert [reply.status for reply in wrong] == [401, 401, 401, 429, 429]
    assert wrong[-1].headers["retry-after"]
    assert right.status == 200
