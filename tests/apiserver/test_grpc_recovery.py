"""The gRPC API for controllers that own recovery: resume, bulk, state, losses and report interval."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.apiserver.grpc import bulk
from rota.identity.tokens import Role
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.wire.generated import controller_pb2 as pb
from tests.apiserver.builders import RUNNING, attempts, node, node_status, statuses
from tests.apiserver.outside_controller import Controller, controller

LOST, SUCCEEDED = int(AttemptState.LOST), int(AttemptState.SUCCEEDED)
OWNED = {"command": ["true"], "recovery": "controller", "controller": "ci"}


async def end_job(outside: Controller, job: str = "1") -> None:
    await outside.server.put("controllers", JobStatus(JobId(job), JobState.SUCCEEDED, exit_code=0))


async def run_attempt(outside: Controller, number: int = 1, job: str = "1") -> None:
    """Place and start an attempt of the job's only task."""
    server = outside.server
    if number == 1:
        await server.put("apiserver", node(1))
        await server.put("watcher", node_status(1))
    await server.put("scheduler", attempts(job, 1, number=[number], tries=[number - 1]))
    await server.put("watcher", statuses(job, 1, number=[number], state=[RUNNING]))


async def first(call: Any, what: str) -> Any:
    """The next reply of that kind."""
    while (reply := await call.read()).WhichOneof("what") != what:
        pass
    return reply


def disconnect_event(outside: Controller) -> asyncio.Event:
    """An event that is set when any subscriber disconnects."""
    presence, left = outside.server.engine.mirror.presence, asyncio.Event()
    disconnected = presence.disconnected_one

    def record(name: str, now_ms: int) -> None:
        disconnected(name, now_ms)
        left.set()

    presence.disconnected_one = record  # type: ignore[method-assign]
    return left


