"""A real engine, store and HTTP server in this process, with a small client for it."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn

from rota.apiserver.api import Addresses, Api
from rota.apiserver.http import make_app
from rota.apiserver.streams.event_hub import EventHub
from rota.apiserver.streams.fanout import SharedLogSource
from rota.apiserver.streams.logs import Logs, LogSource
from rota.clusters import assign
from rota.controllers import batch
from rota.engine.run import Engine
from rota.identity.audit import AuditLog
from rota.identity.authority import CertificateAuthority
from rota.identity.tokens import Role
from rota.identity.vault import Vault
from rota.model.errors import NotFound, Unavailable
from rota.model.ids import NodeId
from rota.model.messages import LogPiece, LogRequest, OutputsRequest
from rota.model.outlook import Explanation
from rota.model.plan import Plan, Record
from rota.scheduler.cluster_fit import FitCalculator
from rota.scheduler.drain_preview import preview_drain
from rota.scheduler.explain.move_check import why_not_moved
from rota.scheduler.what_if import plan_job
from rota.store.protocol import Store
from rota.store.sqlite import SqliteStore

RECONCILERS = [assign.reconciler(FitCalculator().cluster_fit), batch.RECONCILER]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class FileSource:
    """A LogSource over files named JOB.INDEX.ATTEMPT.STREAM; following ends when the name is in `ended`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ended: set[str] = set()
        self.away: set[NodeId] = set()
        self.cuts: dict[str, int] = {}  # by name, the number of bytes after which the next read fails
        self.open_now = 0
        self.most_open = 0
        self.grown = asyncio.Event()
        self.missed = asyncio.Event()

    def write(self, name: str, data: bytes, *, ended: bool = False) -> None:
        with (self.directory / name).open("ab") as file:
            file.write(data)
        if ended:
            self.ended.add(name)
        self.grown.set()
        self.grown = asyncio.Event()

    async def open(self, node: NodeId, request: LogRequest) -> AsyncIterator[LogPiece]:
        if node in self.away:
            self.missed.set()
            raise Unavailable(f"node {node} is not connected")
        name = f"{request.job}.{request.task}.{request.attempt}.{request.stream}"
        offset = request.offset
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            while True:
                grown, ended = self.grown, name in self.ended
                path = self.directory / name
                data = path.read_bytes()[offset:] if path.exists() else b""
                if node in self.away:
                    raise Unavailable(f"node {node} went away")
                if (cut := self.cuts.pop(name, None)) is not None:
                    yield LogPiece(offset, data[:cut])
                    raise Unavailable(f"node {node} went away")
                if data:
                    yield LogPiece(offset, data)
                    offset += len(data)
                await asyncio.sleep(0)
                if ended or not request.follow:
                    return
                await grown.wait()
        finally:
            self.open_now -= 1


