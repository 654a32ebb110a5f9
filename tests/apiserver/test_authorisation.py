"""The authorisation matrix: every HTTP route and gRPC call x role x namespace x state of the token.

It is made from the router and from the service descriptor: a new route or call fails until it is listed in
`authorisation_table.py` with what it needs. One server answers the whole matrix.
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

OTHER = "zeta"  # in every name that a token of OWN must not see
SCOPES = (OWN, OTHER, f"{OWN}a", OWN[:-1], "*")
NOT_LOOPBACK = Addresses("10.0.0.1:3000", "10.0.0.1:50001", "10.0.0.1:50000")
EVENTS = "text/event-stream"
UNKNOWN = (grpc.StatusCode.UNAUTHENTICATED,)
DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND)


class Token(NamedTuple):
    role: Role
    namespace: str
    secret: str


class ResponsiveWorkers:
    """Workers that always answer."""

    async def is_responsive(self, node: NodeId) -> bool:
        del node
        return True


@dataclass
class AuthorisationSetup:
    """A server with both APIs, and requests to it."""

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

    async def create_objects(self, name: str = OWN) -> None:
        """Create every object that a route may name; again if an earlier request has deleted it."""
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
        """The status, and the text of an error; of a stream only the head is read."""
        raw = b"" if need.body is None else json.dumps(need.body).encode()
        headers = {"Authorization": "" if secret is None else f"Bearer {secret}"}
        method, path = route.partition(" ")[0], self.path(route, need, job)
        async with self.server.connected(method, path, raw, headers) as (reply, reader):
            length = int(reply.headers.get("content-length", "0"))
            body = await reader.readexactly(length) if reply.status >= 400 else b""
            return reply.status, body.decode()

    async def call(self, name: str, job: str, secret: str | None) -> grpc.StatusCode:
        """The status of a call, or OK as soon as a stream of replies has started."""
        metadata = () if secret is None else (("authorization", f"Bearer {secret}"),)
        method = pb.DESCRIPTOR.services_by_name["Controller"].methods_by_name[name]
        request = GRPC[name].request(job)
        try:
            if method.client_streaming:
                return await self._bulk(request, metadata)
            call = getattr(self.stub, name)(request, metadata=metadata)
            if not method.server_streaming:
                await call
            elif name == "Watch":  # sends only its metadata until an event is committed
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
async def authorisation_setup(directory: Path) -> AsyncIterator[AuthorisationSetup]:
    reconcilers = [*RECONCILERS, lifecycle.RECONCILER]
    others = {"addresses": NOT_LOOPBACK, "workers": ResponsiveWorkers()}
    async with serving(directory, MemoryStore, reconcilers, **others) as server, asyncio.timeout(120):
        grpc_server = grpc.aio.server()
        add_ControllerServicer_to_server(ControllerService(server.api), grpc_server)  # type: ignore[no-untyped-call]
        port = grpc_server.add_insecure_port("127.0.0.1:0")
        await grpc_server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                setup = AuthorisationSetup(server, ControllerStub(channel), count())  # type: ignore[no-untyped-call]
                await setup.create_objects()
                yield setup
        finally:
            await grpc_server.stop(None)


def tokens(setup: AuthorisationSetup) -> list[Token]:
    return [setup.token(role, namespace) for role, namespace in product(Role, SCOPES)]


async def test_every_route_and_call_is_listed_with_what_it_needs(tmp_path: Path) -> None:
    async with authorisation_setup(tmp_path) as setup:
        routes = [
            f"{method} {route.path}"
            for route in routes_of(setup.server.api)
            for method in route.methods or ()
        ]
    calls = [method.name for method in pb.DESCRIPTOR.services_by_name["Controller"].methods]

    assert sorted(routes) == sorted(HTTP)
    assert sorted(calls) == sorted(GRPC)


async def test_http_routes_deny_requests_without_a_valid_token(tmp_path: Path) -> None:
    async with authorisation_setup(tmp_path) as setup:
        job, bad = await setup.job(), (None, "rota_wrong", setup.revoked(), setup.expired())
        setup.server.api.guesses.burst = 10_000  # of one address
        setup.written.clear()
        wrong = []
        for (route, need), secret in product(HTTP.items(), bad):
            status, _ = await setup.ask(route, need, job, secret)
            if (status == 401) is (need.where is Where.OPEN):
                wrong.append((route, secret, status))

        assert not wrong
        assert not setup.written


async def test_http_routes_deny_every_token_that_is_not_allowed(tmp_path: Path) -> None:
    async with authorisation_setup(tmp_path) as setup:
        job, known = await setup.job(), tokens(setup)
        setup.written.clear()
        wrong = []
        for (route, need), token in product(HTTP.items(), known):
            if not is_allowed(need.where, need.role, token.role, token.namespace):
                status, text = await setup.ask(route, need, job, token.secret)
                if status not in (403, 404):
                    wrong.append((route, token[:2], status, text))

        assert not wrong
        assert not setup.written, "what is denied changes nothing"


async def test_http_routes_accept_every_token_that_is_allowed(tmp_path: Path) -> None:
    async with authorisation_setup(tmp_path) as setup:
        wrong, job = [], await setup.job()
        for (route, need), token in product(HTTP.items(), tokens(setup)):
            if not is_allowed(need.where, need.role, token.role, token.namespace):
                continue
            if not route.startswith("GET "):  # an earlier request may have deleted the object
                await setup.create_objects()
                job = await setup.job()
            status, text = await setup.ask(route, need, job, token.secret)
            is_hidden = status == 404 and ("no job is called" in text or "no cron in" in text)
            if status in (401, 403) or is_hidden:
                wrong.append((route, token[:2], status, text))

    assert not wrong


async def test_grpc_calls_deny_requests_without_a_valid_token(tmp_path: Path) -> None:
    async with authorisation_setup(tmp_path) as setup:
        job, bad = await setup.job(), (None, "rota_wrong", setup.revoked(), setup.expired())
        setup.written.clear()
        wrong = []
        for name, secret in product(GRPC, bad):
            code = await setup.call(name, job, secret)
            wrong += [(name, secret, code)] if code is not grpc.StatusCode.UNAUTHENTICATED else []

        assert not wrong
        assert not setup.written


async def test_grpc_calls_deny_every_token_that_is_not_allowed(tmp_path: Path) -> None:
    async with authorisation_setup(tmp_path) as setup:
        job, known = await setup.job(), tokens(setup)
        setup.written.clear()
        wrong = []
        for (name, call), token in product(GRPC.items(), known):
            if not is_allowed(call.where, call.role, token.role, token.namespace):
                code = await setup.call(name, job, token.secret)
                wrong += [(name, token[:2], code)] if code not in DENIED else []

        assert not wrong
        assert not setup.written, "what is denied changes nothing"


async def test_grpc_calls_accept_every_token_that_is_allowed(tmp_path: Path) -> None:
    async with authorisation_setup(tmp_path) as setup:
        wrong = []
        for (name, call), token in product(GRPC.items(), tokens(setup)):
            if is_allowed(call.where, call.role, token.role, token.namespace):
                code = await setup.call(name, await setup.job(), token.secret)
                wrong += [(name, token[:2], code)] if code in (*DENIED, *UNKNOWN) else []

    assert not wrong


async def test_names_of_other_namespaces_are_in_no_list_watch_state_or_event(tmp_path: Path) -> None:
    """No list or stream shows a token of one namespace the names of another."""
    async with authorisation_setup(tmp_path) as setup:
        await setup.create_objects(OTHER)
        await setup.job(OTHER)
        await setup.server.call("POST", "/v1/nodes/n1/cordon")
        revision = setup.server.engine.revision
        found = []
        for role in Role:
            secret = setup.token(role, OWN).secret
            for route, need in HTTP.items():
                if need.where is Where.ANYWHERE and route.startswith("GET ") and "{" not in route:
                    path = route.removeprefix("GET ")
                    text = await _listed(setup, path, secret) + await _streamed(setup, path, secret, revision)
                    found += [(route, role)] if OTHER in text else []
            text = str([page async for page in setup.stub.State(pb.StateRequest(), metadata=_as(secret))])
            found += [("State", role)] if OTHER in text else []
            found += [("Watch", role)] if OTHER in await _watched(setup, secret) else []
        admin = await _listed(setup, "/v1/events", setup.server.token)

    assert not found
    assert OTHER in admin


def _as(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


async def _listed(setup: AuthorisationSetup, path: str, secret: str) -> str:
    reply = await setup.server.call("GET", path, Authorization=f"Bearer {secret}")
    return reply.body.decode()


async def _streamed(setup: AuthorisationSetup, path: str, secret: str, until: int) -> str:
    """The text of a list's watch from the first event on; empty if the list has no watch."""
    operation = find_operation("GET", path)
    if operation is None or not operation.events:
        return ""
    text, last = "", await setup.job()
    headers = {"Authorization": f"Bearer {secret}", "Accept": EVENTS}
    assert setup.server.engine.revision > until
    async with setup.server.connected("GET", f"{path}?since=0.0", b"", headers) as (_, reader):
        async with asyncio.timeout(10):
            while not _contains_last_change(text, path, last):
                line = await reader.readline()
                assert line, (path, text[-200:])
                text += line.decode()
    return text


