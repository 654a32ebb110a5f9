"""A request handed on to the server that leads, and its answer handed back as it comes. [I/O]"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools
from starlette.types import Receive, Scope, Send

from rota.apiserver.answers import limited, until_disconnect
from rota.identity.authority import Authority
from rota.model.errors import Unavailable

FORWARDED = "rota-forwarded"  # by one that stands by: the next one that does is not to hand it on again
ORIGIN = "rota-origin"  # the caller's address, and a mark that only servers of the cluster can make
CONNECT_SECONDS = 2.0
IDLE_SECONDS = 10.0  # a connection is kept; the leader keeps its end far longer
IDLE_MAX = 32
_READ_BYTES = 65536
_OF_THE_CONNECTION = (
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"upgrade",
    b"te",
    b"trailer",
    b"expect",
    b"date",
)
_OF_THE_DOOR = (b"host", b"origin", b"sec-fetch-site", b"content-length")  # looked at here
_OURS = (FORWARDED.encode(), ORIGIN.encode())  # not believed from callers
RawHeaders = list[tuple[bytes, bytes]]


class Head(NamedTuple):
    """How an answer begins."""

    status: int
    headers: RawHeaders

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


class Line(NamedTuple):
    """A connection to a server."""

    url: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_open(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())


class Call:
    """One request to the leader: said once, never again."""

    def __init__(self, line: Line) -> None:
        self._reader, self._writer = line.reader, line.writer
        self._arriving = _Arriving()

    async def say(self, request: bytes, patience_seconds: float) -> Head:
        """Raises Unavailable: whether it was heard is not known."""
        with _told():
            async with asyncio.timeout(patience_seconds):
                self._writer.write(request)
                await self._writer.drain()
                while not self._arriving.has_head:
                    await self._read()
        headers = [(name, value) for name, value in self._arriving.headers if name not in _OF_THE_CONNECTION]
        return Head(self._arriving.parser.get_status_code(), headers)

    async def hand_back(self, send: Send) -> bytes:
        """The body as it comes; what is returned is its end. One that was cut is an error, not an end."""
        with _told():
            while not self._arriving.is_over:
                if some := self._arriving.take():
                    await send({"type": "http.response.body", "body": some, "more_body": True})
                await self._read()
        return self._arriving.take()

    @property
    def leaves_line_free(self) -> bool:
        """Whether the answer has come to its end, and another may follow."""
        return self._arriving.is_over and self._arriving.says_more_may_follow

    async def _read(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise ConnectionResetError("it hung up")
        self._arriving.parser.feed_data(data)


class Leader:
    """How whoever leads is reached from here."""

    def __init__(self, roots_pem: Callable[[], bytes]) -> None:
        """`roots_pem` are the authorities to trust, beside those of the system: a rotation changes them."""
        self._roots_pem = roots_pem
        self._trusted = b""
        self._tls = ssl.create_default_context()
        self._idle: list[tuple[float, Line]] = []

    @asynccontextmanager
    async def called(self, url: str) -> AsyncIterator[Call]:
        """Raises Unavailable, and nothing was said."""
        line = self._kept(url) or await self._dial(url)
        call = Call(line)
        try:
            yield call
        finally:
            if call.leaves_line_free and line.is_open and len(self._idle) < IDLE_MAX:
                self._idle.append((time.monotonic(), line))
            else:
                line.writer.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].writer.close()

    def _kept(self, url: str) -> Line | None:
        """The one used last: it is the likeliest to be heard. Those to who led before are closed."""
        oldest = time.monotonic() - IDLE_SECONDS
        while self._idle:
            since, line = self._idle.pop()
            if since >= oldest and line.url == url and line.is_open:
                return line
            line.writer.close()
        return None

    async def _dial(self, url: str) -> Line:
        address = urlsplit(url)
        tls = self._context() if address.scheme == "https" else None
        with _told():
            async with asyncio.timeout(CONNECT_SECONDS):
                return Line(url, *await asyncio.open_connection(address.hostname, address.port, ssl=tls))

    def _context(self) -> ssl.SSLContext:
        if self._trusted != (roots := self._roots_pem()):
            self._tls, self._trusted = ssl.create_default_context(), roots
            self._tls.load_verify_locations(cadata=roots.decode())
        return self._tls


def marked_origin(authority: Authority, scope: Scope) -> str:
    """The value of the header by which the leader knows where a request came from."""
    address = (scope.get("client") or ("",))[0]
    return f"{address} {authority.origin_mark(address, _asked(scope))}"


def origin_of(authority: Authority, scope: Scope) -> str:
    """The caller's address: that of the connection, or the one that a server has marked for this request."""
    said = next((value for name, value in scope["headers"] if name == ORIGIN.encode()), b"")
    origin, _, mark = said.decode("latin-1").partition(" ")
    if mark and authority.is_origin(origin, _asked(scope), mark):
        return origin
    client = scope.get("client")
    return client[0] if client else ""


def _asked(scope: Scope) -> bytes:
    """What the mark holds for: of the head alone, since a refusal does not wait for the body."""
    return f"{scope['method']} {scope['path']}".encode()


def request_of(scope: Scope, url: str, body: bytes, origin: str) -> bytes:
    """The same request, as it is said to the leader; `origin` is the value of that header."""
    dropped = (*_OF_THE_CONNECTION, *_OF_THE_DOOR, *_OURS)
    target = scope.get("raw_path", scope["path"].encode())
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    lines = [
        scope["method"].encode() + b" " + target + b" HTTP/1.1",
        b"host: " + urlsplit(url).netloc.encode(),
        b"content-length: %d" % len(body),
        FORWARDED.encode() + b": 1",
        ORIGIN.encode() + b": " + origin.encode(),
        *(name + b": " + value for name, value in scope["headers"] if name.lower() not in dropped),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def whole_body(receive: Receive) -> bytes:
    receive, parts = limited(receive), []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def answer_with(call: Call, head: Head, receive: Receive, send: Send) -> None:
    """Until it ends, or nobody reads any more."""
    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
    end = await until_disconnect(call.hand_back(send), receive)
    if end is not None:
        await send({"type": "http.response.body", "body": end, "more_body": False})


class _Arriving:
    """What has come of an answer so far."""

    def __init__(self) -> None:
        self.headers: RawHeaders = []
        self.has_head = self.is_over = self.says_more_may_follow = False
        self.parser = httptools.HttpResponseParser(self)
        self._body = bytearray()

    def take(self) -> bytes:
        body, self._body = bytes(self._body), bytearray()
        return body

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.says_more_may_follow = bool(self.parser.should_keep_alive())  # forgotten afterwards
        self.is_over = True


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Unavailable("the leader does not answer; whether it was done is not known") from None
    except (OSError, httptools.HttpParserError) as error:
        raise Unavailable(f"the leader cannot be reached: {error}") from error
