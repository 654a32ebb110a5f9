"""Requests over kept-alive connections, repeated with growing pauses while the server is away."""

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
# An answer that is no stream is small: pages are limited by the server.
ANSWER_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class ApiRequest:
    """One call of the API."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        said = {key: _text(value) for key, value in self.query.items() if value is not None}
        return f"{self.path}?{urlencode(said, doseq=True)}" if said else self.path


class _SingleWriteConnection(HTTPConnection):
    """Sends head and body of a request together: two pieces would wake the server twice."""

    _unsent = b""

    def send(self, data: Any) -> None:
        self._unsent += data

    def getresponse(self) -> HTTPResponse:
        whole, self._unsent = self._unsent, b""
        super().send(whole)
        return super().getresponse()


class _SecureConnection(_SingleWriteConnection, HTTPSConnection):
    pass


class Transport:
    """Speaks HTTP/1.1 to whichever server leads; threads may share it: no two calls share a connection."""

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
        """The JSON answer, with its ETag as `etag` where it has one."""
        answer = self.fetch(request, patience_seconds)
        said = _json(answer.body) if answer.body else None
        return {**said, "etag": answer.etag} if answer.etag and isinstance(said, dict) else said

    def fetch(self, request: ApiRequest, patience_seconds: float | None = None) -> "FullResponse":
        """The whole answer; every request may be repeated: those that would act twice carry a key."""
        patience_seconds = self.patience_seconds if patience_seconds is None else patience_seconds
        pauses = RetryBackoff(patience_seconds, self.on_wait)
        repeated = False
        while True:
            try:
                return self._once(request)
            except Unavailable as problem:
                if self._servers.all_were_tried():
                    pauses.wait(problem)
                repeated = True
            except NotFound:
                if request.method == "DELETE" and repeated:
                    return FullResponse(b"")  # the answer to the first one was lost on the way
                raise

    @contextmanager
    def stream(
        self, request: ApiRequest, silence_seconds: float | None, deadline: float | None = None
    ) -> Iterator[Iterator[bytes]]:
        """The answer's lines as they come, on a connection of its own; longer silence is an error.

        So is an end that has not come by the deadline, an instant of the monotonic clock.
        """
        connection, response = self._answered(request, _left(silence_seconds, deadline))
        try:
            if response.status >= 300:
                with _as_unavailable(self._endpoint.addr):
                    raise _problem(response)
            if request.headers.get("Accept", "") not in response.headers.get("Content-Type", ""):
                raise Broken("internal", "the server answered in a form this client did not ask for")
            yield _lines(
                response, self._endpoint.addr, partial(_wait_no_longer, connection, silence_seconds, deadline)
            )
        finally:
            if _is_read(connection, response):
                self._keep(connection)
            else:
                connection.close()

    @contextmanager
    def download(self, request: ApiRequest, silence_seconds: float | None) -> Iterator["ResponseBody"]:
        """The answer's bytes as they come, on a connection of its own."""
        connection, response = self._answered(request, silence_seconds)
        try:
            if response.status >= 300:
                with _as_unavailable(self._endpoint.addr):
                    raise _problem(response)
            yield ResponseBody(response, self._endpoint.addr)
        finally:
            connection.close()

    def close(self) -> None:
        self._is_closed = True
        while (connection := self._kept()) is not None:
            connection.close()

    def _once(self, request: ApiRequest) -> "FullResponse":
        connection, response = self._answered(request, self._servers.answer_seconds)
        try:
            with _as_unavailable(self._endpoint.addr):
                failed = _problem(response) if response.status >= 300 else None
                body = _whole(response)
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

    def _answered(
        self, request: ApiRequest, silence_seconds: float | None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """The head of the answer has come; its body is to be read from the connection it came on."""
        while (connection := self._kept()) is not None:
            try:
                return connection, self._send(connection, request, silence_seconds)
            except Unavailable as problem:
                # The server closes idle connections; only a fresh one tells whether it is away.
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
        if self._is_closed:  # meanwhile, by another thread
            self.close()

    def _kept(self) -> HTTPConnection | None:
        """One to the server that is asked now; others lead nowhere any more."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:  # asked this way round because threads share the list
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
        self._servers.answered(connection.host, connection.port, response.status)
        self.seen.update(response.headers)
        return response


class FullResponse(NamedTuple):
    """All of an answer, and which version of the thing it is about."""

    body: bytes
    etag: str | None = None


class ResponseBody:
    """The bytes of one answer; one that was cut is an error, not an end."""

    def __init__(self, response: HTTPResponse, addr: str) -> None:
        self._response = response
        self._addr = addr

    def read(self, size: int) -> bytes:
        with _as_unavailable(self._addr):
            return self._response.read(size)


def new_key() -> str:
    """Without a key of its own a submit could not be repeated when its answer is lost."""
    return os.urandom(16).hex()


def segment(text: str) -> str:
    """A name as one part of a path."""
    return quote(text, safe="")


def matching(etag: str | None) -> dict[str, str]:
    """The header that lets a change happen only if nobody else has made one since."""
    return {} if etag is None else {"If-Match": etag}


def _text(value: Any) -> str | list[str]:
    if isinstance(value, list):
        return [str(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=endpoint.ca)
    except OSError as error:
        raise Rejected("bad_field", f"ca: {endpoint.ca} cannot be used: {error}", field="ca") from None


def _notice_dead_peers(sock: socket.socket) -> None:
    """A stream may be silent for hours; the kernel finds out within 30 s when the other side is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _whole(response: HTTPResponse) -> bytes:
    body = response.read(ANSWER_BYTES)
    if response.length:  # whoever sent it has died: a read of so many bytes does not say so
        raise IncompleteRead(body, response.length)
    return body


@contextmanager
def _as_unavailable(addr: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise Rejected(
            "unauthenticated",
            f"{addr} is not who it should be: {error.verify_message}",
            hint="is the `ca` of this context current? If the cluster's CA was replaced, copy it once more: "
            "`rota ca show` prints it on the server's machine",
        ) from error
    except (OSError, HTTPException) as error:
        raise Unavailable(
            "unavailable",
            f"no answer from {addr}: {_reason(error)}",
            hint="is the server running? `rota dev` starts one",
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "the connection was cut"


def _problem(response: HTTPResponse) -> RotaError:
    body = _whole(response)
    try:
        problem = json.loads(body)
    except ValueError:
        problem = {}
    said = problem if isinstance(problem, dict) else {}
    return from_problem(response.status, said, response.headers.get("Retry-After"))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise Broken(
            "internal", "the answer is not JSON", hint="does the address belong to a Rota server?"
        ) from None


def _is_read(connection: HTTPConnection, response: HTTPResponse) -> bool:
    """Whether the whole body has come, so that the connection can serve again; nothing is waited for."""
    if response.will_close:
        return False
    connection.sock.settimeout(0)
    try:
        return not response.read1(1)
    except (OSError, HTTPException, ValueError):
        return False


def _left(silence_seconds: float | None, deadline: float | None) -> float | None:
    if deadline is None:
        return silence_seconds
    left_seconds = max(0.001, deadline - time.monotonic())
    return left_seconds if silence_seconds is None else min(silence_seconds, left_seconds)


def _wait_no_longer(
    connection: HTTPConnection, silence_seconds: float | None, deadline: float | None
) -> None:
    """A server that gives signs of life again and again is not listened to for ever."""
    if deadline is not None and connection.sock is not None:  # else the answer's own, and as it was
        connection.sock.settimeout(_left(silence_seconds, deadline))


def _lines(response: HTTPResponse, addr: str, before_each: Callable[[], None]) -> Iterator[bytes]:
    rest = b""
    while True:
        before_each()
        with _as_unavailable(addr):
            data = response.read1(READ_BYTES)
        if not data:
            break
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        yield from lines
    # What is left has no line end: it was cut, and comes again whole.