def _contains_last_change(text: str, path: str, last: str) -> bool:
    """Whether the last change, of a node or of a job, is in the text."""
    return f'"{"n1" if path == "/v1/nodes" else last}"' in text


async def _watched(setup: AuthorisationSetup, secret: str) -> str:
    call = setup.stub.Watch(pb.WatchRequest(after="0.0"), metadata=_as(secret))
    text, last = "", await setup.job()
    while f'job: "{last}"' not in text:
        text += str(await call.read())
    call.cancel()
    return text


async def test_every_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    """Every route is asked for a stream, so that routes that are added later are covered."""
    async with authorisation_setup(tmp_path) as setup, contextlib.AsyncExitStack() as opened:
        secret, job, streams = setup.token(Role.ADMIN, "*").secret, await setup.job(), {}
        headers = {"Authorization": f"Bearer {secret}", "Accept": EVENTS}
        for route, need in HTTP.items():
            method, path = route.partition(" ")[0], setup.path(route, need, job)
            operation = find_operation(method, route.partition(" ")[2])
            if operation is not None and "follow" in [parameter.name for parameter in operation.query]:
                path += "?follow=true"
            if method == "GET" or route == "POST /v1/jobs":
                raw = b"" if need.body is None else json.dumps(need.body).encode()
                reply, reader = await _opened(opened, setup, (method, path, raw, headers))
                if reply is not None and "content-length" not in reply.headers and reply.status < 300:
                    streams[route] = reader
        setup.revoke_last()
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


async def _opened(
    opened: contextlib.AsyncExitStack, setup: AuthorisationSetup, request: Any
) -> tuple[Any, Any]:
    """The head of a response and its reader; None for a stream that sends no head before its first output."""
    try:
        async with asyncio.timeout(2):
            return await opened.enter_async_context(setup.server.connected(*request))
    except TimeoutError:
        return None, None


async def _ended(reader: asyncio.StreamReader) -> None:
    """Return when the server has closed the connection, or the response is complete."""
    tail = b""
    with contextlib.suppress(ConnectionError):
        while (data := await reader.read(65536)) and not (tail := (tail + data)[-8:]).endswith(b"0\r\n\r\n"):
            pass
