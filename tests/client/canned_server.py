"""A real HTTP server in a thread that sends prepared answers and records requests."""

import json
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from rota.testing.cluster import free_ports

TOKEN = "token-for-tests"
HOLD_SECONDS = 60.0  # a stream that nobody lets go on ends by itself
# A piece of a stream that is an Event is waited for: a test decides when the stream goes on.
Piece = bytes | threading.Event


@dataclass(frozen=True)
class Seen:
    """One request, as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    port: int


@dataclass(frozen=True)
class Reply:
    """One answer: a body, or a stream of chunks; `cut` closes the connection without a proper end."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    stream: Iterable[Piece] | None = None
    cut: bool = False


Answer = Reply | Callable[[Seen], Reply]


class CannedServer:
    """Prepare answers with `on`; the last one for a route is repeated."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._answers: dict[tuple[str, str], list[Answer]] = {}
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        (self.port,) = free_ports(1)  # nobody takes it while the server is down
        self.start()

    @property
    def addr(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on(self, route: str, *answers: Any) -> None:
        """`on("GET /v1/nodes", {...})`: what is no Reply or function is the body of one."""
        method, path = route.split(" ")
        self._answers[method, path] = [_answer(answer) for answer in answers]

    def asked(self, route: str) -> list[Seen]:
        method, path = route.split(" ")
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def reply_to(self, seen: Seen) -> Reply:
        with self._lock:
            self.seen.append(seen)
            if seen.headers.get("Authorization") != f"Bearer {TOKEN}":
                return problem(401, "unauthenticated", "the token is not known")
            reply = self._next(seen.method, seen.path, seen)
            if (seen.method, seen.path) == ("POST", "/v1/jobs") and "event-stream" in seen.headers["Accept"]:
                return self._followed(reply, seen)
            return reply

    def _next(self, method: str, path: str, seen: Seen) -> Reply:
        answers = self._answers.get((method, path))
        if not answers:
            return problem(404, "not_found", f"there is nothing at {method} {path}")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer if isinstance(answer, Reply) else answer(seen)

    def _followed(self, reply: Reply, seen: Seen) -> Reply:
        """A submitted job as the first of its events; the others are those of following it."""
        if reply.status >= 300 or reply.body is None:
            return reply
        rest = self._next("GET", f"/v1/jobs/{reply.body['id']}/follow", seen)
        stream = events(event("job", reply.body), *(rest.stream or ()), cut=rest.cut or not rest.stream)
        return replace(stream, status=reply.status)


def problem(status: int, code: str, detail: str, **more: Any) -> Reply:
    headers = {"Retry-After": str(more.pop("retry_after"))} if "retry_after" in more else {}
    body = {
        "status": status,
        "code": code,
        "title": code,
        "detail": detail,
        "field": None,
        "hint": None,
        **more,
    }
    return Reply(body, status, headers)


def job(state: str = "active", **more: Any) -> dict[str, Any]:
    """A job as the server describes it."""
    tasks = {"succeeded": "succeeded", "failed": "failed", "canceled": "canceled", "timed_out": "timed_out"}
    counts = {tasks.get(state, "running"): more.get("count", 1)}
    return {
        "id": "12",
        "name": "python",
        "namespace": "default",
        "state": state,
        "reason": None,
        "sentence": f"it is {state}",
        "count": 1,
        "done": more.get("count", 1) if state in tasks else 0,
        "priority": 50,
        "counts": counts,
        "submitted_at_ms": 1_000_000,
        "started_at_ms": 1_000_040,
        "ended_at_ms": 1_001_000 if state in tasks else None,
        "exit_code": 0 if state == "succeeded" else None,
        "signal": None,
        "user": "admin",
        "cluster": "default",
        **more,
    }


def task(index: int = 0, state: str = "succeeded", **more: Any) -> dict[str, Any]:
    """A task as the server describes it."""
    return {
        "job": "12",
        "index": index,
        "state": state,
        "tries": 1,
        "attempt": 1,
        "node": "laptop",
        "exit_code": 0 if state == "succeeded" else None,
        "signal": None,
        "reason": None,
        "placed_at_ms": 1_000_010,
        "started_at_ms": 1_000_040,
        "ended_at_ms": 1_000_140,
        "ran_ms": 100.0,
        "cpu_ms": 20.0,
        "peak_memory_bytes": 9 * 1024 * 1024,
        **more,
    }


def node(**more: Any) -> dict[str, Any]:
    """A node as the server describes it."""
    capacity = {"cpu": 8.0, "memory": 16 * 1024**3, "disk": 100 * 1024**3, "gpu": 0}
    return {
        "id": "n1",
        "name": "laptop",
        "state": "ready",
        "eligibility": "open",
        "cluster": "default",
        "labels": {"region": "eu"},
        "capacity": capacity,
        "reserved": {"cpu": 2.0, "memory": 1024**3, "disk": 0, "gpu": 0},
        "used": None,
        "running": 2,
        "queued": 0,
        "agent_version": "0.1.0",
        "heard_ms_ago": 120,
        "report_interval_ms": 2000,
        "reason": None,
        **more,
    }


def statuses(*jobs: dict[str, Any] | threading.Event, cut: bool = False) -> Reply:
    """An event stream of a job's statuses."""
    pieces = (item if isinstance(item, threading.Event) else event("status", item) for item in jobs)
    return events(*pieces, cut=cut)


