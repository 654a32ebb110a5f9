"""What a server that stands by answers itself, what it hands on, and what it says when it cannot."""

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


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool

    @property
    def detail(self) -> str:
        return str(json.loads(self.body)["detail"])


class Stance:
    """Told what it knows."""

    def __init__(self, leader: str | None = None, age_ms: int | None = 20, revision: int = 5) -> None:
        self._leader, self._age_ms, self._revision = leader, age_ms, revision
        self.asked_for: list[int] = []

    def leader(self) -> str | None:
        return self._leader

    def leads(self, leader: str) -> None:
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
    def __init__(self, directory: Path, stance: Stance, authority: CertificateAuthority) -> None:
        vault = Vault.open(directory / "vault")
        self._secret = vault.make_server_token("me", 0)
        addresses = Addresses("127.0.0.1:3000", "127.0.0.1:1", "127.0.0.1:2")
        self._face = StandbyApp(own_app, stance, vault, addresses, authority)

    @property
    def lines(self) -> list[leader_proxy.LeaderConnection]:
        return [line for _, line in self._face._leader_proxy._idle]

    def close(self) -> None:
        self._face.close()

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        sent: list[Any] = []
        said = {"host": "127.0.0.1:3000", "authorization": f"Bearer {self._secret}", **headers}
        coming = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if not coming:
                await asyncio.Event().wait()
            return coming.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        path, _, query = path.partition("?")
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in said.items()]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": raw,
            "query_string": query.encode(),
        }
        await self._face(scope, receive, send)
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(
            sent[0]["status"],
            answered,
            b"".join(one["body"] for one in sent[1:]),
            not sent[-1].get("more_body"),
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.open(tmp_path_factory.mktemp("ca"), datetime.now(UTC))


@pytest.fixture
async def standing(
    tmp_path: Path, authority: CertificateAuthority
) -> AsyncIterator[Callable[[Stance], Standby]]:
    made: list[Standby] = []

    def stand(stance: Stance) -> Standby:
        made.append(Standby(tmp_path, stance, authority))
        return made[-1]

    yield stand
    for one in made:
        one.close()


Standing = Callable[[Stance], Standby]


@asynccontextmanager
async def a_leader(*says: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """One that hears requests, answers each with these bytes, and hangs up; without any it never answers."""
    heard: list[bytes] = []
    silence = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        heard.append(head + await reader.readexactly(length))
        if not says:
            await silence.wait()
        writer.writelines(says)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
    finally:
        silence.set()
        server.close()


# ---- who answers


def test_of_each_route_it_is_known_who_answers() -> None:
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


async def test_a_read_of_records_is_answered_here_and_says_how_old_it_is(standing: Standing) -> None:
    answer = await standing(Stance("http://10.0.0.2:3000", age_ms=20)).ask("GET", "/v1/jobs/1")

    assert (answer.status, answer.body) == (200, b"from here")
    assert answer.headers == {"rota-age-ms": "20", "rota-leader": "http://10.0.0.2:3000"}


async def test_what_is_never_stored_is_asked_of_the_leader(standing: Standing) -> None:
    async with a_leader(CHUNKED, END) as (url, _):
        answer = await standing(Stance(url)).ask("GET", "/v1/nodes")

    assert (answer.body, answer.headers) == (b"onetwo", {"rota-leader": url})


async def test_one_that_led_and_cannot_answer_now_is_no_better_source(standing: Standing) -> None:
    async with a_leader(b"HTTP/1.1 503 Sorry\r\nContent-Length: 0\r\n\r\n") as (url, _):
        answer = await standing(Stance(url)).ask("GET", "/v1/nodes")

    assert (answer.status, answer.body) == (200, b"from here")


@pytest.mark.parametrize("leader", [None, "http://127.0.0.1:1"])
async def test_where_nobody_answers_who_leads_it_is_told_without(
    standing: Standing, leader: str | None
) -> None:
    answer = await standing(Stance(leader)).ask("GET", "/v1/nodes")

    assert (answer.status, answer.body, answer.headers["rota-age-ms"]) == (200, b"from here", "20")


async def test_a_read_that_would_be_old_is_asked_of_the_leader_first(standing: Standing) -> None:
    async with a_leader(CHUNKED, END) as (url, _):
        old = await standing(Stance(url, age_ms=STANDBY_AGE_MS + 1)).ask("GET", "/v1/jobs")
    alone = await standing(Stance(None, age_ms=STANDBY_AGE_MS + 1)).ask("GET", "/v1/jobs")

    assert old.body == b"onetwo"
    assert (alone.body, alone.headers["rota-age-ms"]) == (b"from here", str(STANDBY_AGE_MS + 1))


@pytest.mark.parametrize("age_ms", [None, STANDBY_AGE_MAX_MS + 1])
async def test_one_that_knows_nothing_or_too_little_says_so(standing: Standing, age_ms: int | None) -> None:
    answer = await standing(Stance(None, age_ms=age_ms)).ask("GET", "/v1/jobs")

    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.detail == "this server stands by, and nobody leads now"


async def test_a_token_that_is_not_known_here_may_be_known_to_the_leader(standing: Standing) -> None:
    async with a_leader(CHUNKED, END) as (url, heard):
        await standing(Stance(url)).ask("GET", "/v1/jobs", authorization="Bearer rota_new")

    assert b"authorization: Bearer rota_new\r\n" in heard[0]


# ---- what somebody has seen already


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/jobs", {"rota_revision": "5"}),
        ("/v1/events?since=5.1", {}),
        ("/v1/events?kind=job", {"last_event_id": "5.0"}),
    ],
)
async def test_it_waits_for_what_was_seen_elsewhere(
    standing: Standing, path: str, headers: dict[str, str]
) -> None:
    stance = Stance()
    await standing(stance).ask("GET", path, b"", **headers)

    assert stance.asked_for == [5]