async def test_a_follow_resumes_after_the_output_received_before(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        await outside.schedule({"command": ["true"]}).read()
        await run_attempt(outside)
        for stream in ("stdout", "stderr"):
            outside.server.source.write(f"1.0.1.{stream}", b"hello world", ended=True)
        await end_job(outside)
        heard = pb.Heard(logs=[pb.LogPosition(index=0, stream="stdout", attempt=1, offset=6)])
        request = pb.FollowRequest(job="1", logs=True, heard=heard)
        reply = [stage async for stage in outside.stub.Follow(request, metadata=outside.metadata)]

    parts = [stage.log for stage in reply if stage.WhichOneof("what") == "log"]
    found = {part.stream: (part.attempt, part.offset, part.data) for part in parts}
    assert found == {"stdout": (1, 6, b"world"), "stderr": (1, 0, b"hello world")}


async def test_task_events_are_sent_with_a_sequence_number_and_resumed_after_it(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        call = outside.schedule(OWNED)
        await call.read()
        await run_attempt(outside)
        await outside.server.put("watcher", statuses("1", 1, number=[1], state=[LOST]))
        reply = await first(call, "task")
        call.cancel()
        resolved = pb.ResolveRequest(
            subscriber="ci", job="1", first_index=[0], last_index=[0], attempt=1, word="fail"
        )
        await outside.call("Resolve", resolved)
        request = pb.FollowRequest(job="1", heard=pb.Heard(sequence=reply.task.sequence))
        rest = [stage async for stage in outside.stub.Follow(request, metadata=outside.metadata)]

    assert (reply.task.kind, reply.task.attempt, list(reply.task.first_index)) == ("task.unresolved", 1, [0])
    assert [stage.task.kind for stage in rest if stage.WhichOneof("what") == "task"] == ["task.resolved"]
    assert (rest[-1].stage.state, rest[-1].stage.final) == ("failed", True)


async def test_a_deleted_job_ends_the_stream_of_its_follower(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await outside.stub.Follow(pb.FollowRequest(job="7"), metadata=outside.metadata).read()

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_many_jobs_on_one_stream_are_each_answered_by_their_id(tmp_path: Path) -> None:
    async def requests() -> AsyncIterator[pb.BulkRequest]:
        for number in range(600):  # more than may be unanswered at once
            job = pb.BulkJob(spec_json=json.dumps({"command": ["true"]}), idempotency_key=f"k{number % 500}")
            yield pb.BulkRequest(id=f"a{number}", schedule=job)
        yield pb.BulkRequest(id="bad", schedule=pb.BulkJob(spec_json='{"command": ["true"], "cpu": -1}'))
        yield pb.BulkRequest(id="none")

    async with controller(tmp_path) as outside, asyncio.timeout(60):
        replies = {
            reply.id: reply
            async for reply in outside.stub.ScheduleMany(requests(), metadata=outside.metadata)
        }
        unfinished = outside.server.engine.mirror.unfinished

    jobs = {name: reply.accepted.job for name, reply in replies.items() if name.startswith("a")}
    refused = replies["bad"].refused
    assert (len(jobs), len(set(jobs.values())), unfinished) == (600, 500, 500)
    assert all(jobs[f"a{number}"] == jobs[f"a{number + 500}"] for number in range(100))
    assert (refused.code, refused.field, bool(refused.hint)) == ("bad_field", "cpu", True)
    assert replies["none"].refused.code == "bad_request"


async def test_stages_of_a_followed_job_are_sent_on_its_stream_where_it_can_be_stopped(
    tmp_path: Path,
) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        call = outside.stub.ScheduleMany(metadata=outside.metadata)
        job = pb.BulkJob(spec_json='{"command": ["true"]}', follow=True)
        await call.write(pb.BulkRequest(id="one", schedule=job))
        replies = [await call.read(), await call.read()]
        await call.write(pb.BulkRequest(id="two", stop=pb.StopRequest(job=replies[0].accepted.job)))
        await call.done_writing()
        while (reply := await call.read()) is not grpc.aio.EOF:
            replies.append(reply)

    assert [(reply.id, reply.WhichOneof("what")) for reply in replies[:2]] == [
        ("one", "accepted"),
        ("one", "stage"),
    ]
    last = {reply.id: reply for reply in replies}
    assert (last["one"].stage.stage.state, last["one"].stage.stage.final) == ("canceled", True)
    assert last["two"].WhichOneof("what") == "stopped"


async def test_the_number_of_followed_jobs_of_a_stream_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "FOLLOWED_MAX", 1)
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        call = outside.stub.ScheduleMany(metadata=outside.metadata)
        for name in ("one", "two"):
            job = pb.BulkJob(spec_json='{"command": ["true"]}', follow=True)
            await call.write(pb.BulkRequest(id=name, schedule=job))
        refused = await first(call, "refused")
        call.cancel()

    assert (refused.refused.code, refused.refused.field) == ("queue_full", "follow")


async def test_the_state_has_nodes_jobs_the_queue_and_tasks_that_wait_for_a_decision(
    tmp_path: Path,
) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        await outside.schedule(OWNED).read()
        await outside.schedule({"command": ["true"], "count": 300}).read()
        await run_attempt(outside)
        await outside.server.put("watcher", statuses("1", 1, number=[1], state=[LOST]))
        pages = [page async for page in outside.stub.State(pb.StateRequest(), metadata=outside.metadata)]
        after = pb.WatchRequest(after=pages[0].sequence)
        watching = outside.stub.Watch(after, metadata=outside.metadata)
        await end_job(outside, "2")
        await outside.schedule({"command": ["true"]}).read()
        next_event = (await watching.read()).events[0]
        watching.cancel()

    (waits,) = [task for page in pages for task in page.unresolved]
    nodes = [node_line for page in pages for node_line in page.nodes]
    assert (waits.job, waits.index, waits.attempt, waits.owner) == ("1", 0, 1, "outside:ci")
    assert [(node_line.name, node_line.state) for node_line in nodes] == [("laptop", "ready")]
    assert {job_line.id: job_line.counts["unresolved"] for page in pages for job_line in page.jobs} == {
        "1": 1,
        "2": 0,
    }
    assert (pages[0].queue.jobs, pages[0].queue.tasks) == (1, 300)
    assert (next_event.kind, next_event.job) == ("job.submitted", "3")


async def test_the_state_shows_no_job_of_another_namespace(tmp_path: Path) -> None:
    async with controller(tmp_path, Role.SUBMITTER, "films") as outside, asyncio.timeout(10):
        other = outside.server.api.vault.make_api_token("other", Role.SUBMITTER, ("*",), 0)
        request = pb.ScheduleRequest(spec_json='{"command": ["true"]}')
        await outside.stub.Schedule(request, metadata=(("authorization", f"Bearer {other}"),)).read()
        await outside.schedule({"command": ["true"], "namespace": "films"}).read()
        pages = [page async for page in outside.stub.State(pb.StateRequest(), metadata=outside.metadata)]

    assert [job_line.id for page in pages for job_line in page.jobs] == ["2"]
    assert pages[0].queue.jobs == 1


async def test_a_subscriber_is_present_while_one_of_its_streams_is_open(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        presence = outside.server.engine.mirror.presence
        before = presence.absent_since("outside:ci")
        request = pb.WatchRequest(subscriber="ci", after="0.0")
        watching = outside.stub.Watch(request, metadata=outside.metadata)
        await outside.schedule({"command": ["true"]}).read()
        await watching.read()
        during = presence.absent_since("outside:ci")
        left = disconnect_event(outside)
        watching.cancel()
        await left.wait()
        after = presence.absent_since("outside:ci")

    assert before is not None
    assert during is None
    assert after is not None


async def watching(outside: Controller, name: str) -> Any:
    """A call that makes the subscriber of this name present."""
    call = outside.stub.Watch(pb.WatchRequest(subscriber=name), metadata=outside.metadata)
    await call.initial_metadata()
    return call


async def controller_of_job(outside: Controller, spec: dict[str, Any], **fields: Any) -> str | None:
    call = outside.schedule(spec, **fields)
    job = (await call.read()).job
    call.cancel()
    return outside.server.engine.mirror.jobs[JobId(job)].spec.recovery_controller


async def test_a_subscribed_caller_is_the_recovery_controller_of_its_jobs_by_default(
    tmp_path: Path,
) -> None:
    plain = {"command": ["true"]}
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        assert await controller_of_job(outside, plain) is None
        call = await watching(outside, "ci")

        assert await controller_of_job(outside, plain) == "outside:ci"
        assert await controller_of_job(outside, {**plain, "recovery": "scheduler"}) is None
        assert await controller_of_job(outside, {**plain, "recovery": "cancel"}) is None
        assert await controller_of_job(outside, {**plain, "controller": "other"}) == "outside:other"
        assert await controller_of_job(outside, {**plain, "kind": "service"}) is None
        assert await controller_of_job(outside, {**plain, "kind": "system"}) is None
        call.cancel()


async def test_of_two_subscriber_names_none_is_chosen(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        calls = [await watching(outside, name) for name in ("ci", "other")]

        assert await controller_of_job(outside, {"command": ["true"]}) is None
        for call in calls:
            call.cancel()


async def test_after_a_server_restart_a_caller_that_has_not_reconnected_is_still_the_recovery_controller(
    tmp_path: Path,
) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        (await watching(outside, "ci")).cancel()
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        assert await controller_of_job(outside, {"command": ["true"]}) == "outside:ci"


async def test_a_submit_repeated_after_its_caller_has_subscribed_is_the_same_job(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        assert await controller_of_job(outside, {"command": ["true"]}, idempotency_key="k") is None
        call = await watching(outside, "ci")

        assert await controller_of_job(outside, {"command": ["true"]}, idempotency_key="k") is None
        assert len(outside.server.engine.mirror.jobs) == 1
        call.cancel()


async def test_a_call_past_its_deadline_ends_and_its_caller_is_absent(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        left = disconnect_event(outside)
        request = pb.WatchRequest(subscriber="ci")
        watching = outside.stub.Watch(request, metadata=outside.metadata, timeout=0.3)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await watching.read()
        await left.wait()
        absent = outside.server.engine.mirror.presence.absent_since("outside:ci")

    assert absent is not None
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_the_report_interval_is_set_by_operators_and_stored(tmp_path: Path) -> None:
    async with controller(tmp_path, Role.OPERATOR) as outside, asyncio.timeout(10):
        reply = await outside.call("SetPace", pb.SetPaceRequest(least_ms=2_000, most_ms=30_000))
    async with controller(tmp_path, Role.OPERATOR) as outside, asyncio.timeout(10):
        kept = outside.server.engine.mirror.report_interval
        back = await outside.call("SetPace", pb.SetPaceRequest())

    assert (reply.least_ms, reply.most_ms) == (kept.least_ms, kept.most_ms) == (2_000, 30_000)
    assert (back.least_ms, back.most_ms) == (0, 0)


@pytest.mark.parametrize(
    ("role", "bounds", "code"),
    [
        (Role.SUBMITTER, (2_000, 3_000), grpc.StatusCode.PERMISSION_DENIED),
        (Role.OPERATOR, (999, 3_000), grpc.StatusCode.INVALID_ARGUMENT),
        (Role.OPERATOR, (2_000, 60_001), grpc.StatusCode.INVALID_ARGUMENT),
        (Role.OPERATOR, (3_000, 2_000), grpc.StatusCode.INVALID_ARGUMENT),
        (Role.OPERATOR, (0, 2_000), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_report_interval_out_of_bounds_or_without_the_role_is_refused(
    tmp_path: Path, role: Role, bounds: tuple[int, int], code: Any
) -> None:
    async with controller(tmp_path, role) as outside, asyncio.timeout(10):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await outside.call("SetPace", pb.SetPaceRequest(least_ms=bounds[0], most_ms=bounds[1]))

    assert refused.value.code() is code


@pytest.mark.parametrize(
    ("change", "code", "trailer"),
    [
        ({"word": "perhaps"}, grpc.StatusCode.INVALID_ARGUMENT, ("bad_field", "word")),
        ({"subscriber": "other"}, grpc.StatusCode.PERMISSION_DENIED, ("not_allowed", "subscriber")),
        ({"attempt": 2}, grpc.StatusCode.FAILED_PRECONDITION, ("conflict", "attempt")),
        ({"job": "9"}, grpc.StatusCode.NOT_FOUND, ("not_found", None)),
        ({"last_index": [4_000_000_000]}, grpc.StatusCode.INVALID_ARGUMENT, ("bad_field", "indices")),
        ({"first_index": [], "last_index": []}, grpc.StatusCode.INVALID_ARGUMENT, ("bad_field", "indices")),
    ],
)
async def test_a_bad_recovery_decision_is_refused_with_the_codes_of_the_http_api(
    tmp_path: Path, change: dict[str, Any], code: Any, trailer: tuple[str, str | None]
) -> None:
    fields: dict[str, Any] = {"subscriber": "ci", "job": "1", "attempt": 1, "word": "again"}
    fields |= {"first_index": [0], "last_index": [0]} | change
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        await outside.schedule(OWNED).read()
        await run_attempt(outside)
        await outside.server.put("watcher", statuses("1", 1, number=[1], state=[LOST]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await outside.call("Resolve", pb.ResolveRequest(**fields))

    trailing = dict(refused.value.trailing_metadata())
    assert refused.value.code() is code
    assert (trailing["rota-code"], trailing.get("rota-field")) == trailer
