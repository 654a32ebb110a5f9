"""Requests that a standby forwards to the leader, and their responses, streamed back as they arrive. [I/O]

A request is sent at most once: after an error it is not known whether the leader has carried it out, and only
the client may decide to repeat it. Connections are reused while they are fresh.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools
from starlette.types import Receive, Scope, Send

from rota.apiserver.responses import limit_body, run_until_disconnect
from rota.identity.authority import CertificateAuthority
from rota.model.errors import Unavailable

FORWARDED_HEADER = "rota-forwarded"  # set by a standby: another standby does not forward it again
ORIGIN_HEADER = "rota-origin"  # the client's address, with a signature that only servers can make
CONNECT_SECONDS = 2.0
IDLE_SECONDS = 10.0  # how long a connection is kept; the leader keeps its end far longer
IDLE_MAX = 32
_READ_BYTES = 65536
_HOP_BY_HOP_HEADERS = (
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"upgrade",
    b"te",
    b"trailer",
    b"expect",
    b"date",
)
_LOCAL_HEADERS = (b"host", b"origin", b"sec-fetch-site", b"content-length")  # checked by the standby
_CLUSTER_HEADERS = (FORWARDED_HEADER.encode(), ORIGIN_HEADER.encode())  # not trusted from clients
RawHeaders = list[tuple[bytes, bytes]]


class ResponseHead(NamedTuple):
    """Status and headers of a response."""

    status: int
    headers: RawHeaders

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


class LeaderConnection(NamedTuple):
    """A connection to the server at `url`."""

    url: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_open(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())


class ForwardedCall:
    """One request to the leader, sent once and never repeated."""

    def __init__(self, connection: LeaderConnection) -> None:
        self._reader, self._writer = connection.reader, connection.writer
        self._response = _ResponseParser()

    async def send(self, request: bytes, timeout_seconds: float) -> ResponseHead:
        """Send the request. Raises Unavailable, and then it is not known whether the leader received it."""
        with _errors_as_unavailable():
            async with asyncio.timeout(timeout_seconds):
                self._writer.write(request)
                await self._writer.drain()
                while not self._response.has_head:
                    await self._read()
        headers = [(name, value) for name, value in self._response.headers if name not in _HOP_BY_HOP_HEADERS]
        return ResponseHead(self._response.parser.get_status_code(), headers)

    async def stream_body(self, send: Send) -> bytes:
        """Send on the body as it arrives; returns its last bytes. Raises Unavailable if it is truncated."""
        with _errors_as_unavailable():
            while not self._response.is_complete:
                if data := self._response.drain_body():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await self._read()
        return self._response.drain_body()

    @property
    def leaves_connection_reusable(self) -> bool:
        """Whether the response is complete, and the leader keeps the connection open."""
        return self._response.is_complete and self._response.keeps_alive

    async def _read(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        self._response.parser.feed_data(data)


class LeaderClient:
    """Connections from this server to the leader."""

    def __init__(self, roots_pem: Callable[[], bytes]) -> None:
        """`roots_pem` returns the CAs to trust besides those of the system; a rotation changes them."""
        self._roots_pem = roots_pem
        self._trusted = b""
        self._tls = ssl.create_default_context()
        self._idle: list[tuple[float, LeaderConnection]] = []

    @asynccontextmanager
    async def open_call(self, url: str) -> AsyncIterator[ForwardedCall]:
        """A call to the leader at `url`. Raises Unavailable if it is unreachable; nothing was sent then."""
        # A request is never repeated on a new connection, not even if the reused one turns out to be
        # closed: the leader may have received it.
        connection = self._idle_connection(url) or await self._dial(url)
        call = ForwardedCall(connection)
        try:
            yield call
        finally:
            # After a timeout or a client that left, the rest of the response is still on its way: the next
            # response on this connection would be mixed up with it.
            if call.leaves_connection_reusable and connection.is_open and len(self._idle) < IDLE_MAX:
                self._idle.append((time.monotonic(), connection))
            else:
                connection.writer.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].writer.close()

    def _idle_connection(self, url: str) -> LeaderConnection | None:
        """The connection used last, as the least likely to be stale; those to earlier leaders are closed."""
        oldest = time.monotonic() - IDLE_SECONDS
        while self._idle:
            since, connection = self._idle.pop()
            if since >= oldest and connection.url == url and connection.is_open:
                return connection
            connection.writer.close()
        return None

    async def _dial(self, url: str) -> LeaderConnection:
        address = urlsplit(url)
        tls = self._context() if address.scheme == "https" else None
        with _errors_as_unavailable():
            async with asyncio.timeout(CONNECT_SECONDS):
                return LeaderConnection(
                    url, *await asyncio.open_connection(address.hostname, address.port, ssl=tls)
                )

    def _context(self) -> ssl.SSLContext:
        # Certificates cannot be removed from a context: after a rotation a new one is needed.
        if self._trusted != (roots := self._roots_pem()):
            self._tls, self._trusted = ssl.create_default_context(), roots
            self._tls.load_verify_locations(cadata=roots.decode())
        return self._tls


def signed_origin(authority: CertificateAuthority, scope: Scope) -> str:
    """The value of ORIGIN_HEADER: the client's address, and the signature of this server on it."""
    address = (scope.get("client") or ("",))[0]
    return f"{address} {authority.sign_origin(address, _signed_request(scope))}"