async def test_what_it_does_not_come_to_know_in_time_is_asked_of_the_leader(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "REACH_SECONDS", 0.0)
    async with a_leader(CHUNKED, END) as (url, _):
        answer = await standing(Stance(url, revision=5)).ask("GET", "/v1/jobs", rota_revision="6")

    assert answer.body == b"onetwo"


async def test_a_change_is_handed_on_once_and_seen_here_before_it_is_answered(standing: Standing) -> None:
    async with a_leader(CREATED) as (url, heard):
        stance = Stance(url, revision=9)
        body = b'{"command":["true"]}'
        answer = await standing(stance).ask("POST", "/v1/jobs?x=1", body, idempotency_key="k")

    (request,) = heard
    assert request.startswith(b"POST /v1/jobs?x=1 HTTP/1.1\r\nhost: " + url[7:].encode() + b"\r\n")
    assert request.endswith(b"\r\n\r\n" + body)
    assert b"\r\nidempotency-key: k\r\n" in request
    assert (answer.status, answer.body, stance.asked_for) == (201, JOB, [9])


# ---- how the leader is reached


@asynccontextmanager
async def a_patient_leader(*says: bytes) -> AsyncIterator[tuple[str, list[int], list[asyncio.StreamWriter]]]:
    """One that answers any number of requests on a connection; which of its connections each came by."""
    came_by: list[int] = []
    lines: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(writer)
        own = len(lines)
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, asyncio.CancelledError):
                writer.close()
                return
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            came_by.append(own)
            writer.writelines(says)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came_by, lines
    finally:
        for line in lines:
            line.close()
        server.close()


@pytest.mark.parametrize("says", [(CREATED,), (CHUNKED, END)])
async def test_one_request_after_the_other_goes_over_one_connection(
    standing: Standing, says: tuple[bytes, ...]
) -> None:
    async with a_patient_leader(*says) as (url, came_by, _):
        standby = standing(Stance(url, revision=9))
        answers = [await standby.ask("POST", "/v1/jobs", b"{}") for _ in range(3)]

    assert {one.is_whole for one in answers} == {True}
    assert came_by == [1, 1, 1]


