"""The SDK: submit, wait, tasks as they end, output, and streams that survive a restart."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import rota
from rota.client import AsyncCluster, connect_async
from rota.client.cluster import Cluster
from rota.client.context import Endpoint
from rota.client.errors import NotFound, Rejected, TimedOut
from tests.client.canned_server import (
    HOLD_SECONDS,
    TOKEN,
    CannedServer,
    Reply,
    chunk,
    event,
    events,
    job,
    node,
    output,
    problem,
    statuses,
    task,
)


def test_connect_finds_the_server_of_the_environment(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ROTA_ADDR", server.addr)
    monkeypatch.setenv("ROTA_TOKEN", TOKEN)
    server.on("GET /v1/nodes", {"nodes": [node()]})

    with rota.connect() as cluster:
        assert cluster.nodes.list()[0].capacity["cpu"] == 8.0


def test_submit_sends_the_spec_and_gives_a_job(server: CannedServer, cluster: Cluster) -> None:
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))

    submitted = cluster.submit("python", "train.py", cpu=2, memory="4g", count=100)

    assert (submitted.id, submitted.state) == ("12", "submitted")
    expected = {"command": ["python", "train.py"], "cpu": 2, "memory": "4g", "count": 100}
    assert server.asked("POST /v1/jobs")[0].body == expected


def test_a_job_knows_its_warnings_and_how_it_was_placed(server: CannedServer, cluster: Cluster) -> None:
    warning = {"field": "region", "text": "no node has the label region now"}
    placement = {"why": "the idlest of 2", "node": "a", "fitting": 2, "runner_up": "b", "added": "later"}
    server.on("POST /v1/jobs", Reply(job("submitted", warnings=[warning]), 201))
    server.on("GET /v1/jobs/12", job("active", placement=placement))

    at = datetime(2026, 12, 1, 8, tzinfo=UTC)
    submitted = cluster.submit("train", region="moon", near="job == db", gang=True, deadline=at)
    placed = submitted.refresh().placement

    assert [(one.field, one.text) for one in submitted.warnings] == [tuple(warning.values())]
    assert placed is not None
    assert (placed.node, placed.runner_up, placed.fitting) == ("a", "b", 2)
    assert server.asked("POST /v1/jobs")[0].body == {
        "command": ["train"],
        "region": "moon",
        "near": "job == db",
        "gang": True,
        "deadline": "2026-12-01T08:00:00+00:00",
    }


def test_the_namespace_of_the_environment_is_used(
    server: CannedServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_NAMESPACE", "team")
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))

    cluster.submit("true")
    cluster.submit("true", namespace="mine")

    assert [seen.body["namespace"] for seen in server.asked("POST /v1/jobs")] == ["team", "mine"]


def test_a_job_without_a_command_is_rejected_before_sending(cluster: Cluster) -> None:
    with pytest.raises(Rejected, match="command"):
        cluster.submit()


def test_wait_resumes_after_interrupted_and_ended_streams(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/jobs/12", job())
    server.on(
        "GET /v1/jobs/12/follow",
        statuses(job(), cut=True),
        statuses(job()),
        problem(503, "unavailable", "starting", retry_after=0),
        statuses(job("succeeded")),
    )

    assert cluster.job("12").wait().state == "succeeded"


def test_wait_raises_timed_out_at_its_timeout(server: CannedServer, cluster: Cluster) -> None:
    never = threading.Event()
    server.on("GET /v1/jobs/12", job())
    server.on("GET /v1/jobs/12/follow", statuses(job(), never))

    started = time.monotonic()
    with pytest.raises(TimedOut):
        cluster.job("12").wait(timeout_seconds=0.2)
    never.set()

    assert time.monotonic() - started < HOLD_SECONDS / 2, "it did not wait for the server"


def test_keepalives_do_not_postpone_a_deadline(server: CannedServer, cluster: Cluster) -> None:
    over = threading.Event()

    def speaks() -> Iterator[bytes]:
        yield event("status", job())
        while not over.wait(0.02):
            yield b": still here\n\n"

    server.on("GET /v1/jobs/12", job())
    server.on("GET /v1/jobs/12/follow", lambda _: replace(events(), stream=speaks()))
    try:
        with pytest.raises(TimedOut):
            cluster.job("12").wait(timeout_seconds=0.5)
    finally:
        over.set()


def test_a_job_that_was_deleted_meanwhile_ends_the_wait(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/jobs/12", job())
    server.on(
        "GET /v1/jobs/12/follow", statuses(job(), cut=True), problem(404, "not_found", "there is no job 12")
    )

    with pytest.raises(NotFound):
        cluster.job("12").wait()


def test_each_task_comes_once_as_it_ends(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/jobs/12", job(count=3))
    first = job(count=3, counts={"succeeded": 1, "running": 2})
    server.on(
        "GET /v1/jobs/12/follow",
        statuses(first, job("failed", count=3, counts={"succeeded": 2, "failed": 1})),
    )
    early = [task(0, "running"), task(1), task(2, "running")]
    late = [task(0, "failed", exit_code=4), task(1), task(2)]
    server.on("GET /v1/jobs/12/tasks", {"tasks": early, "next": None}, {"tasks": late, "next": None})

    ended = [(each.index, each.exit_code) for each in cluster.job("12").as_completed()]

    assert ended == [(1, 0), (0, 4), (2, 0)]


def test_tasks_are_read_page_by_page(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/jobs/12", job(count=2))
    server.on("GET /v1/jobs/12/tasks", {"tasks": [task(0)], "next": 0}, {"tasks": [task(1)], "next": None})

    assert [each.index for each in cluster.job("12").tasks()] == [0, 1]
    assert [seen.query.get("after") for seen in server.asked("GET /v1/jobs/12/tasks")] == [None, "0"]


def test_a_task_has_all_its_attempts(server: CannedServer, cluster: Cluster) -> None:
    attempts = [
        {"attempt": 1, "state": "lost", "node": "a"},
        {"attempt": 2, "state": "succeeded", "node": "b"},
    ]
    server.on("GET /v1/jobs/12", job())
    server.on("GET /v1/jobs/12/tasks/0", task(attempt=2, attempts=attempts))

    found = cluster.job("12").task(0)

    assert [(each.attempt, each.state, each.node) for each in found.attempts] == [
        (1, "lost", "a"),
        (2, "succeeded", "b"),
    ]


def test_jobs_are_read_page_by_page_up_to_a_limit(server: CannedServer, cluster: Cluster) -> None:
    pages = [{"jobs": [job(id="9"), job(id="8")], "next": "8"}, {"jobs": [job(id="7")], "next": "7"}]
    server.on("GET /v1/jobs", *pages)

    assert [each.id for each in cluster.jobs(limit=3, state="active")] == ["9", "8", "7"]

    queries = [seen.query for seen in server.asked("GET /v1/jobs")]
    assert queries == [{"limit": "3", "state": "active"}, {"limit": "1", "state": "active", "after": "8"}]


def test_an_empty_page_is_followed_by_the_next(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/jobs", {"jobs": [], "next": "8"}, {"jobs": [job(id="7")], "next": None})

    assert [one.id for one in cluster.jobs(name="rare")] == ["7"]


def test_a_token_is_created_listed_and_revoked(server: CannedServer, cluster: Cluster) -> None:
    known = {"id": "a1", "name": "ci", "role": "viewer", "namespaces": ["ci"]}
    server.on("POST /v1/tokens", Reply({**known, "token": "rota_secret"}, 201))
    server.on("GET /v1/tokens", {"tokens": [known], "next": None})
    server.on("DELETE /v1/tokens/a1", Reply(None, 204))

    made = cluster.tokens.create("ci", "viewer", "ci", valid_seconds="1h")
    cluster.tokens.revoke(made.id)

    assert made.token == "rota_secret"
    assert "rota_secret" not in repr(made)
    assert [one.name for one in cluster.tokens.list()] == ["ci"]
    assert server.asked("POST /v1/tokens")[0].body == {
        "name": "ci",
        "role": "viewer",
        "namespaces": ["ci"],
        "valid_seconds": "1h",
    }


def test_logs_are_text(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/jobs/12", job("succeeded", count=5))
    server.on("GET /v1/jobs/12/logs", output(chunk("grün\n".encode(), index=3)))

    assert cluster.job("12").logs(index=3) == "grün\n"

    expected = {"format": "chunks", "index": "3"}
    assert server.asked("GET /v1/jobs/12/logs")[0].query == expected


def test_output_resumes_at_the_offset_of_each_stream_and_attempt(
    server: CannedServer, cluster: Cluster
) -> None:
    gap = b'{"index": 0, "attempt": 1, "stream": "stderr", "offset": 2, "missing": 7, "reason": "lost"}\n'
    server.on("GET /v1/jobs/12", job("succeeded"))
    server.on(
        "GET /v1/jobs/12/logs",
        output(chunk(b"abc"), chunk(b"xy", "stderr"), gap, cut=True),
        output(
            chunk(b"abcde"), chunk(b"xy", "stderr"), gap, chunk(b"fg", offset=5), chunk(b"new", attempt=2)
        ),
    )

    chunks = list(cluster.job("12").follow_logs())

    received = [(each.attempt, each.stream, each.offset, each.data) for each in chunks if not each.missing]
    assert received == [
        (1, "stdout", 0, b"abc"),
        (1, "stderr", 0, b"xy"),
        (1, "stdout", 3, b"de"),
        (1, "stdout", 5, b"fg"),
        (2, "stdout", 0, b"new"),
    ]
    assert [each.missing for each in chunks if each.missing] == [7]


GONE = b'{"index": 0, "attempt": 1, "stream": "stdout", "missing": 0, "reason": "node n2 is not connected"}\n'


def test_output_that_the_server_could_not_get_is_declared_missing(
    server: CannedServer, cluster: Cluster
) -> None:
    server.on("GET /v1/jobs/12", job("succeeded"))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"a"), GONE))

    first, second = cluster.job("12").follow_logs()

    assert first.data == b"a"
    assert (second.is_gap, second.reason) == (True, "node n2 is not connected")


def test_an_interrupted_stream_resumes_where_it_stopped(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/jobs/12", job("succeeded"))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"abc"), cut=True), output(chunk(b"de", offset=3)))

    chunks = list(cluster.job("12").follow_logs())

    assert b"".join(each.data for each in chunks) == b"abcde"
    asked = [seen.query.get("from") for seen in server.asked("GET /v1/jobs/12/logs")]
    assert asked == [None, "0.1.stdout:3"]


def test_output_resumes_when_the_server_ended_the_stream_before_the_job(
    server: CannedServer, cluster: Cluster
) -> None:
    server.on("GET /v1/jobs/12", job(), job(), job("succeeded"))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"a")), output(chunk(b"a"), chunk(b"b", offset=1)))

    assert b"".join(each.data for each in cluster.job("12").follow_logs()) == b"ab"


def test_events_resume_after_the_last_one_seen(server: CannedServer, cluster: Cluster) -> None:
    def happened(seq: str) -> bytes:
        return event("job.ended", {"seq": seq, "kind": "job.ended", "why": "all tasks succeeded"}, seq)

    server.on(
        "GET /v1/events",
        events(happened("1.0"), cut=True),
        events(b": alive\n\n", happened("1.1")),
    )
    watching = cluster.watch()

    assert [next(watching).seq, next(watching).seq] == ["1.0", "1.1"]
    assert [seen.headers.get("Last-Event-ID") for seen in server.asked("GET /v1/events")] == [None, "1.0"]


def test_names_are_one_segment_of_the_path(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/jobs/a/b?c", job(name="a/b?c"))

    assert cluster.job("a/b?c").status.name == "a/b?c"


def test_unknown_fields_of_a_newer_server_are_kept_and_do_no_harm(
    server: CannedServer, cluster: Cluster
) -> None:
    server.on("GET /v1/jobs/12", job(mood="sunny"))

    assert cluster.job("12").status.raw["mood"] == "sunny"


async def test_the_same_names_work_with_await(server: CannedServer) -> None:
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))
    server.on("GET /v1/jobs/12/follow", statuses(job(), job("succeeded")))
    server.on("GET /v1/jobs/12/tasks", {"tasks": [task()], "next": None})

    async with connect_async(server.addr, token=TOKEN) as cluster:
        submitted = await cluster.submit("true")
        ended = [each.index async for each in submitted.as_completed()]
        final = await submitted.wait()

    assert (ended, final.state, submitted.exit_code) == ([0], "succeeded", 0)


async def test_awaiting_raises_what_calling_raises(server: CannedServer) -> None:
    async with connect_async(server.addr, token=TOKEN) as cluster:
        with pytest.raises(NotFound):
            await cluster.job("none")


def test_a_cancelled_wait_does_not_keep_the_program_from_ending(server: CannedServer) -> None:
    never = threading.Event()
    server.on("GET /v1/jobs/12", job())
    server.on("GET /v1/jobs/12/follow", statuses(job(), never))

    async def program() -> None:
        async with AsyncCluster(Cluster(Endpoint(server.addr, TOKEN))) as cluster:
            found = await cluster.job("12")
            async with asyncio.timeout(0.1):
                await found.wait()

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(program())
    assert time.monotonic() - started < HOLD_SECONDS / 2, "it did not wait for the server"
    never.set()