def events(*pieces: Piece, cut: bool = False) -> Reply:
    return Reply(stream=pieces, cut=cut, headers={"Content-Type": "text/event-stream"})


def event(kind: str, value: Any, seq: str | None = None) -> bytes:
    head = f"id: {seq}\n" if seq else ""
    return f"{head}event: {kind}\ndata: {json.dumps(value)}\n\n".encode()


def chunk(data: bytes, stream: str = "stdout", offset: int = 0, index: int = 0, attempt: int = 1) -> bytes:
    fields = {"index": index, "attempt": attempt, "stream": stream, "offset": offset}
    return json.dumps({**fields, "data": b64encode(data).decode()}).encode() + b"\n"


def output(*pieces: Piece, cut: bool = False) -> Reply:
    return Reply(stream=pieces, cut=cut, headers={"Content-Type": "application/x-ndjson"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], canned: CannedServer) -> None:
        super().__init__(address, _Door)
        self.canned = canned
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        """As when a process ends: its connections end with it."""
        super().server_close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


def _answer(answer: Any) -> Answer:
    return answer if isinstance(answer, Reply) or callable(answer) else Reply(answer)


class _Door(BaseHTTPRequestHandler):
    server: "_Server"
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def do_PUT(self) -> None:
        self._respond()

    def do_PATCH(self) -> None:
        self._respond()

    def do_DELETE(self) -> None:
        self._respond()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the library's signature
        pass

    def _respond(self) -> None:
        address = urlsplit(self.path)
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(text) if text else None
        query = dict(parse_qsl(address.query))
        port = self.client_address[1]
        seen = Seen(self.command, unquote(address.path), query, dict(self.headers), body, port)
        reply = self.server.canned.reply_to(seen)
        if reply.cut and reply.stream is None:
            self.close_connection = True
            return
        if reply.stream is None:
            self._whole(reply)
        else:
            self._pieces(reply, reply.stream)

    def _whole(self, reply: Reply) -> None:
        data = b"" if reply.body is None else json.dumps(reply.body).encode()
        self._head(reply, {"Content-Length": str(len(data))})
        self.wfile.write(data)

    def _pieces(self, reply: Reply, pieces: Iterable[Piece]) -> None:
        self._head(reply, {"Transfer-Encoding": "chunked"})
        held = b""  # the last piece comes with the end: who has read it finds the end there
        for piece in pieces:
            self.wfile.write(held)
            if isinstance(piece, threading.Event):
                held = b""
                piece.wait(HOLD_SECONDS)
            else:
                held = b"%x\r\n%s\r\n" % (len(piece), piece)
        self.wfile.write(held if reply.cut else held + b"0\r\n\r\n")
        self.close_connection = self.close_connection or reply.cut

    def _head(self, reply: Reply, headers: dict[str, str]) -> None:
        self.send_response(reply.status)
        for name, value in {**headers, **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
