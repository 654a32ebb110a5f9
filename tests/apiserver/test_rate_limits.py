"""A token makes so many requests a second; the next ones are told when to come again, streams wait."""

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


def test_a_bucket_empties_and_fills_again() -> None:
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


def test_buckets_of_tokens_that_are_gone_do_not_add_up() -> None:
    clock = Clock()
    rates = RateLimits(per_second=10, burst=10, now=clock)
    for number in range(10_000):
        clock.seconds += 1
        rates.acquire(Caller("ci", Role.SUBMITTER, ("team",), token=f"t{number}"))

    assert len(rates._buckets) <= 2_000


async def test_a_request_too_many_is_told_when_to_come_again(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, rates=RateLimits(per_second=0.001, burst=2)) as server:
        token = server.token_for(Role.VIEWER, "*")
        replies = [await server.call("GET", "/v1/jobs", Authorization=token) for _ in range(3)]
        admin = await server.call("GET", "/v1/jobs")

    assert [reply.status for reply in replies] == [200, 200, 429]
    assert replies[-1].headers["retry-after"] == "1"
    assert (replies[-1].json["code"], admin.status) == ("rate_limited", 200)


async def test_grpc_calls_count_too(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        rates = outside.server.api.rates
        rates.per_second, rates.burst = 0.001, 1
        await outside.schedule({"command": ["true"]}).read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await outside.call("Stop", pb.StopRequest(job="1"))

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_bulk_stream_is_slowed_down_and_loses_nothing(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        rates = outside.server.api.rates
        rates.per_second, rates.burst = 100, 2
        call = outside.stub.ScheduleMany(metadata=outside.metadata)
        for number in range(10):
            job = pb.BulkJob(spec_json=json.dumps({"command": ["true"]}))
            await call.write(pb.BulkRequest(id=str(number), schedule=job))
        replies = [await call.read() for _ in range(10)]
        call.cancel()

    assert [one.WhichOneof("what") for one in replies] == ["accepted"] * 10


async def test_an_address_that_guesses_is_told_to_wait_and_known_tokens_of_it_are_not(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        server.api.guesses.burst, server.api.guesses.per_second = 3, 0
        wrong = [
            await server.call("GET", "/v1/jobs", Authorization=f"Bearer rota_{number}") for number in range(5)
        ]
        right = await server.call("GET", "/v1/jobs")

    assert [reply.status for reply in wrong] == [401, 401, 401, 429, 429]
    assert wrong[-1].headers["retry-after"]
    assert right.status == 200
