"""The HTTP API on a real engine, store and socket."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rota.apiserver.http import ROUTES
from rota.apiserver.openapi.document import PUBLIC_PATHS
from rota.apiserver.spec import fields
from rota.identity.node_identity import make_request
from rota.identity.tokens import Role
from rota.model.errors import BadField
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState, NodeState
from rota.model.limits import BODY_BYTES_MAX
from rota.store.memory import MemoryStore
from tests.apiserver.builders import attempts, node, node_status, statuses
from tests.apiserver.serving import serving


async def test_every_route_and_method_needs_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        server.api.guesses.burst = 10_000  # of one address
        for route in ROUTES:
            path = route.path.format(ref="1", index="0", attempt="1") if "{" in route.path else route.path
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
                for authorization in ("", "Bearer nonsense", f"Bearer rota_{'x' * 43}", "Basic YTpi"):
                    reply = await server.call(method, path, Authorization=authorization)

                    assert (reply.status == 401) == (path not in PUBLIC_PATHS), (method, path, reply)


async def test_a_job_is_submitted_listed_shown_canceled_and_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        made = await server.call("POST", "/v1/jobs", {"command": ["sleep", "9"], "count": 3, "memory": "1g"})
        listed = await server.call("GET", "/v1/jobs?state=active")
        too_early = await server.call("DELETE", "/v1/jobs/1")
        canceled = await server.call("POST", "/v1/jobs/sleep/cancel", {"reason": "enough"})
        shown = await server.call("GET", "/v1/jobs/last")
        again = await server.call("POST", "/v1/jobs/1/cancel")
        deleted = await server.call("DELETE", "/v1/jobs/1")
        gone = await server.call("GET", "/v1/jobs/1")

    assert made.status == 201
    assert made.json["spec"]["memory"] == 2**30
    assert made.json["counts"]["pending"] == 3
    assert [job["id"] for job in listed.json["jobs"]] == ["1"]
    assert "spec" not in listed.json["jobs"][0]
    assert (too_early.status, too_early.json["hint"]) == (409, "cancel it first: rota cancel 1")
    assert (canceled.status, canceled.json["state"], canceled.json["reason"]) == (202, "canceled", "enough")
    assert shown.json["counts"]["canceled"] == 3
    assert again.status == 409
    assert (deleted.status, deleted.body) == (204, b"")
    assert (gone.status, gone.json["code"]) == (404, "not_found")


async def test_the_same_key_gives_the_same_job_also_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        first = await server.call("POST", "/v1/jobs", {"command": ["a"]}, Idempotency_Key="k1")
        second = await server.call("POST", "/v1/jobs", {"command": ["a"], "cpu": "1"}, Idempotency_Key="k1")
    async with serving(tmp_path) as server:
        third = await server.call("POST", "/v1/jobs", {"command": ["a"]}, Idempotency_Key="k1")
        other = await server.call("POST", "/v1/jobs", {"command": ["b"]}, Idempotency_Key="k1")

    assert [reply.status for reply in (first, second, third, other)] == [201, 200, 200, 409]
    assert first.json["id"] == second.json["id"] == third.json["id"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"x" * 10_000_000, 413, "too_large"),
        (b"{", 400, "bad_request"),
        (b'{"command": ["\xff"]}', 400, "bad_request"),
        (b"[" * 100_000, 400, "bad_request"),
        (b"[]", 400, "bad_request"),
        (b"null", 400, "bad_request"),
        (b'{"command": ["a"], "count": 1000000000}', 400, "bad_field"),
        (b'{"command": ["a"], "cpu": 1' + b"0" * 400 + b"}", 400, "bad_field"),
        (b'{"command": ["a"], "memroy": 1}', 400, "bad_field"),
    ],
)
async def test_bad_input_is_a_problem_and_the_server_continues(
    tmp_path: Path, body: bytes, status: int, code: str
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        reply = await server.call("POST", "/v1/jobs", body)
        after = await server.call("GET", "/v1/jobs")

    assert (reply.status, reply.json["code"]) == (status, code)
    assert reply.headers["content-type"] == "application/problem+json"
    assert (after.json["jobs"], after.json["next"]) == ([], None)


async def test_a_body_without_a_length_is_refused_at_the_limit(tmp_path: Path) -> None:
    piece = b"%x\r\n" % 65536 + b"x" * 65536 + b"\r\n"
    async with serving(tmp_path, MemoryStore) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(BODY_BYTES_MAX // 65536 + 1):
            writer.write(piece)
        status = await reader.readline()
        writer.close()

    assert b" 413 " in status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:3000"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:3000"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example:3000"}, 403),
        ({"Host": "localhost:3000", "Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:3000", "Origin": "http://localhost:4000"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
    ],
)
async def test_other_hosts_and_origins_are_refused_for_reading_too(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        reply = await server.call("GET", "/v1/server", **headers)

    assert reply.status == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/jobs/", 404),
        ("PUT", "/v1/jobs", 405),
        ("GET", "/v1/jobs/7", 404),
        ("GET", "/v1/jobs?limit=0", 400),
        ("GET", "/v1/jobs?limit=ten", 400),
        ("GET", "/v1/jobs?limit=--5", 400),
        ("GET", "/v1/jobs?state=asleep", 400),
        ("GET", "/v1/nodes/n9", 404),
        ("GET", "/v1/events?since=x", 400),
        ("GET", "/v1/events?since=99999.0", 410),
    ],
)
async def test_an_unknown_path_or_object_is_a_problem(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        reply = await server.call(method, path)

    assert (reply.status, reply.json["status"]) == (status, status)
    assert reply.headers["content-type"] == "application/problem+json"


async def test_changes_and_refusals_are_audited_and_reads_are_not(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        await server.call("GET", "/v1/jobs")
        await server.call("POST", "/v1/jobs", {"command": []})
        await server.call("GET", "/v1/jobs", Authorization="Bearer rota_wrong")
        audited = server.audited()

    assert [(line["who"], line["action"], line["target"], line["outcome"]) for line in audited] == [
        ("ada", "submit_job", "job 1", "201"),
        ("ada", "submit_job", "/v1/jobs", "400 bad_field"),
        ("", "GET", "/v1/jobs", "401 unauthenticated"),
    ]


async def test_a_token_sees_its_own_namespaces_only(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit(namespace="web")
        mine = await server.submit(namespace="ml")
        guest = server.token_for(Role.SUBMITTER, "ml")
        listed = await server.call("GET", "/v1/jobs", Authorization=guest)
        other = await server.call("GET", "/v1/jobs/1", Authorization=guest)
        refused = await server.call("POST", "/v1/jobs", {"command": ["a"]}, Authorization=guest)
        events = await server.call("GET", "/v1/events", Authorization=guest)

    assert [job["id"] for job in listed.json["jobs"]] == [mine]
    assert other.status == 404
    assert (refused.status, refused.json["code"]) == (403, "not_allowed")
    assert {event["job"] for event in events.json["events"]} == {mine}


async def test_a_viewer_may_read_and_change_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        await server.put("apiserver", node(1))
        viewer = server.token_for(Role.VIEWER, "*")
        changes = [
            ("POST", "/v1/jobs", {"command": ["a"]}),
            ("POST", "/v1/jobs/1/cancel", {}),
            ("DELETE", "/v1/jobs/1", None),
            ("POST", "/v1/nodes/n1/drain", {}),
            ("DELETE", "/v1/nodes/n1", None),
            ("POST", "/v1/join-tokens", {"local": True}),
        ]
        refused = [await server.call(*change, Authorization=viewer) for change in changes]
        seen = await server.call("GET", "/v1/jobs/1", Authorization=viewer)

    assert {reply.status for reply in refused} == {403}
    assert seen.status == 200


async def test_pages_of_jobs_follow_each_other(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        for _ in range(5):
            await server.submit()
        first = await server.call("GET", "/v1/jobs?limit=2")
        second = await server.call("GET", f"/v1/jobs?limit=2&before={first.json['next']}")
        third = await server.call("GET", f"/v1/jobs?limit=2&before={second.json['next']}")

    pages = [[job["id"] for job in page.json["jobs"]] for page in (first, second, third)]
    assert pages == [["5", "4"], ["3", "2"], ["1"]]
    assert third.json["next"] is None


async def test_tasks_are_paged_filtered_and_shown_with_their_attempts(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit(count=300)
        await server.put("apiserver", node(1))
        await server.put("watcher", node_status(1))
        await server.put("scheduler", attempts(job, 256, number=[1, 1], placed_at_ms=[7, 8]))
        await server.put("watcher", statuses(job, 256, number=[1], state=[3], started_at_ms=[9]))
        page = await server.call("GET", f"/v1/jobs/{job}/tasks?limit=2&after=0")
        runs = await server.call("GET", f"/v1/jobs/{job}/tasks?state=running")
        shown = await server.call("GET", f"/v1/jobs/{job}/tasks/0")
        none = await server.call("GET", f"/v1/jobs/{job}/tasks/300")

    assert [task["index"] for task in page.json["tasks"]] == [1, 2]
    assert page.json["next"] == 2
    assert [task["index"] for task in runs.json["tasks"]] == [0]
    assert [past["attempt"] for past in shown.json["attempts"]] == [1]
    assert shown.json["node"] == "laptop"
    assert none.status == 404


async def test_a_node_is_cordoned_drained_opened_and_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.put("apiserver", node(1))
        await server.put("watcher", node_status(1))
        cordoned = await server.call("POST", "/v1/nodes/laptop/cordon")
        drained = await server.call("POST", "/v1/nodes/n1/drain", {"deadline_seconds": None})
        opened = await server.call("POST", "/v1/nodes/n1/open")
        alive = await server.call("DELETE", "/v1/nodes/n1")
        await server.put("watcher", node_status(1, NodeState.LOST))
        deleted = await server.call("DELETE", "/v1/nodes/n1")
        left = await server.call("GET", "/v1/nodes")

    states = [reply.json["eligibility"] for reply in (cordoned, drained, opened)]
    assert states == ["cordoned", "drained", "open"]
    assert (alive.status, deleted.status) == (409, 204)
    assert left.json["nodes"] == []


async def test_a_machine_joins_with_a_token_once(tmp_path: Path) -> None:
    request = make_request(tmp_path / "node").decode()
    async with serving(tmp_path, MemoryStore) as server:
        elsewhere = await server.call("POST", "/v1/join-tokens", {})
        made = await server.call("POST", "/v1/join-tokens", {"local": True, "labels": {"rack": "7"}})
        body: dict[str, Any] = {"token": made.json["token"], "name": "box", "machine_id": "m"}
        spoiled = await server.call("POST", "/v1/enroll", {**body, "csr": "nonsense"}, Authorization="")
        joined = await server.call("POST", "/v1/enroll", {**body, "csr": request}, Authorization="")
        again = await server.call("POST", "/v1/enroll", {**body, "csr": request}, Authorization="")
        nodes = await server.call("GET", "/v1/nodes")
        ca = await server.call("GET", "/v1/ca", Authorization="")

    assert (elsewhere.status, elsewhere.json["hint"]) == (409, "rota dev --listen ADDR")
    assert (spoiled.status, spoiled.json["field"]) == (400, "csr")
    assert joined.status == 201
    assert joined.json["ca"] == ca.json["ca"]
    assert (again.status, again.json["detail"]) == (403, "join token was already used")
    assert [(entry["id"], entry["name"], entry["labels"]) for entry in nodes.json["nodes"]] == [
        (joined.json["node_id"], "box", {"rack": "7"})
    ]


async def test_health_readiness_and_the_server_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        alive = await server.call("GET", "/healthz", Authorization="")
        ready = await server.call("GET", "/readyz", Authorization="")
        server.engine.healthy = False
        unready = await server.call("GET", "/readyz", Authorization="")
        shown = await server.call("GET", "/v1/server")

    assert [reply.status for reply in (alive, ready, unready)] == [200, 200, 503]
    assert unready.headers["retry-after"] == "1"
    assert (shown.json["version"], shown.json["store"], shown.json["epoch"]) == ("0.1.0", "sqlite", 1)


async def test_an_internal_error_shows_no_details(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        object.__setattr__(server.api, "explain", lambda *_: 1 / 0)
        with capture_logs() as logged:
            reply = await server.call("GET", "/v1/jobs/1/why")

    assert (reply.status, reply.json["code"]) == (500, "internal")
    assert [line["event"] for line in logged if line["log_level"] == "error"] == ["request failed"]
    assert "zero" not in reply.body.decode()


async def test_the_reason_why_a_job_waits_is_shown(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        reply = await server.call("GET", "/v1/jobs/last/why")

    assert (reply.json["job"], reply.json["waits"]) == ("1", True)
    assert reply.json["sentence"] == "job 1 waits for a node."


async def test_an_ended_job_shows_its_outcome(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit()
        await server.put(
            "controllers", JobStatus(JobId(job), JobState.FAILED, "exit code 3", 1_000, 3_500, 3)
        )
        reply = await server.call("GET", f"/v1/jobs/{job}")

    assert (reply.json["state"], reply.json["exit_code"]) == ("failed", 3)
    assert reply.json["sentence"] == "failed in 2.5 s (exit code 3)."


async def test_refusals_between_commits_do_not_disturb_submits(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with asyncio.TaskGroup() as tasks:
            submits = [tasks.create_task(server.submit()) for _ in range(30)]
            misses = [tasks.create_task(server.call("GET", "/v1/jobs/none")) for _ in range(30)]
            refused = [tasks.create_task(server.call("POST", "/v1/jobs", {})) for _ in range(30)]
        listed = await server.call("GET", "/v1/jobs")

    assert sorted(int(task.result()) for task in submits) == list(range(1, 31))
    assert {task.result().status for task in misses} == {404}
    assert {task.result().status for task in refused} == {400}
    assert len(listed.json["jobs"]) == 30


def test_a_field_with_a_very_long_name_costs_no_more_than_a_short_one() -> None:
    def seconds(length: int) -> float:
        started = time.process_time()
        with pytest.raises(BadField):
            fields.known_fields({"a" * length: 1}, ("token", "csr", "name", "machine_id", "labels", "role"))
        return time.process_time() - started

    short, endless = (min(seconds(length) for _ in range(5)) for length in (1000, 1_000_000))

    assert endless / short < 20


@pytest.mark.parametrize(
    ("path", "token"),
    [("/v1/jobs", True), ("/v1/jobs", False), ("/v1/nowhere", True), ("/metrics", True)],
)
async def test_no_answer_can_be_framed_sniffed_or_leaked_by_referrer(
    tmp_path: Path, path: str, token: bool
) -> None:
    async with serving(tmp_path) as server:
        sent = {} if token else {"Authorization": "Bearer rota_wrong"}
        headers = (await server.call("GET", path, **sent)).headers

    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy)
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert "strict-transport-security" not in headers  # of plain text, on loopback
