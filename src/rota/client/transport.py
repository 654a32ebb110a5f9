"""HTTP requests over kept-alive connections, retried with backoff while no server is reachable.

Every request may be retried: those that would act twice carry an Idempotency-Key, and a DELETE that is
answered by 404 after a retry counts as done.
"""

import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlencode

from rota.client.backoff import OnWait, RetryBackoff
from rota.client.context import Endpoint
from rota.client.errors import Broken, NotFound, Rejected, RotaError, Unavailable, from_problem
from rota.client.revision import SeenRevision
from rota.client.servers import ServerRotation

CONNECT_SECONDS = 5.0
READ_BYTES = 65536
# Bound of an answer that is not a stream; the server limits the size of pages.
ANSWER_BYTES = 256 * 1024 * 1024

QueryValue = str | list[str] | int | None


@dataclass(frozen=True)
class ApiRequest:
    """One request to the API."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        query = {key: _text(value) for key, value in self.query.items() if value is not None}
        return f"{self.path}?{urlencode(query, doseq=True)}" if query else self.path


class _SingleWriteConnection(HTTPConnection):
    """Sends head and body of a request in one write: two writes would wake the server twice."""

    _unsent = b""

    def send(self, data: Any) -> None:
        self._unsent += data

    def getresponse(self) -> HTTPResponse:
        request, self._unsent = self._unsent, b""
        super().send(request)
        return super().getresponse()


class _SecureConnection(_SingleWriteConnection, HTTPSConnection):
    pass


class Transport:
    """HTTP/1.1 client of the leader. Threads may share it: concurrent calls never use the same connection."""

    def __init__(self, endpoint: Endpoint, patience_seconds: float, on_wait: OnWait | None = None) -> None:
        self._endpoint = endpoint
        self._servers = ServerRotation(endpoint)
        self.seen = SeenRevision()
        self._tls = _tls(endpoint) if self._servers.are_secure else None
        self._idle: list[HTTPConnection] = []
        self._is_closed = False
        self.patience_seconds = patience_seconds
        self.on_wait = on_wait

    def call(self, request: ApiRequest, patience_seconds: float | None = None) -> Any:
        """Send a request and return the JSON answer, with its ETag, if any, as `etag`."""
        answer = self.fetch(request, patience_seconds)
        value = _json(answer.body) if answer.body else None
        return {**value, "etag": answer.etag} if answer.etag and isinstance(value, dict) else value

    def fetch(self, request: ApiRequest, patience_seconds: float | None = None) -> "FullResponse":
        """Send a request, with retries, and return the whole answer."""
        patience_seconds = self.patience_seconds if patience_seconds is None else patience_seconds
        backoff = RetryBackoff(patience_seconds, self.on_wait)
        repeated = False
        while True:
            try:
                return self._once(request)
            except Unavailable as problem:
                # Backoff only after a whole pass over the servers: failover must not cost a pause per server.
                if self._servers.all_were_tried():
                    backoff.wait(problem)
                repeated = True
            except NotFound:
                # The one kind of request without a key that would fail when it is repeated.
                if request.method == "DELETE" and repeated:
                    return FullResponse(b"")  # an earlier try has deleted it; its answer was lost
                raise

    @contextmanager
    def stream(
        self, request: ApiRequest, silence_seconds: float | None, deadline: float | None = None
    ) -> Iterator[Iterator[bytes]]:
        """The lines of a streamed answer as they arrive, on a connection of its own.

        Raises Unavailable after `silence_seconds` without data, or at `deadline` (monotonic clock).
        """
        connection, response = self._exchange(request, _read_timeout(silence_seconds, deadline))
        try:
            if response.status >= 300:
                with _as_unavailable(self._endpoint.addr):
                    raise _problem(response)
            if request.headers.get("Accept", "") not in response.headers.get("Content-Type", ""):
                raise Broken(
                    "internal", "the server answered with a content type that this client did not request"
                )
            yield _lines(
                response,
                self._endpoint.addr,
                partial(_limit_read_timeout, connection, silence_seconds, deadline),
            )
        finally:
            # Reused only without unread bytes: they would be taken for the start of the next answer.
            if _is_fully_read(connection, response):
                self._keep(connection)
            else:
                connection.close()

    @contextmanager
    def download(self, request: ApiRequest, silence_seconds: float | None) -> Iterator["ResponseBody"]:
        """The body of an answer as it arrives, on a connection of its own."""
        connection, response = self._exchange(request, silence_seconds)
        try:
            if response.status >= 300:
                with _as_unavailable(self._endpoint.addr):
                    raise _problem(response)
            yield ResponseBody(response, self._endpoint.addr)
        finally:
            connection.close()

    def close(self) -> None:
        self._is_closed = True
        while (connection := self._pop_idle()) is not None:
            connection.close()

    def _once(self, request: ApiRequest) -> "FullResponse":
        connection, response = self._exchange(request, self._servers.answer_seconds)
        try:
            with _as_unavailable(self._endpoint.addr):
                failed = _problem(response) if response.status >= 300 else None
                # The body of an error is read as well: otherwise the connection could not be reused.
                body = _read_body(response)
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        if failed is not None:
            raise failed
        return FullResponse(body, response.headers.get("ETag"))

    def _exchange(
        self, request: ApiRequest, silence_seconds: float | None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request and read the head of the answer; its body is still to be read."""
        while (connection := self._pop_idle()) is not None:
            try:
                return connection, self._send(connection, request, silence_seconds)
            except Unavailable as problem:
                # Race: the server may have closed this idle connection meanwhile. Only a failure on a fresh
                # connection shows that the server is unreachable; a timeout does so on any.
                if isinstance(problem.__cause__, TimeoutError):
                    self._servers.rotate_from(self._servers.current)
                    raise
        address = self._servers.current
        try:
            with _as_unavailable(address.geturl()):
                connection = self._connect(address)
            response = self._send(connection, request, silence_seconds)
        except Unavailable:
            self._servers.rotate_from(address)
            raise
        return connection, response

    def _keep(self, connection: HTTPConnection) -> None:
        self._idle.append(connection)
        # Race: another thread may have called close() meanwhile, and would not see this connection.
        if self._is_closed:
            self.close()

    def _pop_idle(self) -> HTTPConnection | None:
        """An idle connection to the current server, or None; connections to other servers are closed."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:  # not checked beforehand: threads share the list
                return None
            if self._servers.is_current(connection.host, connection.port):
                return connection
            connection.close()

    def _connect(self, address: SplitResult) -> HTTPConnection:
        host, port = address.hostname or "", address.port
        if address.scheme == "https":
            connection: HTTPConnection = _SecureConnection(
                host, port, timeout=CONNECT_SECONDS, context=self._tls
            )
        else:
            connection = _SingleWriteConnection(host, port, timeout=CONNECT_SECONDS)
        connection.connect()
        _notice_dead_peers(connection.sock)
        return connection

    def _send(
        self, connection: HTTPConnection, request: ApiRequest, silence_seconds: float | None
    ) -> HTTPResponse:
        headers = {
            "Authorization": f"Bearer {self._endpoint.token}",
            "Accept": "application/json",
            **self.seen.headers,
            **request.headers,
        }
        body = None
        if request.body is not None:
            body = json.dumps(request.body).encode()
            headers["Content-Type"] = "application/json"
        try:
            with _as_unavailable(self._endpoint.addr):
                connection.sock.settimeout(silence_seconds)
                connection.request(request.method, request.target, body, headers)
                response = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        # Any answer counts, also a refusal: the server is reachable. Only 503 moves on to the next one.
        self._servers.answered(connection.host, connection.port, response.status)
        self.seen.update(response.headers)
        return response


class FullResponse(NamedTuple):
    """The body of an answer and its ETag."""

    body: bytes
    etag: str | None = None


class ResponseBody:
    """The body of one answer; a truncated one raises Unavailable instead of ending early."""

    def __init__(self, response: HTTPResponse, addr: str) -> None:
        self._response = response
        self._addr = addr

    def read(self, size: int) -> bytes:
        with _as_unavailable(self._addr):
            return self._response.read(size)


def new_key() -> str:
    """A new idempotency key: with it a request whose answer was lost can be retried."""
    return os.urandom(16).hex()


def segment(text: str) -> str:
    """A name, quoted as one segment of a path."""
    return quote(text, safe="")


def matching(etag: str | None) -> dict[str, str]:
    """The If-Match header for an ETag: the change fails if there was another one since."""
    return {} if etag is None else {"If-Match": etag}


def _text(value: Any) -> str | list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=endpoint.ca)
    except OSError as error:
        raise Rejected("bad_field", f"ca: {endpoint.ca} is not usable: {error}", field="ca") from None


def _notice_dead_peers(sock: socket.socket) -> None:
    """Enable TCP keepalive: a stream may be silent for hours, and a dead peer is detected within 30 s."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _read_body(response: HTTPResponse) -> bytes:
    body = response.read(ANSWER_BYTES)
    if response.length:  # truncated; read() with a size does not raise by itself
        raise IncompleteRead(body, response.length)
    return body


