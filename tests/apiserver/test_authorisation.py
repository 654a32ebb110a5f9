"""The authorisation matrix: every HTTP route and gRPC call x role x namespace x state of the token.

It is made from the router and from the service descriptor: a new route or call fails until it is listed in
`authorisation.py` with what it needs. One server is asked for the whole matrix.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from rota.apiserver.api import Addresses
from rota.apiserver.grpc.service import ControllerService
from rota.apiserver.http import routes_of
from rota.apiserver.openapi.document import find_operation
from rota.clusters import lifecycle
from rota.identity.tokens import Role
from rota.model.ids import NodeId
from rota.store.memory import MemoryStore
from rota.wire.generated import controller_pb2 as pb
from rota.wire.generated.controller_pb2_grpc import ControllerStub, add_ControllerServicer_to_server
from tests.apiserver.authorisation_table import (
    CLUSTER,
    CRON,
    GRPC,
    HTTP,
    OWN,
    SETTINGS,
    Need,
    Where,
    is_allowed,
)
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import RECONCILERS, Serving, serving

FOREIGN = "zeta"  # in every name that a token of OWN must not learn of
SCOPES = (OWN, FOREIGN, f"{OWN}a", OWN[:-1], "*")
ELSEWHERE = Addresses("10.0.0.1:3000", "10.0.0.1:50001", "10.0.0.1:50000")
EVENTS = "text/event-stream"
UNKNOWN = (grpc.StatusCode.UNAUTHENTICATED,)
DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND)


class Token(NamedTuple):
    role: Role
    namespace: str
    secret: str


class Answering:
    """Workers that are always there."""

    async def is_responsive(self, node: NodeId) -> bool:
        del node
        return True


@dataclass
class World:
    """A server with both doors, and what is tried on it."""

    server: Serving
    stub: Any
    _names: Iterator[int]
    written: list[str] = field(default_factory=list)  # keys of records since it was last emptied

    def __post_init__(self) -> None:
        self.server.engine.on_commit(
            lambda commit: self.written.extend((*commit.decided.puts, *commit.decided.deletes))
        )

    def token(self, role: Role, namespace: str) -> Token:
        name = f"t{next(self._names)}"
        return Token(role, namespace, self.server.api.vault.make_api_token(name, role, (namespace,), 0))

    def revoked(self) -> str:
        secret = self.token(Role.ADMIN, "*").secret
        self.revoke_last()
        return secret

    def expired(self) -> str:
        return self.server.api.vault.make_api_token(f"t{next(self._names)}", Role.ADMIN, ("*",), 0, 1)

    def revoke_last(self) -> None:
        self.server.api.vault.revoke_api_token(self.server.api.vault.list_api_tokens()[-1].id)

    async def job(self, namespace: str = OWN) -> str:
        return await self.server.submit(namespace=namespace, name=f"{namespace}-{next(self._names)}")

    async def furnish(self, name: str = OWN) -> None:
        """Everything a route may name, again where an earlier request has taken it away."""
        call = self.server.call
        await self.server.put("apiserver", node(1))
        await self.server.put("watcher", node_status(1))
        await call("POST", "/v1/clusters", {**CLUSTER, "settings": SETTINGS})
        await call("PUT", f"/v1/namespaces/{name}", {"weight": 2})
        await call("POST", "/v1/crons", {**CRON, "name": f"{name}-tick", "namespace": name})

    def path(self, route: str, need: Need, job: str) -> str:
        path = route.partition(" ")[2]
        ref = {"jobs": job, "nodes": "n1", "namespaces": OWN, "clusters": "cloud", "crons": f"{OWN}-tick"}
        kind = path.split("/")[2] if path.startswith("/v1/") else ""
        return path.format(ref=ref.get(kind, "nobody"), index="0", attempt="1") + need.query

    async def ask(self, route: str, need: Need, job: str, secret: str | None) -> tuple[int, str]:
        """The status, and for an error its text; of what goes on after its head only that."""
        raw = b"" if need.body is None else json.dumps(need.body).encode()
        said = {"Authorization": "" if secret is None else f"Bearer {secret}"}
        method, path = route.partition(" ")[0], self.path(route, need, job)
        async with self.server.connected(method, path, raw, said) as (reply, reader):
            length = int(reply.headers.get("content-length", "0"))
            body = await reader.readexactly(length) if reply.status >= 400 else b""
            return reply.status, body.decode()

    async def call(self, name: str, job: str, secret: str | None) -> grpc.StatusCode:
        """The status of a call, or OK as soon as a stream of answers has begun."""
        metadata = () if secret is None else (("authorization", f"Bearer {secret}"),)
        method = pb.DESCRIPTOR.services_by_name["Controller"].methods_by_name[name]
        request = GRPC[name].request(job)
        try:
            if method.client_streaming:
                return await self._bulk(request, metadata)
            call = getattr(self.stub, name)(request, metadata=metadata)
            if not method.server_streaming:
                await call
            elif name == "Watch":  # tells nothing by itself, but that it has begun
                await call.initial_metadata()
                await asyncio.sleep(0)
            else:
                await call.read()
        except grpc.aio.AioRpcError as error:
            return error.code()
        if call.done():
            code: grpc.StatusCode = await call.code()
            return code
        call.cancel()
        return grpc.StatusCode.OK

    async def _bulk(self, request: pb.BulkRequest, metadata: Any) -> grpc.StatusCode:
        call = self.stub.ScheduleMany(metadata=metadata)
        try:
            await call.write(request)
            reply = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            reply = grpc.aio.EOF
        if reply is grpc.aio.EOF:
            code: grpc.StatusCode = await call.code()
            return code
        call.cancel()
        is_refused = reply.WhichOneof("what") == "refused" and reply.refused.code == "not_allowed"
        return grpc.StatusCode.PERMISSION_DENIED if is_refused else grpc.StatusCode.OK


@contextlib.asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    reconcilers = [*RECONCILERS, lifecycle.RECONCILER]
    others = {"addresses": ELSEWHERE, "workers": Answering()}
    async with serving(directory, MemoryStore, reconcilers, **others) as server, asyncio.timeout(120):
        door = grpc.aio.server()
        add_ControllerServicer_to_server(ControllerService(server.api), door)  # type: ignore[no-untyped-call]
        port = door.add_insecure_port("127.0.0.1:0")
        await door.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                made = World(server, ControllerStub(channel), count())  # type: ignore[no-untyped-call]
                await made.furnish()
                yield made
        finally:
            await door.stop(None)


def tokens(world: World) -> list[Token]:
    return [world.token(role, namespace) for role, namespace in product(Role, SCOPES)]


async def test_every_route_and_call_is_listed_with_what_it_needs(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        routes = [
            f"{method} {one.path}" for one in routes_of(made.server.api) for method in one.methods or ()
        ]
    calls = [method.name for method in pb.DESCRIPTOR.services_by_name["Controller"].methods]

    assert sorted(routes) == sorted(HTTP)
    assert sorted(calls) == sorted(GRPC)


async def test_http_routes_without_a_valid_token(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        job, bad = await made.job(), (None, "rota_wrong", made.revoked(), made.expired())
        made.server.api.guesses.burst = 10_000  # of one address
        made.written.clear()
        wrong = []
        for (route, need), secret in product(HTTP.items(), bad):
            status, _ = await made.ask(route, need, job, secret)
            if (status == 401) is (need.where is Where.OPEN):
                wrong.append((route, secret, status))

        assert not wrong
        assert not made.written


async def test_http_routes_by_role_and_namespace(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        job, known = await made.job(), tokens(made)
        made.written.clear()
        wrong = []
        for (route, need), token in product(HTTP.items(), known):
            if not is_allowed(need.where, need.role, token.role, token.namespace):
                status, text = await made.ask(route, need, job, token.secret)
                if status not in (403, 404):
                    wrong.append((route, token[:2], status, text))

        assert not wrong
        assert not made.written, "what is denied changes nothing"


async def test_http_routes_let_in_whom_they_should(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        wrong, job = [], await made.job()
        for (route, need), token in product(HTTP.items(), tokens(made)):
            if not is_allowed(need.where, need.role, token.role, token.namespace):
                continue
            if not route.startswith("GET "):  # an earlier request may have taken away what this one names
                await made.furnish()
                job = await made.job()
            status, text = await made.ask(route, need, job, token.secret)
            is_hidden = status == 404 and ("no job is called" in text or "no cron in" in text)
            if status in (401, 403) or is_hidden:
                wrong.append((route, token[:2], status, text))

    assert not wrong


async def test_grpc_calls_without_a_valid_token(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        job, bad = await made.job(), (None, "rota_wrong", made.revoked(), made.expired())
        made.written.clear()
        wrong = []
        for name, secret in product(GRPC, bad):
            code = await made.call(name, job, secret)
            wrong += [(name, secret, code)] if code is not grpc.StatusCode.UNAUTHENTICATED else []

        assert not wrong
        assert not made.written


async def test_grpc_calls_by_role_and_namespace(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        job, known = await made.job(), tokens(made)
        made.written.clear()
        wrong = []
        for (name, call), token in product(GRPC.items(), known):
            if not is_allowed(call.where, call.role, token.role, token.namespace):
                code = await made.call(name, job, token.secret)
                wrong += [(name, token[:2], code)] if code not in DENIED else []

        assert not wrong
        assert not made.written, "what is denied changes nothing"


async def test_grpc_calls_let_in_whom_they_should(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        wrong = []
        for (name, call), token in product(GRPC.items(), tokens(made)):
            if is_allowed(call.where, call.role, token.role, token.namespace):
                code = await made.call(name, await made.job(), token.secret)
                wrong += [(name, token[:2], code)] if code in (*DENIED, *UNKNOWN) else []

    assert not wrong


async def test_foreign_names_are_in_no_list_watch_state_or_event(tmp_path: Path) -> None:
    """Whatever a token of one namespace can read, without naming it, tells nothing of another."""
    async with world(tmp_path) as made:
        await made.furnish(FOREIGN)
        await made.job(FOREIGN)
        await made.server.call("POST", "/v1/nodes/n1/cordon")
        foreign = made.server.engine.revision
        found = []
        for role in Role:
            secret = made.token(role, OWN).secret
            for route, need in HTTP.items():
                if need.where is Where.ANYWHERE and route.startswith("GET ") and "{" not in route:
                    path = route.removeprefix("GET ")
                    told = await _listed(made, path, secret) + await _streamed(made, path, secret, foreign)
                    found += [(route, role)] if FOREIGN in told else []
            told = str([page async for page in made.stub.State(pb.StateRequest(), metadata=_as(secret))])
            found += [("State", role)] if FOREIGN in told else []
            found += [("Watch", role)] if FOREIGN in await _watched(made, secret) else []
        admin = await _listed(made, "/v1/events", made.server.token)

    assert not found
    assert FOREIGN in admin


def _as(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


async def _listed(made: World, path: str, secret: str) -> str:
    reply = await made.server.call("GET", path, Authorization=f"Bearer {secret}")
    return reply.body.decode()


async def _streamed(made: World, path: str, secret: str, until: int) -> str:
    """What a watch of a list tells of all that happened; empty where there is none."""
    operation = find_operation("GET", path)
    if operation is None or not operation.events:
        return ""
    told, last = "", await made.job()
    said = {"Authorization": f"Bearer {secret}", "Accept": EVENTS}
    assert made.server.engine.revision > until
    async with made.server.connected("GET", f"{path}?since=0.0", b"", said) as (_, reader):
        async with asyncio.timeout(10):
            while not _is_told(told, path, last):
                line = await reader.readline()
                assert line, (path, told[-200:])
                told += line.decode()
    return told


def _is_told(told: str, path: str, last: str) -> bool:
    """Whether what happened last is among what was told: to a node, or to a job."""
    return f'"{"n1" if path == "/v1/nodes" else last}"' in told


async def _watched(made: World, secret: str) -> str:
    call = made.stub.Watch(pb.WatchRequest(after="0.0"), metadata=_as(secret))
    told, last = "", await made.job()
    while f'job: "{last}"' not in told:
        told += str(await call.read())
    call.cancel()
    return told


async def test_every_stream_there_is_ends_with_its_token(tmp_path: Path) -> None:
    """Streams are found by asking every route for one: those added later are among them."""
    async with world(tmp_path) as made, contextlib.AsyncExitStack() as opened:
        secret, job, streams = made.token(Role.ADMIN, "*").secret, await made.job(), {}
        said = {"Authorization": f"Bearer {secret}", "Accept": EVENTS}
        for route, need in HTTP.items():
            method, path = route.partition(" ")[0], made.path(route, need, job)
            operation = find_operation(method, route.partition(" ")[2])
            if operation is not None and "follow" in [one.name for one in operation.query]:
                path += "?follow=true"
            if method == "GET" or route == "POST /v1/jobs":
                raw = b"" if need.body is None else json.dumps(need.body).encode()
                reply, reader = await _opened(opened, made, (method, path, raw, said))
                if reply is not None and "content-length" not in reply.headers and reply.status < 300:
                    streams[route] = reader
        made.revoke_last()
        async with asyncio.TaskGroup() as tasks:
            for reader in streams.values():
                tasks.create_task(_ended(reader))

    watches = [
        "POST /v1/jobs",
        "GET /v1/jobs",
        "GET /v1/jobs/{ref}/follow",
        "GET /v1/nodes",
        "GET /v1/events",
    ]
    assert set(watches) <= set(streams)


async def _opened(opened: contextlib.AsyncExitStack, made: World, asked: Any) -> tuple[Any, Any]:
    """The head of an answer and the rest; nothing of one that sends no head before there is output."""
    try:
        async with asyncio.timeout(2):
            return await opened.enter_async_context(made.server.connected(*asked))
    except TimeoutError:
        return None, None


async def _ended(reader: asyncio.StreamReader) -> None:
    """Returns when the server has closed the connection, or the answer has come to its own end."""
    told = b""
    with contextlib.suppress(ConnectionError):
        while (some := await reader.read(65536)) and not (told := (told + some)[-8:]).endswith(b"0\r\n\r\n"):
            pass