async def test_requests_at_once_go_over_connections_of_their_own(standing: Standing) -> None:
    async with a_patient_leader(CREATED) as (url, came_by, _):
        standby = standing(Stance(url, revision=9))
        async with asyncio.TaskGroup() as users:
            for _ in range(3):
                users.create_task(standby.ask("POST", "/v1/jobs", b"{}"))

    assert sorted(came_by) == [1, 2, 3]


async def test_a_connection_that_the_leader_has_closed_is_not_spoken_to(standing: Standing) -> None:
    async with a_patient_leader(CREATED) as (url, came_by, lines):
        standby = standing(Stance(url, revision=9))
        await standby.ask("POST", "/v1/jobs", b"{}")
        lines[0].close()
        await lines[0].wait_closed()
        await standby.lines[0].reader.read()  # returns at its end
        answer = await standby.ask("POST", "/v1/jobs", b"{}")

    assert (answer.status, came_by) == (201, [1, 2])


async def test_an_answer_that_ends_the_connection_or_is_not_read_to_its_end_leaves_none(
    standing: Standing,
) -> None:
    closing = CREATED.replace(b"Content-Length", b"Connection: close\r\nContent-Length")
    async with a_patient_leader(closing) as (url, came_by, _):
        standby = standing(Stance(url, revision=9))
        for _ in range(2):
            await standby.ask("POST", "/v1/jobs", b"{}")

    assert (came_by, standby.lines) == ([1, 2], [])


async def test_who_led_before_is_not_asked_any_more(standing: Standing) -> None:
    async with (
        a_patient_leader(CREATED) as (before, asked_before, _),
        a_patient_leader(CREATED) as (now, asked_now, _),
    ):
        stance = Stance(before, revision=9)
        standby = standing(stance)
        await standby.ask("POST", "/v1/jobs", b"{}")
        stance.leads(now)
        await standby.ask("POST", "/v1/jobs", b"{}")
        urls = [line.url for line in standby.lines]

    assert (len(asked_before), len(asked_now), urls) == (1, 1, [now])


async def test_a_connection_unused_for_long_is_not_trusted(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_proxy, "IDLE_SECONDS", -1.0)
    async with a_patient_leader(CREATED) as (url, came_by, _):
        standby = standing(Stance(url, revision=9))
        for _ in range(2):
            await standby.ask("POST", "/v1/jobs", b"{}")

    assert came_by == [1, 2]


async def test_head_is_refused_here(standing: Standing) -> None:
    async with a_patient_leader(CREATED) as (url, came_by, _):
        answer = await standing(Stance(url)).ask("HEAD", "/v1/tokens")

    assert (answer.body, came_by) == (b"from here", [])


# ---- what goes wrong


async def test_a_leader_that_does_not_answer_is_not_asked_twice(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "ANSWER_SECONDS", 0.1)
    async with a_leader() as (url, heard):
        answer = await standing(Stance(url)).ask("POST", "/v1/jobs", b"{}")

    assert (answer.status, answer.headers["rota-leader"], len(heard)) == (503, url, 1)
    assert answer.detail.endswith("the leader does not answer; whether it was done is not known")


async def test_an_answer_that_is_cut_is_cut_here_too(standing: Standing) -> None:
    async with a_leader(CHUNKED) as (url, _):
        answer = await standing(Stance(url)).ask("GET", "/v1/jobs/1/logs")

    assert (answer.body, answer.is_whole) == (b"onetwo", False)


async def test_what_was_handed_on_is_not_handed_on_again(standing: Standing) -> None:
    async with a_leader(CREATED) as (url, heard):
        answer = await standing(Stance(url)).ask("POST", "/v1/jobs", b"{}", rota_forwarded="1")

    assert (answer.status, heard) == (503, [])


@pytest.mark.parametrize("headers", [{"origin": "http://elsewhere"}, {"host": "elsewhere"}])
async def test_pages_elsewhere_are_refused_here(standing: Standing, headers: dict[str, str]) -> None:
    async with a_leader(CREATED) as (url, heard):
        answer = await standing(Stance(url)).ask("POST", "/v1/jobs", b"{}", **headers)

    assert (answer.status, heard) == (403, [])
