"""Requests are retried while no server is reachable; errors keep their code; tokens need TLS."""

import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

from rota.client.cluster import Cluster
from rota.client.context import Endpoint
from rota.client.errors import Broken, Conflict, NotAllowed, NotFound, Rejected, Unavailable
from tests.client.canned_server import TOKEN, CannedServer, Reply, job, node, problem


def impatient(server: CannedServer, token: str = TOKEN) -> Cluster:
    return Cluster(Endpoint(server.addr, token), patience_seconds=0.0)


def test_calls_share_one_connection(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/nodes", {"nodes": [node()]})

    cluster.nodes.list()
    cluster.nodes.list()

    first, second = server.asked("GET /v1/nodes")
    assert first.port == second.port


def test_a_call_to_an_unavailable_server_is_retried(server: CannedServer, cluster: Cluster) -> None:
    busy = problem(503, "unavailable", "starting", retry_after=0)
    server.on("GET /v1/nodes", busy, Reply(cut=True), busy, {"nodes": [node()]})

    assert [found.name for found in cluster.nodes.list()] == ["laptop"]


def test_a_submit_whose_answer_was_lost_is_retried_with_the_same_key(
    server: CannedServer, cluster: Cluster
) -> None:
    server.on("POST /v1/jobs", Reply(cut=True), Reply(job(), 201))

    cluster.submit("true")

    first, second = server.asked("POST /v1/jobs")
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]


@pytest.mark.parametrize("body", [b"", b'{"nodes": '], ids=["its head", "half of it"])
def test_a_truncated_answer_counts_as_no_answer(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            line, _ = door.accept()
            with line:
                line.recv(65_536)
                line.sendall(head + body)

        answering = threading.Thread(target=answer)
        answering.start()
        dying = Cluster(Endpoint(f"http://127.0.0.1:{door.getsockname()[1]}", TOKEN), patience_seconds=0.0)
        with pytest.raises(Unavailable):
            dying.nodes.list()
        answering.join()


def test_two_submits_have_two_keys(server: CannedServer, cluster: Cluster) -> None:
    server.on("POST /v1/jobs", Reply(job(), 201))

    cluster.submit("true")
    cluster.submit("true")

    assert len({seen.headers["Idempotency-Key"] for seen in server.asked("POST /v1/jobs")}) == 2


def test_a_server_that_comes_back_is_found_again(server: CannedServer, cluster: Cluster) -> None:
    server.on("GET /v1/nodes", {"nodes": []})
    cluster.nodes.list()
    server.stop()
    back = threading.Timer(0.2, server.start)
    back.start()

    assert cluster.nodes.list() == []
    back.join()


def test_retries_end_with_the_patience(server: CannedServer) -> None:
    server.stop()

    with pytest.raises(Unavailable, match="connection refused") as caught:
        impatient(server).nodes.list()

    assert caught.value.exit_code == 75


def test_a_waiting_command_prints_why(server: CannedServer) -> None:
    messages: list[str] = []
    server.on("GET /v1/nodes", problem(503, "unavailable", "no leader yet", retry_after=0), {"nodes": []})
    cluster = Cluster(Endpoint(server.addr, TOKEN), 30.0, lambda reason: messages.append(str(reason)))

    with cluster:
        cluster.nodes.list()

    assert messages == ["no leader yet"]


def test_a_delete_whose_answer_was_lost_is_no_error(server: CannedServer, cluster: Cluster) -> None:
    server.on("DELETE /v1/nodes/n1", Reply(cut=True), problem(404, "not_found", "there is no node n1"))

    cluster.nodes.delete("n1")

    assert len(server.asked("DELETE /v1/nodes/n1")) == 2


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (400, "bad_field", Rejected, 2),
        (401, "unauthenticated", NotAllowed, 5),
        (403, "not_allowed", NotAllowed, 5),
        (404, "not_found", NotFound, 4),
        (409, "conflict", Conflict, 1),
        (413, "too_large", Rejected, 2),
        (422, "impossible", Rejected, 1),
        (429, "queue_full", Unavailable, 75),
        (500, "internal", Broken, 1),
        (503, "unavailable", Unavailable, 75),
        (507, "store_full", Broken, 75),
    ],
)
def test_each_code_has_its_exception_and_exit_code(
    server: CannedServer, status: int, code: str, kind: type[Exception], exit_code: int
) -> None:
    server.on("GET /v1/nodes", problem(status, code, "so it is", field="f", hint="do that"))

    with pytest.raises(kind) as caught, impatient(server) as cluster:
        cluster.nodes.list()

    error = caught.value
    assert [getattr(error, name) for name in ("code", "field", "hint", "exit_code")] == [
        code,
        "f",
        "do that",
        exit_code,
    ]
    assert str(error) == "so it is"


def test_an_answer_that_is_not_json_is_rejected(server: CannedServer) -> None:
    server.on("GET /v1/nodes", Reply(stream=(b"<html>",)))

    with pytest.raises(Broken, match="not JSON"), impatient(server) as cluster:
        cluster.nodes.list()


def test_an_answer_without_a_required_field_is_rejected(server: CannedServer) -> None:
    server.on("GET /v1/nodes", {"nodes": [{"name": "x"}]})

    with pytest.raises(Broken, match="lacks a field"), impatient(server) as cluster:
        cluster.nodes.list()


@pytest.mark.parametrize("addr", ["127.0.0.1:3000", "ftp://x", "http://", "http://127.0.0.1:port"])
def test_an_invalid_address_is_rejected(addr: str) -> None:
    with pytest.raises(Rejected, match="is not an address"):
        Cluster(Endpoint(addr, TOKEN))


@pytest.mark.parametrize("addr", ["http://10.0.0.5:3000", "http://127.evil.example:3000"])
def test_a_token_is_not_sent_in_plain_text_outside_loopback(addr: str) -> None:
    with pytest.raises(Rejected, match="refusing to send a token in plain text"):
        Cluster(Endpoint(addr, TOKEN))


def test_a_token_with_a_line_break_is_refused(server: CannedServer) -> None:
    with pytest.raises(Rejected, match="no token has"):
        impatient(server, "a\r\nX-Injected: b")


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"nodes": []}')

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's signature
        pass


def test_the_servers_certificate_is_checked_against_the_ca(tmp_path: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(tmp_path / "ours.pem"))
    theirs.cert_pem.write_to_path(str(tmp_path / "theirs.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(context)
    server = HTTPServer(("127.0.0.1", 0), _Hello)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a refused handshake is the point
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    addr = f"https://127.0.0.1:{server.server_address[1]}"

    with Cluster(Endpoint(addr, TOKEN, str(tmp_path / "ours.pem")), 0.0) as cluster:
        assert cluster.nodes.list() == []
    with pytest.raises(Rejected, match="is not trusted"):
        Cluster(Endpoint(addr, TOKEN, str(tmp_path / "theirs.pem")), 0.0).nodes.list()

    server.shutdown()
    server.server_close()