def origin_of(authority: CertificateAuthority, scope: Scope) -> str:
    """The client's address: as a forwarding server has signed it for this request, else the connection's."""
    header = next((value for name, value in scope["headers"] if name == ORIGIN_HEADER.encode()), b"")
    origin, _, signature = header.decode("latin-1").partition(" ")
    # Only a server of this cluster can sign it: a client cannot choose the address that limits and audit see.
    if signature and authority.verify_origin(origin, _signed_request(scope), signature):
        return origin
    client = scope.get("client")
    return client[0] if client else ""


def _signed_request(scope: Scope) -> bytes:
    """What the signature is for: only the request line, since a refusal does not wait for the body."""
    return f"{scope['method']} {scope['path']}".encode()


def encode_request(scope: Scope, url: str, body: bytes, origin: str) -> bytes:
    """The request as it is sent to the leader; `origin` is the value of ORIGIN_HEADER."""
    # Headers of the cluster are dropped from the client's request: it could forge its address with them.
    dropped = (*_HOP_BY_HOP_HEADERS, *_LOCAL_HEADERS, *_CLUSTER_HEADERS)
    target = scope.get("raw_path", scope["path"].encode())
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    lines = [
        scope["method"].encode() + b" " + target + b" HTTP/1.1",
        b"host: " + urlsplit(url).netloc.encode(),
        b"content-length: %d" % len(body),
        FORWARDED_HEADER.encode() + b": 1",
        ORIGIN_HEADER.encode() + b": " + origin.encode(),
        *(name + b": " + value for name, value in scope["headers"] if name.lower() not in dropped),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def read_body(receive: Receive) -> bytes:
    receive, parts = limit_body(receive), []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def send_response(call: ForwardedCall, head: ResponseHead, receive: Receive, send: Send) -> None:
    """Send the response until it ends or the client disconnects."""
    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
    end = await run_until_disconnect(call.stream_body(send), receive)
    if end is not None:
        await send({"type": "http.response.body", "body": end, "more_body": False})


class _ResponseParser:
    """What has arrived of a response so far."""

    def __init__(self) -> None:
        self.headers: RawHeaders = []
        self.has_head = self.is_complete = self.keeps_alive = False
        self.parser = httptools.HttpResponseParser(self)
        self._body = bytearray()

    def drain_body(self) -> bytes:
        body, self._body = bytes(self._body), bytearray()
        return body

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.keeps_alive = bool(self.parser.should_keep_alive())  # valid only in this callback
        self.is_complete = True


@contextmanager
def _errors_as_unavailable() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Unavailable(
            "the leader does not answer; it is not known whether the request was carried out"
        ) from None
    except (OSError, httptools.HttpParserError) as error:
        raise Unavailable(f"the leader cannot be reached: {error}") from error
