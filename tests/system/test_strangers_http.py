"""A client without a token costs the HTTP port no memory and no descriptors, and delays no other client."""

import contextlib
import json
import platform
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import BinaryIO

import pytest

from rota.apiserver.http import check_host
from rota.model.errors import NotAllowed
from rota.testing.cluster import LocalCluster
from rota.testing.processes import open_sockets, resident_bytes, until
from tests.system.strangers import MIB, dial, dialled, pour, wait_until_closed

ASK = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nhost: local"
HALF_BODY = b"POST /v1/enroll HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{"
HALF_CHUNK = b"POST /v1/enroll HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n3e8\r\n{"
BEGUN = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = b"POST /v1/enroll HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
BOUNDS = {
    "ROTA_HTTP_SERVER_NAMES": "Rota.example.org,proxy",
    "ROTA_HTTP_SERVER_HEAD_SECONDS": "2",
    "ROTA_HTTP_SERVER_BODY_SECONDS": "2",
    "ROTA_HTTP_SERVER_IDLE_SECONDS": "2",
    "ROTA_HTTP_SERVER_MAX_CONNECTIONS_PER_ADDRESS": "400",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A server without nodes, which waits for two seconds where it waits for ten and more otherwise."""
    with LocalCluster(tmp_path_factory.mktemp("alone"), nodes=0, settings=BOUNDS) as running:
        yield running


def is_answered(cluster: LocalCluster) -> bool:
    return cluster.call("GET", "/v1/server").status == 200


def pieces_of_a_header(number: int) -> bytes:
    return b"x-%d: %s\r\n" % (number, b"v" * 1000)


@pytest.mark.parametrize(
    ("first", "endless", "offered"),
    [
        pytest.param(b"", lambda _: ASK * 100, 8 * MIB, id="pipelined requests"),
        pytest.param(BEGUN, pieces_of_a_header, 32 * MIB, id="headers"),
        pytest.param(BEGUN + b"x: ", lambda _: b"v" * 4096, 32 * MIB, id="a header's value"),
        pytest.param(BEGUN, lambda _: b"v" * 4096, 32 * MIB, id="a header's name"),
        pytest.param(b"GET /", lambda _: b"v" * 4096, 32 * MIB, id="a path"),
        pytest.param(CHUNKED + b"1;", lambda _: b"v" * 4096, 32 * MIB, id="an extension of a chunk"),
        pytest.param(CHUNKED + b"0\r\n", pieces_of_a_header, 32 * MIB, id="trailers"),
    ],
)
def test_an_endless_request_costs_no_memory(
    alone: LocalCluster, first: bytes, endless: Callable[[int], bytes], offered: int
) -> None:
    assert is_answered(alone)  # what a first request needs is there
    before, sockets = resident_bytes(alone.server_pid), open_sockets(alone.server_pid)

    with dial(alone.http) as peer:
        pour(peer, first, endless, offered)

        assert is_answered(alone)
        assert (resident_bytes(alone.server_pid) - before) / offered < 0.25
        until(lambda: open_sockets(alone.server_pid) <= sockets, "the server closes the connection")


def test_connections_that_never_finish_a_request_are_closed(alone: LocalCluster) -> None:
    before = open_sockets(alone.server_pid)
    with (
        dialled(alone.http, 100) as silent,
        dialled(alone.http, 100, HALF_HEAD) as heads,
        dialled(alone.http, 50, HALF_BODY) as bodies,
        dialled(alone.http, 50, HALF_CHUNK) as chunks,
        dialled(alone.http, 50, ASK) as kept,
    ):
        assert is_answered(alone)

        wait_until_closed([*silent, *heads, *bodies, *chunks, *kept])

        until(lambda: open_sockets(alone.server_pid) <= before, "descriptors are given back")


def test_a_stream_is_not_ended_by_request_deadlines(alone: LocalCluster) -> None:
    headers = {"authorization": f"Bearer {alone.token}", "accept": "text/event-stream"}
    connection = HTTPConnection(alone.http, timeout=60)
    connection.request("GET", "/v1/events", headers=headers)
    stream = connection.getresponse()
    with dialled(alone.http, 1) as silent, dialled(alone.http, 1, ASK) as kept:
        wait_until_closed([*silent, *kept])

    job = alone.submit("true")

    seen = next(line for line in stream if job.encode() in line)
    assert seen.startswith(b"data: ")
    connection.close()


def test_one_address_cannot_take_the_connections_of_others(alone: LocalCluster) -> None:
    with dialled(alone.http, 420) as peers:
        for peer in peers[400:]:
            assert peer.recv(100).startswith(b"HTTP/1.1 503 ")

        with dial(alone.http, "127.0.0.2") as other, other.makefile("rb") as answers:
            other.sendall(ASK)
            assert status_of(answers) == 200
    until(lambda: is_let_in(alone), "the places of those that went are free")


def is_let_in(cluster: LocalCluster) -> bool:
    try:
        return is_answered(cluster)
    except (OSError, json.JSONDecodeError):
        return False


def test_malformed_requests_are_counted_in_the_log_not_listed(alone: LocalCluster) -> None:
    log = alone.directory / "server.log"
    before = len(log.read_text().splitlines())
    for malformed in (
        b"\x16\x03\x01\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        BEGUN + b"connection: upgrade\r\nupgrade: x\r\n\r\n",
    ):
        for _ in range(20):
            with dial(alone.http) as peer:
                peer.sendall(malformed)
                peer.recv(100)

    lines = log.read_text().splitlines()[before:]
    assert len(lines) <= 3, lines


def test_the_longest_url_of_a_log_reader_is_accepted(alone: LocalCluster) -> None:
    places = "&".join(f"from={number}.4294967295.stdout%3A{10**17}" for number in range(1000))

    assert alone.call("GET", f"/v1/jobs/none/logs?format=chunks&{places}").status == 404


def test_a_server_answers_to_its_own_and_configured_names(alone: LocalCluster) -> None:
    names = ("rota.example.org", "proxy:443", platform.node(), "127.0.0.1", "evil.example", "127.0.0.9", "")
    statuses = [alone.call("GET", "/v1/server", host=name or " ").status for name in names]

    assert statuses == [200, 200, 200, 200, 403, 403, 403]


@pytest.mark.parametrize(
    ("name", "reached", "is_accepted"),
    [
        ("10.0.0.1:3000", "10.0.0.1", True),
        ("10.0.0.1:3000", "::ffff:10.0.0.1", True),
        ("[fd00::1]:3000", "fd00::1", True),
        ("10.0.0.2:3000", "10.0.0.1", False),
        ("", "", False),
    ],
)
def test_the_address_of_the_connection_is_a_name_of_the_server(
    name: str, reached: str, is_accepted: bool
) -> None:
    with contextlib.nullcontext() if is_accepted else pytest.raises(NotAllowed):
        check_host(name, {"localhost"}, (reached, 3000))


def test_pipelined_requests_are_all_answered(alone: LocalCluster) -> None:
    with dial(alone.http) as peer, peer.makefile("rb") as answers:
        posted = b"POST /v1/enroll HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
        peer.sendall((ASK + posted) * 20)
        statuses = [status_of(answers) for _ in range(40)]

        assert statuses == [200, 400] * 20

        for at in range(len(ASK) - 4, len(ASK)):  # the end of a head in two pieces, the next one behind it
            peer.sendall(ASK[:at])
            peer.sendall(ASK[at:] + ASK)
            assert [status_of(answers), status_of(answers)] == [200, 200]


def status_of(answers: BinaryIO) -> int:
    status = int(answers.readline().split()[1])
    length = 0
    while (line := answers.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split()[1])
    answers.read(length)
    return status