@dataclass
class Serving:
    """A running server, and a client of it."""

    api: Api
    port: int
    token: str
    source: FileSource
    directory: Path
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = self.api.engine

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request on a connection of its own; a str or bytes body is sent as it is."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        async with self.connected(method, path, raw, headers) as (reply, reader):
            if method == "HEAD":
                content = b""
            elif "content-length" in reply.headers:
                content = await reader.readexactly(int(reply.headers["content-length"]))
            elif "transfer-encoding" in reply.headers:
                content = b"".join([chunk async for chunk in chunks_of(reader)])
            else:
                content = b""
            return Reply(reply.status, reply.headers, content)

    @contextlib.asynccontextmanager
    async def connected(
        self, method: str, path: str, raw: bytes, headers: dict[str, str]
    ) -> AsyncIterator[tuple[Reply, asyncio.StreamReader]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent = {
            "Host": f"127.0.0.1:{self.port}",
            "Authorization": f"Bearer {self.token}",
            "Content-Length": str(len(raw)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value)
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode())
            writer.write(raw)
            yield await _head(reader), reader
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a streaming response."""
        async with self.connected("GET", path, b"", headers) as (reply, reader):
            assert reply.status == 200, reply
            yield lines_of(chunks_of(reader))

    async def put(self, owner: str, *records: Record) -> None:
        """Write records as the component that owns them."""
        await self.engine.ask(owner, lambda _view, _now: Plan(records))

    async def submit(self, **spec: Any) -> str:
        reply = await self.call("POST", "/v1/jobs", {"command": ["true"], **spec})
        assert reply.status == 201, reply
        return str(reply.json["id"])

    def token_for(self, role: Role, *namespaces: str) -> str:
        """A new token, named after its role: the first is `viewer-token`, the next `viewer-token-2`."""
        known = self.api.vault.list_api_tokens()
        before = sum(token.name.startswith(f"{role}-token") for token in known)
        name = f"{role}-token" + (f"-{before + 1}" if before else "")
        return f"Bearer {self.api.vault.make_api_token(name, role, namespaces, 0)}"

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "audit.log").read_text().splitlines()]


class _Web(uvicorn.Server):
    """Leaves signals to the test runner, and sets `listens` once it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class NoOutputs:
    """An OutputSource without any output files."""

    async def outputs(self, node: NodeId, request: OutputsRequest) -> AsyncGenerator[bytes, None]:
        for _ in range(1):
            raise NotFound(f"node {node} has no outputs of {request.job}")
        yield b""


def make_api(engine: Engine, directory: Path, source: LogSource, **others: Any) -> Api:
    changes = EventHub(engine)
    given: dict[str, Any] = {
        "engine": engine,
        "event_hub": changes,
        "logs": Logs(engine, changes, SharedLogSource(source)),
        "outputs": NoOutputs(),
        "vault": Vault.open(directory / "identity"),
        "authority": CertificateAuthority.open(directory / "identity", datetime.now(UTC)),
        "audit": AuditLog(directory / "audit.log"),
        "explain": lambda _view, job, _now: Explanation(True, f"job {job} waits for a node."),
        "plan_job": plan_job,
        "preview_drain": preview_drain,
        "why_not_moved": why_not_moved,
        "addresses": Addresses("127.0.0.1:3000", "127.0.0.1:50001", "127.0.0.1:50000"),
        "version": "0.1.0",
    }
    return Api(**(given | others))


@contextlib.asynccontextmanager
async def running(store: Store, reconcilers: Sequence[Any] = RECONCILERS) -> AsyncIterator[Engine]:
    engine = Engine(store, reconcilers)
    await engine.lead()
    async with asyncio.TaskGroup() as tasks:
        driver = tasks.create_task(engine.run())
        try:
            yield engine
        finally:
            driver.cancel()
            await store.close()


@contextlib.asynccontextmanager
async def serving(
    directory: Path,
    make_store: Callable[[Path], Store] = SqliteStore,
    reconcilers: Sequence[Any] = RECONCILERS,
    **changes: Any,
) -> AsyncIterator[Serving]:
    """A server; `changes` replace fields of its Api."""
    async with running(make_store(directory), reconcilers) as engine:
        source = FileSource(directory)
        api = make_api(engine, directory, source, **changes)
        # With the protocol named, asyncio sets TCP_NODELAY; else each answer waits for a delayed ACK.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            make_app(api), lifespan="off", ws="none", log_level="critical", timeout_graceful_shutdown=1
        )
        web = _Web(config)
        async with asyncio.TaskGroup() as tasks:
            server = tasks.create_task(web.serve(sockets=[listener]))
            await web.listens.wait()
            token = api.vault.make_server_token("ada", 0)
            try:
                yield Serving(api, listener.getsockname()[1], token, source, directory)
            finally:
                web.should_exit = True
                await server
                api.audit.close()


async def _head(reader: asyncio.StreamReader) -> Reply:
    status = int((await reader.readline()).split()[1])
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Reply(status, headers, b"")


async def chunks_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    remainder = b""
    async for chunk in chunks:
        *lines, remainder = (remainder + chunk).split(b"\n")
        for line in lines:
            yield line


async def data_of(lines: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """The values of server-sent events."""
    async for line in lines:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))
