"""Several servers: the leader is found and kept, and the others are tried when it fails."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

import rota
from rota.client.cluster import Cluster
from rota.client.context import Endpoint
from rota.client.errors import Rejected, Unavailable
from rota.client.server_admin import COPY_BYTES
from rota.testing.cluster import free_ports
from tests.client.canned_server import TOKEN, CannedServer, Reply, job, node, problem

STANDS_BY = problem(503, "unavailable", "this server stands by", retry_after=1)


@pytest.fixture
def trio() -> Iterator[list[CannedServer]]:
    servers = [CannedServer() for _ in range(3)]
    yield servers
    for server in servers:
        server.stop()


def to_all(servers: list[CannedServer]) -> Cluster:
    return Cluster(Endpoint(",".join(server.addr for server in servers), TOKEN), patience_seconds=30)


def test_the_leader_is_found_and_kept(trio: list[CannedServer]) -> None:
    standby, leader, _ = trio
    standby.on("GET /v1/nodes", STANDS_BY)
    leader.on("GET /v1/nodes", {"nodes": [node()]})
    with to_all(trio) as cluster:
        cluster.nodes.list()
        cluster.nodes.list()

    assert [len(server.asked("GET /v1/nodes")) for server in trio] == [1, 2, 0]


def test_when_the_leader_fails_the_request_goes_to_the_next_one(trio: list[CannedServer]) -> None:
    first, second, third = trio
    first.on("GET /v1/nodes", {"nodes": []})
    second.on("POST /v1/jobs", STANDS_BY)
    third.on("POST /v1/jobs", job())
    with to_all(trio) as cluster:
        cluster.nodes.list()
        first.stop()
        cluster.submit("true")

    (asked,) = second.asked("POST /v1/jobs")
    (forwarded,) = third.asked("POST /v1/jobs")
    assert asked.headers["Idempotency-Key"] == forwarded.headers["Idempotency-Key"]


def test_a_backup_is_downloaded_from_the_leader(trio: list[CannedServer]) -> None:
    standby, leader, _ = trio
    standby.on("GET /v1/store/backup", STANDS_BY)
    leader.on("GET /v1/store/backup", Reply(stream=(b"all", b" of it")))
    into = io.BytesIO()
    with to_all(trio) as cluster:
        cluster.server.back_up(into)

    assert into.getvalue() == b"all of it"


def test_an_interrupted_backup_is_not_resumed(trio: list[CannedServer]) -> None:
    leader, *others = trio
    leader.on("GET /v1/store/backup", Reply(stream=(bytes(COPY_BYTES), b"half of the rest"), cut=True))
    for other in others:
        other.on("GET /v1/store/backup", Reply(stream=(b"all of it",)))
    into = io.BytesIO()
    with to_all(trio) as cluster, pytest.raises(Unavailable):
        cluster.server.back_up(into)

    assert into.getvalue() == bytes(COPY_BYTES)
    assert [len(server.asked("GET /v1/store/backup")) for server in trio] == [1, 0, 0]


def test_without_a_leader_the_call_fails(trio: list[CannedServer]) -> None:
    for server in trio:
        server.on("GET /v1/nodes", STANDS_BY)
    with to_all(trio) as cluster:
        cluster.transport.patience_seconds = 0
        with pytest.raises(Unavailable, match="stands by"):
            cluster.nodes.list()

    assert [len(server.asked("GET /v1/nodes")) for server in trio] == [1, 1, 1]


def test_an_invalid_address_in_a_list_is_named() -> None:
    with pytest.raises(Rejected, match="'ftp://x' is not an address"):
        Cluster(Endpoint("http://127.0.0.1:1,ftp://x", TOKEN))


def test_a_task_reports_to_whichever_server_answers(server: CannedServer, tmp_path: Path) -> None:
    path, token = "/v1/jobs/1/tasks/0/attempts/1/result", tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    (dead,) = free_ports(1)
    urls = f"http://127.0.0.1:{dead}{path} {server.addr}{path}"
    server.on(f"POST {path}", problem(503, "unavailable", "nobody leads", retry_after=0), Reply({}, 201))
    rota.report({"loss": 1}, environ={"ROTA_RESULT_URLS": urls, "ROTA_TOKEN_FILE": str(token)})

    assert [seen.body for seen in server.asked(f"POST {path}")] == [
        {"results": {"loss": 1}, "failure": None}
    ] * 2


def test_a_task_started_before_an_upgrade_has_one_result_url(server: CannedServer, tmp_path: Path) -> None:
    path, token = "/v1/jobs/1/tasks/0/attempts/1/result", tmp_path / "token"
    token.write_text(TOKEN)
    server.on(f"POST {path}", Reply({}, 201))
    rota.report(
        failure="no", environ={"ROTA_RESULT_URL": f"{server.addr}{path}", "ROTA_TOKEN_FILE": str(token)}
    )

    assert server.asked(f"POST {path}")[0].body == {"results": {}, "failure": "no"}
