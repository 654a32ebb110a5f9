"""Which requests a standby answers, which it forwards to the leader, and its errors."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.types import Receive, Scope, Send

from rota.apiserver import leader_proxy, standby
from rota.apiserver.api import Addresses
from rota.apiserver.http import ROUTES
from rota.apiserver.standby import ServedBy, StandbyApp, served_by
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.model.limits import STANDBY_AGE_MAX_MS, STANDBY_AGE_MS

JOB = b'{"id":"7"}'
CREATED = b"HTTP/1.1 201 Created\r\nRota-Revision: 9\r\nContent-Length: 10\r\n\r\n" + JOB
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n"
END = b"0\r\n\r\n"


class StandbyReply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool

    @property
    def detail(self) -> str:
        return str(json.loads(self.body)["detail"])


class FakeRole:
    """A ServerRole with fixed answers."""

    def __init__(self, leader: str | None = None, age_ms: int | None = 20, revision: int = 5) -> None:
        self._leader, self._age_ms, self._revision = leader, age_ms, revision
        self.asked_for: list[int] = []

    def leader(self) -> str | None:
        return self._leader

    def set_leader(self, leader: str) -> None:
        self._leader = leader

    def epoch(self) -> int:
        return 1

    def age_ms(self) -> int | None:
        return self._age_ms

    async def wait_for_revision(self, revision: int) -> None:
        self.asked_for.append(revision)
        if revision > self._revision:
            await asyncio.Event().wait()


async def own_app(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"from here"})


class Standby:
    def __init__(self, directory: Path, role: FakeRole, authority: CertificateAuthority) -> None:
        vault = Vault.open(directory / "vault")
        self._secret = vault.make_server_token("me", 0)
        addresses = Addresses("127.0.0.1:3000", "127.0.0.1:1", "127.0.0.1:2")
        self._app = StandbyApp(own_app, role, vault, addresses, authority)

    @property
    def connections(self) -> list[leader_proxy.LeaderConnection]:
        return [connection for _, connection in self._app._leader_proxy._idle]

    def close(self) -> None:
        self._app.close()

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> StandbyReply:
        sent: list[Any] = []
        sent_headers = {"host": "127.0.0.1:3000", "authorization": f"Bearer {self._secret}", **headers}
        coming = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if not coming:
                await asyncio.Event().wait()
            return coming.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        path, _, query = path.partition("?")
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in sent_headers.items()]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": raw,
            "query_string": query.encode(),
        }
        await self._app(scope, receive, send)
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return StandbyReply(
            sent[0]["status"],
            answered,
            b"".join(message["body"] for message in sent[1:]),
            not sent[-1].get("more_body"),
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.open(tmp_path_factory.mktemp("ca"), datetime.now(UTC))


@pytest.fixture
async def make_standby(
    tmp_path: Path, authority: CertificateAuthority
) -> AsyncIterator[Callable[[FakeRole], Standby]]:
    made: list[Standby] = []

    def make(role: FakeRole) -> Standby:
        made.append(Standby(tmp_path, role, authority))
        return made[-1]

    yield make
    for app in made:
        app.close()


MakeStandby = Callable[[FakeRole], Standby]


@asynccontextmanager
async def fake_leader(*replies: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A leader that answers each request with these bytes and closes; without any it never answers."""
    requests: list[bytes] = []
    silence = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        requests.append(head + await reader.readexactly(length))
        if not replies:
            await silence.wait()
        writer.writelines(replies)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    finally:
        silence.set()
        server.close()


# ---- which server answers


def test_each_route_is_listed_with_the_server_that_answers() -> None:
    by_where: dict[ServedBy, set[str]] = {}
    for route in ROUTES:
        (method,) = route.methods or ("",)
        if method == "GET":
            by_where.setdefault(served_by(method, route.path), set()).add(route.path)
        else:
            assert served_by(method, route.path) is ServedBy.LEADER

    assert by_where[ServedBy.LEADER] == {
        "/v1/jobs/{ref}/logs",
        "/v1/jobs/{ref}/outputs",
        "/v1/jobs/{ref}/tasks/{index}/attempts/{attempt}/result",
        "/v1/join-tokens",
        "/v1/store/backup",
        "/v1/tokens",
        "/v1/watchers",
        "/v1/ca/rotation",
    }
    assert by_where[ServedBy.LOCAL] == set(standby._LOCAL_ROUTES)
    assert by_where[ServedBy.MIRROR] == set(standby._MIRROR_ROUTES)
    assert by_where[ServedBy.LEADER_FIRST] == set(standby._LEADER_FIRST_ROUTES)


async def test_a_read_of_records_is_answered_from_the_mirror_with_its_age(make_standby: MakeStandby) -> None:
    reply = await make_standby(FakeRole("http://10.0.0.2:3000", age_ms=20)).ask("GET", "/v1/jobs/1")

    assert (reply.status, reply.body) == (200, b"from here")
    assert reply.headers == {"rota-age-ms": "20", "rota-leader": "http://10.0.0.2:3000"}


