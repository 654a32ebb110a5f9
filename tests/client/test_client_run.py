"""Submit and follow in one request, with and without failures."""

import threading
from contextlib import closing

import pytest

from rota.client import AsyncCluster
from rota.client.cluster import Cluster
from rota.client.context import Endpoint
from rota.client.errors import Broken, NotAllowed, Rejected
from tests.client.canned_server import TOKEN, CannedServer, Reply, event, events, job, problem, statuses

SUBMIT, FOLLOW = "POST /v1/jobs", "GET /v1/jobs/12/follow"


def test_run_submits_and_waits_in_one_request(server: CannedServer, cluster: Cluster) -> None:
    server.on(SUBMIT, events(event("job", job("submitted")), event("status", job("failed", exit_code=3))))

    ended = cluster.run("python", "train.py", cpu=2)

    assert (ended.id, ended.state, ended.exit_code) == ("12", "failed", 3)
    (seen,) = server.seen
    assert seen.body == {"command": ["python", "train.py"], "cpu": 2}
    assert seen.headers["Accept"] == "text/event-stream"


def test_the_job_is_known_before_it_has_ended(server: CannedServer, cluster: Cluster) -> None:
    known = threading.Event()
    server.on(SUBMIT, events(event("job", job("submitted")), known, event("status", job("succeeded"))))

    statuses = cluster.follow_spec({"command": ["true"]})
    first = next(statuses)
    known.set()

    assert (first.id, first.state) == ("12", "submitted")
    assert [status.state for status in statuses] == ["succeeded"]


def test_a_job_that_had_already_ended_yields_one_status(server: CannedServer, cluster: Cluster) -> None:
    server.on(SUBMIT, events(event("job", job("succeeded"))))

    assert [status.state for status in cluster.follow_spec({"command": ["true"]})] == ["succeeded"]


def test_an_interrupted_submit_stream_resumes_by_following_the_job(
    server: CannedServer, cluster: Cluster
) -> None:
    server.on(SUBMIT, events(event("job", job("submitted")), cut=True))
    server.on(
        FOLLOW, problem(503, "unavailable", "starting", retry_after=0), statuses(job(), job("succeeded"))
    )

    assert cluster.run("true").state == "succeeded"
    assert len(server.asked(SUBMIT)) == 1


def test_a_submit_interrupted_before_the_first_status_is_retried_with_its_key(
    server: CannedServer, cluster: Cluster
) -> None:
    whole = events(event("job", job("submitted")), event("status", job("succeeded")))
    server.on(SUBMIT, Reply(cut=True), events(cut=True), whole)

    assert cluster.run("true").state == "succeeded"
    keys = [seen.headers["Idempotency-Key"] for seen in server.asked(SUBMIT)]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_an_explicit_idempotency_key_is_sent(server: CannedServer, cluster: Cluster) -> None:
    server.on(SUBMIT, events(event("job", job("succeeded"))))

    cluster.run("true", key="nightly")

    assert server.asked(SUBMIT)[0].headers["Idempotency-Key"] == "nightly"


def test_a_refusal_is_raised_as_by_submit(server: CannedServer, cluster: Cluster) -> None:
    server.on(SUBMIT, problem(400, "bad_field", "memory: 'lots' is no size", field="memory"))

    with pytest.raises(Rejected, match="no size") as refused:
        cluster.run("true", memory="lots")

    assert refused.value.field == "memory"
    with pytest.raises(Rejected, match="command"):
        cluster.run()


def test_without_a_valid_token_nothing_is_followed(server: CannedServer) -> None:
    with Cluster(Endpoint(server.addr, "wrong")) as stranger, pytest.raises(NotAllowed):
        stranger.run("true")

    assert len(server.seen) == 1


def test_an_answer_that_is_not_an_event_stream_is_rejected(server: CannedServer, cluster: Cluster) -> None:
    server.on(FOLLOW, job("succeeded"))
    server.on("GET /v1/jobs/12", job())

    with pytest.raises(Broken, match="did not request"):
        cluster.job("12").wait()


def test_requests_and_finished_streams_share_one_connection(server: CannedServer, cluster: Cluster) -> None:
    server.on(SUBMIT, events(event("job", job("submitted")), event("status", job("succeeded"))))
    server.on("GET /v1/jobs/12", job("succeeded"))

    streams = [list(cluster.follow_spec({"command": ["true"]})) for _ in range(3)]
    cluster.job("12")

    assert [len(statuses) for statuses in streams] == [2, 2, 2]
    assert len({seen.port for seen in server.seen}) == 1


def test_a_stream_that_is_abandoned_early_is_closed(server: CannedServer, cluster: Cluster) -> None:
    never = threading.Event()
    server.on(SUBMIT, events(event("job", job("submitted")), never))
    server.on("GET /v1/jobs/12", job())

    with closing(cluster.follow_spec({"command": ["true"]})) as statuses:  # type: ignore[type-var]
        next(statuses)
    cluster.job("12")
    never.set()

    assert server.seen[0].port != server.seen[1].port


async def test_run_works_with_await(server: CannedServer) -> None:
    server.on(SUBMIT, events(event("job", job("submitted")), event("status", job("succeeded"))))

    async with AsyncCluster(Cluster(Endpoint(server.addr, TOKEN))) as cluster:
        assert (await cluster.run("true")).state == "succeeded"