@contextmanager
def _as_unavailable(addr: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise Rejected(
            "unauthenticated",
            f"the certificate of {addr} is not trusted: {error.verify_message}",
            hint="is the `ca` of this context current? If the CA was replaced, copy the new one: "
            "`rota ca show` prints it on the machine of the server",
        ) from error
    except (OSError, HTTPException) as error:
        raise Unavailable(
            "unavailable",
            f"no answer from {addr}: {_reason(error)}",
            hint="is the server running? `rota dev` starts one",
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "the connection was closed"


def _problem(response: HTTPResponse) -> RotaError:
    body = _read_body(response)
    try:
        problem = json.loads(body)
    except ValueError:
        problem = {}
    fields = problem if isinstance(problem, dict) else {}
    return from_problem(response.status, fields, response.headers.get("Retry-After"))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise Broken(
            "internal", "the answer is not JSON", hint="does the address belong to a Rota server?"
        ) from None


def _is_fully_read(connection: HTTPConnection, response: HTTPResponse) -> bool:
    """Whether the whole body has arrived, so that the connection can be reused; does not block."""
    if response.will_close:
        return False
    # Must not block: the caller is leaving the stream, and the rest of the body may never arrive.
    connection.sock.settimeout(0)
    try:
        return not response.read1(1)
    except (OSError, HTTPException, ValueError):
        return False


def _read_timeout(silence_seconds: float | None, deadline: float | None) -> float | None:
    if deadline is None:
        return silence_seconds
    left_seconds = max(0.001, deadline - time.monotonic())
    return left_seconds if silence_seconds is None else min(silence_seconds, left_seconds)


def _limit_read_timeout(
    connection: HTTPConnection, silence_seconds: float | None, deadline: float | None
) -> None:
    """Shorten the read timeout as the deadline approaches: keepalive lines must not postpone it."""
    # A response that closes its connection has taken the socket over.
    if deadline is not None and connection.sock is not None:
        connection.sock.settimeout(_read_timeout(silence_seconds, deadline))


def _lines(response: HTTPResponse, addr: str, before_each: Callable[[], None]) -> Iterator[bytes]:
    partial_line = b""
    while True:
        before_each()
        with _as_unavailable(addr):
            data = response.read1(READ_BYTES)
        if not data:
            break
        lines = (partial_line + data).split(b"\n")
        partial_line = lines.pop()
        yield from lines
    # A partial line without its end was cut off; it is sent again whole when the stream resumes.