async def test_a_read_that_needs_observations_is_forwarded_to_the_leader(make_standby: MakeStandby) -> None:
    async with fake_leader(CHUNKED, END) as (url, _):
        reply = await make_standby(FakeRole(url)).ask("GET", "/v1/nodes")

    assert (reply.body, reply.headers) == (b"onetwo", {"rota-leader": url})


async def test_a_leader_that_is_unavailable_is_replaced_by_the_mirror(make_standby: MakeStandby) -> None:
    async with fake_leader(b"HTTP/1.1 503 Sorry\r\nContent-Length: 0\r\n\r\n") as (url, _):
        reply = await make_standby(FakeRole(url)).ask("GET", "/v1/nodes")

    assert (reply.status, reply.body) == (200, b"from here")


@pytest.mark.parametrize("leader", [None, "http://127.0.0.1:1"])
async def test_without_a_reachable_leader_the_mirror_answers(
    make_standby: MakeStandby, leader: str | None
) -> None:
    reply = await make_standby(FakeRole(leader)).ask("GET", "/v1/nodes")

    assert (reply.status, reply.body, reply.headers["rota-age-ms"]) == (200, b"from here", "20")


async def test_a_read_from_an_old_mirror_is_forwarded_to_the_leader_first(make_standby: MakeStandby) -> None:
    async with fake_leader(CHUNKED, END) as (url, _):
        old = await make_standby(FakeRole(url, age_ms=STANDBY_AGE_MS + 1)).ask("GET", "/v1/jobs")
    alone = await make_standby(FakeRole(None, age_ms=STANDBY_AGE_MS + 1)).ask("GET", "/v1/jobs")

    assert old.body == b"onetwo"
    assert (alone.body, alone.headers["rota-age-ms"]) == (b"from here", str(STANDBY_AGE_MS + 1))


@pytest.mark.parametrize("age_ms", [None, STANDBY_AGE_MAX_MS + 1])
async def test_an_empty_or_too_old_mirror_is_unavailable(
    make_standby: MakeStandby, age_ms: int | None
) -> None:
    reply = await make_standby(FakeRole(None, age_ms=age_ms)).ask("GET", "/v1/jobs")

    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.detail == "this server is a standby, and no server leads now"


async def test_a_request_with_an_unknown_token_is_forwarded_to_the_leader(make_standby: MakeStandby) -> None:
    async with fake_leader(CHUNKED, END) as (url, requests):
        await make_standby(FakeRole(url)).ask("GET", "/v1/jobs", authorization="Bearer rota_new")

    assert b"authorization: Bearer rota_new\r\n" in requests[0]


# ---- read-your-writes


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/jobs", {"rota_revision": "5"}),
        ("/v1/events?since=5.1", {}),
        ("/v1/events?kind=job", {"last_event_id": "5.0"}),
    ],
)
async def test_a_read_waits_for_the_revision_that_the_client_has_seen(
    make_standby: MakeStandby, path: str, headers: dict[str, str]
) -> None:
    role = FakeRole()
    await make_standby(role).ask("GET", path, b"", **headers)

    assert role.asked_for == [5]


async def test_a_revision_that_is_not_reached_in_time_is_read_from_the_leader(
    make_standby: MakeStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "REACH_SECONDS", 0.0)
    async with fake_leader(CHUNKED, END) as (url, _):
        reply = await make_standby(FakeRole(url, revision=5)).ask("GET", "/v1/jobs", rota_revision="6")

    assert reply.body == b"onetwo"


async def test_a_change_is_forwarded_once_and_visible_here_before_it_is_answered(
    make_standby: MakeStandby,
) -> None:
    async with fake_leader(CREATED) as (url, requests):
        role = FakeRole(url, revision=9)
        body = b'{"command":["true"]}'
        reply = await make_standby(role).ask("POST", "/v1/jobs?x=1", body, idempotency_key="k")

    (request,) = requests
    assert request.startswith(b"POST /v1/jobs?x=1 HTTP/1.1\r\nhost: " + url[7:].encode() + b"\r\n")
    assert request.endswith(b"\r\n\r\n" + body)
    assert b"\r\nidempotency-key: k\r\n" in request
    assert (reply.status, reply.body, role.asked_for) == (201, JOB, [9])


# ---- connections to the leader


@asynccontextmanager
async def keep_alive_leader(
    *replies: bytes,
) -> AsyncIterator[tuple[str, list[int], list[asyncio.StreamWriter]]]:
    """A leader that answers any number of requests per connection, and the connection of each request."""
    connection_numbers: list[int] = []
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        own = len(connections)
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, asyncio.CancelledError):
                writer.close()
                return
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            connection_numbers.append(own)
            writer.writelines(replies)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connection_numbers, connections
    finally:
        for connection in connections:
            connection.close()
        server.close()


@pytest.mark.parametrize("replies", [(CREATED,), (CHUNKED, END)])
async def test_successive_requests_reuse_one_connection(
    make_standby: MakeStandby, replies: tuple[bytes, ...]
) -> None:
    async with keep_alive_leader(*replies) as (url, connection_numbers, _):
        standby = make_standby(FakeRole(url, revision=9))
        found = [await standby.ask("POST", "/v1/jobs", b"{}") for _ in range(3)]

    assert {reply.is_whole for reply in found} == {True}
    assert connection_numbers == [1, 1, 1]


async def test_concurrent_requests_use_separate_connections(make_standby: MakeStandby) -> None:
    async with keep_alive_leader(CREATED) as (url, connection_numbers, _):
        standby = make_standby(FakeRole(url, revision=9))
        async with asyncio.TaskGroup() as users:
            for _ in range(3):
                users.create_task(standby.ask("POST", "/v1/jobs", b"{}"))

    assert sorted(connection_numbers) == [1, 2, 3]


async def test_a_connection_that_the_leader_has_closed_is_not_reused(make_standby: MakeStandby) -> None:
    async with keep_alive_leader(CREATED) as (url, connection_numbers, connections):
        standby = make_standby(FakeRole(url, revision=9))
        await standby.ask("POST", "/v1/jobs", b"{}")
        connections[0].close()
        await connections[0].wait_closed()
        await standby.connections[0].reader.read()  # returns at its end
        reply = await standby.ask("POST", "/v1/jobs", b"{}")

    assert (reply.status, connection_numbers) == (201, [1, 2])


async def test_a_response_that_closes_the_connection_leaves_none_idle(
    make_standby: MakeStandby,
) -> None:
    closing = CREATED.replace(b"Content-Length", b"Connection: close\r\nContent-Length")
    async with keep_alive_leader(closing) as (url, connection_numbers, _):
        standby = make_standby(FakeRole(url, revision=9))
        for _ in range(2):
            await standby.ask("POST", "/v1/jobs", b"{}")

    assert (connection_numbers, standby.connections) == ([1, 2], [])


async def test_connections_to_a_previous_leader_are_closed(make_standby: MakeStandby) -> None:
    async with (
        keep_alive_leader(CREATED) as (before, asked_before, _),
        keep_alive_leader(CREATED) as (now, asked_now, _),
    ):
        role = FakeRole(before, revision=9)
        standby = make_standby(role)
        await standby.ask("POST", "/v1/jobs", b"{}")
        role.set_leader(now)
        await standby.ask("POST", "/v1/jobs", b"{}")
        urls = [connection.url for connection in standby.connections]

    assert (len(asked_before), len(asked_now), urls) == (1, 1, [now])


async def test_a_connection_that_was_idle_for_long_is_not_reused(
    make_standby: MakeStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_proxy, "IDLE_SECONDS", -1.0)
    async with keep_alive_leader(CREATED) as (url, connection_numbers, _):
        standby = make_standby(FakeRole(url, revision=9))
        for _ in range(2):
            await standby.ask("POST", "/v1/jobs", b"{}")

    assert connection_numbers == [1, 2]


async def test_head_is_not_forwarded(make_standby: MakeStandby) -> None:
    async with keep_alive_leader(CREATED) as (url, connection_numbers, _):
        reply = await make_standby(FakeRole(url)).ask("HEAD", "/v1/tokens")

    assert (reply.body, connection_numbers) == (b"from here", [])


# ---- errors


async def test_a_request_to_a_silent_leader_is_not_repeated(
    make_standby: MakeStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "ANSWER_SECONDS", 0.1)
    async with fake_leader() as (url, requests):
        reply = await make_standby(FakeRole(url)).ask("POST", "/v1/jobs", b"{}")

    assert (reply.status, reply.headers["rota-leader"], len(requests)) == (503, url, 1)
    assert reply.detail.endswith(
        "the leader does not answer; it is not known whether the request was carried out"
    )


async def test_a_truncated_response_is_truncated_for_the_client(make_standby: MakeStandby) -> None:
    async with fake_leader(CHUNKED) as (url, _):
        reply = await make_standby(FakeRole(url)).ask("GET", "/v1/jobs/1/logs")

    assert (reply.body, reply.is_whole) == (b"onetwo", False)


async def test_a_forwarded_request_is_not_forwarded_again(make_standby: MakeStandby) -> None:
    async with fake_leader(CREATED) as (url, requests):
        reply = await make_standby(FakeRole(url)).ask("POST", "/v1/jobs", b"{}", rota_forwarded="1")

    assert (reply.status, requests) == (503, [])


@pytest.mark.parametrize("headers", [{"origin": "http://elsewhere"}, {"host": "elsewhere"}])
async def test_pages_of_other_origins_are_refused(make_standby: MakeStandby, headers: dict[str, str]) -> None:
    async with fake_leader(CREATED) as (url, requests):
        reply = await make_standby(FakeRole(url)).ask("POST", "/v1/jobs", b"{}", **headers)

    assert (reply.status, requests) == (403, [])
