"""HTTP/1.1 of one connection, within bounds: what a client costs before its token is checked. [I/O]

uvicorn's protocol parses whatever arrives: it queues pipelined requests without a bound, grows a head until
its client stops, and waits for the rest of a request forever. This one is in one of four phases:

    IDLE    nothing of a request has arrived                                closed after idle_seconds
    HEAD    some of a head has                                              408 after head_seconds
    BODY    the head is complete, the request is with the application       408 after body_seconds
    ANSWER  the request is complete, its answer is not                      no deadline: a stream may last

Invariant: the parser is never fed bytes beyond the request that is under way. So there is one request per
connection at a time; what a client pipelines behind it waits unparsed, up to PIPELINED_BYTES_MAX, while the
transport is paused.

Deadlines are lazy. A phase writes a number, and one timer per connection looks at that number when it fires,
so a request that arrives whole costs no timer at all.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rota.apiserver.api import CALLER
from rota.apiserver.standby import KNOWN_TO_LEADER
from rota.model.limits import (
    CHUNK_OVERHEAD_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    PIPELINED_BYTES_MAX,
    URL_BYTES_MAX,
)

_END = b"\r\n\r\n"
_CHUNKED_PIECE = 4096  # bytes fed at once of a body whose end only the parser knows
_PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
}


class ConnectionPhase(Enum):
    """What a connection is expected to do next."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()


@dataclass(frozen=True)
class ClientTimeouts:
    """For how many seconds the server waits for a client."""

    head_seconds: float
    body_seconds: float
    idle_seconds: float


class _RequestRefused(Exception):
    """Raised in a callback of the parser, to stop parsing."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. `closed` is called when it is lost, `refused` with the address and the reason."""

    def __init__(
        self,
        *,
        timeouts: ClientTimeouts,
        closed: Callable[[], None],
        refused: Callable[[str, str], None],
        **uvicorn: Any,
    ) -> None:
        super().__init__(**uvicorn)
        self._timeouts = timeouts
        self._closed = closed
        self._refused = refused
        self._phase = ConnectionPhase.IDLE
        self._head_bytes = 0
        self._head_end = b""  # last bytes of an incomplete head: its terminator may be split over two reads
        self._body_left: int | None = None  # None: chunked, only the parser knows its end
        self._body_bytes = 0
        self._chunk_bytes = 0
        self._pipelined = b""  # received behind the request in progress
        self._problem: tuple[int, str] | None = None
        self._request: RequestResponseCycle | None = None  # the last one whose head is complete
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None

    # ---- called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._expect(self._timeouts.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pipelined = b""
        super().connection_lost(exc)
        self._closed()

    def data_received(self, data: bytes) -> None:
        # Ordering: bytes behind a request in progress wait, or responses could be sent in the wrong order.
        if self._phase is ConnectionPhase.ANSWER or self._pipelined:
            self._buffer_pipelined(data)
            return
        before: ConnectionPhase = self._phase
        after: ConnectionPhase | None = before
        start, size = 0, len(data)
        while start < size:
            end = self._end_of_piece(data, start)
            piece = data if end - start == size else data[start:end]
            start = end
            after = self._feed(piece)
            if after is None or self.transport.is_closing():
                return
            # The parser must not begin the next request before this one is answered.
            if after is ConnectionPhase.ANSWER and start < size:
                self._buffer_pipelined(data[start:])
                break
        if after is not before:
            self._expect_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Slow readers that are not authenticated are bounded in time; each holds a response in memory.
        if self._phase is ConnectionPhase.ANSWER and not self._is_known:
            self._expect(self._timeouts.idle_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._phase is ConnectionPhase.ANSWER:
            self._deadline = math.inf

    # ---- feeding the parser

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """The end of the current head or body in `data`, or the end of `data`."""
        if self._phase is ConnectionPhase.BODY:
            return min(start + (self._body_left or _CHUNKED_PIECE), len(data))
        if self._head_end:
            overlap = self._head_end + data[start : start + 3]
            if (at := overlap.find(_END)) >= 0:
                return start + at + len(_END) - len(self._head_end)
        at = data.find(_END, start)
        return len(data) if at < 0 else at + len(_END)

    def _feed(self, piece: bytes) -> ConnectionPhase | None:
        """Parse a piece of one request; returns the next phase, or None if the connection is refused."""
        if self._phase in (ConnectionPhase.IDLE, ConnectionPhase.HEAD):
            self._phase = ConnectionPhase.HEAD
            self._head_bytes += len(piece)
            self._head_end = (self._head_end + piece[-3:])[-3:]
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(431, f"the head is longer than {HEAD_BYTES_MAX} bytes")
                return None
        else:
            # Counted separately from the body: chunk extensions cost the parser work and carry no data.
            self._chunk_bytes += len(piece)
            if self._body_left is not None:
                self._body_left -= len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # no upgrade is supported: the request is answered like any other
        except httptools.HttpParserError:
            self._refuse(*(self._problem or (400, "the request is malformed")))
            return None
        if (
            self._phase is ConnectionPhase.BODY
            and self._chunk_bytes > CHUNK_OVERHEAD_MAX + 8 * self._body_bytes
        ):
            self._refuse(400, "the chunks are mostly extensions or trailers")
            return None
        return self._phase

    def _buffer_pipelined(self, data: bytes) -> None:
        """Keep pipelined bytes for later, and stop reading. Backpressure: the client's writes will block."""
        if len(self._pipelined) + len(data) > PIPELINED_BYTES_MAX:
            self._refused(self._address, "pipelined too much")
            self.transport.abort()
            return
        self._pipelined += data
        # Not through uvicorn's flow control, which resumes whenever the application waits for a message.
        self.transport.pause_reading()

    def _parse_pipelined(self) -> None:
        """Parse the buffered bytes, once the response before them is complete."""
        buffered, self._pipelined = self._pipelined, b""
        if not self.transport.is_closing():
            self.transport.resume_reading()
            self.data_received(buffered)

    # ---- called by the parser

    def on_message_begin(self) -> None:
        if self._phase is ConnectionPhase.ANSWER:  # only a chunked body can be fed beyond its end
            self._stop(400, "a request follows a chunked one before that is answered")
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > URL_BYTES_MAX:
            self._stop(414, f"the URL is longer than {URL_BYTES_MAX} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not ConnectionPhase.HEAD:
            return  # a trailer: the request is already with the application
        super().on_header(name, value)
        if len(self.headers) > HEADERS_MAX:
            self._stop(431, f"there are more than {HEADERS_MAX} headers")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._request = self.cycle
        self._phase = ConnectionPhase.BODY
        self._body_bytes = self._chunk_bytes = 0
        self._body_left = next(
            (int(value) for name, value in self.headers if name == b"content-length"), None
        )

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes, self._head_end = 0, b""
        self._phase = ConnectionPhase.IDLE if self.cycle.response_complete else ConnectionPhase.ANSWER

    # ---- called by the application

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._phase is ConnectionPhase.BODY:
            # The remaining body is read and dropped: closing now would reset the connection, and the client
            # would lose the response.
            self._expect(min(self._timeouts.head_seconds, self._timeouts.body_seconds))
            return
        self._phase = ConnectionPhase.IDLE
        self._expect(self._timeouts.idle_seconds)
        if self._pipelined:
            # Not directly: parsing here would recurse once for each pipelined request.
            self.loop.call_soon(self._parse_pipelined)

    # ---- deadlines

    def _expect_phase(self) -> None:
        match self._phase:
            case ConnectionPhase.IDLE:
                self._expect(self._timeouts.idle_seconds)
            case ConnectionPhase.HEAD:
                self._expect(self._timeouts.head_seconds)
            case ConnectionPhase.BODY:
                self._expect(self._timeouts.body_seconds)
            case ConnectionPhase.ANSWER:
                self._deadline = math.inf

    def _expect(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds
        # A timer that fires early only checks again, so it is replaced only if it would fire too late.
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._deadline == math.inf or self.transport.is_closing():
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)
        elif self._phase is ConnectionPhase.BODY and self.flow.read_paused:
            self._expect(self._timeouts.body_seconds)  # the application is slow to read, not the client
        else:
            self._expire()

    def _expire(self) -> None:
        has_unread = self.transport.get_write_buffer_size() > 0
        if has_unread and self._phase is ConnectionPhase.IDLE and self._is_known:
            self.transport.close()  # once the client has read the response, however slowly
        elif has_unread or self._phase is ConnectionPhase.ANSWER:
            self.transport.abort()
        elif self._phase is ConnectionPhase.IDLE:
            self.transport.close()
        else:
            self._refuse(408, "the request was not complete in time")

    # ---- refusals

    def _stop(self, status: int, why: str) -> None:
        self._problem = (status, why)
        raise _RequestRefused

    def _refuse(self, status: int, why: str) -> None:
        self._refused(self._address, why)
        if (
            self._request is not None
            and self._request.response_started
            and not self._request.response_complete
        ):
            self.transport.abort()  # a response has started: no status can be sent any more
            return
        head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        tail = f"content-length: {len(why)}\r\nconnection: close\r\n\r\n{why}"
        self.transport.write((head + tail).encode())
        self.transport.close()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _is_known(self) -> bool:
        """Whether the caller of the current request is authenticated."""
        if self._request is None:
            return False
        state = self._request.scope["state"]
        return CALLER in state or KNOWN_TO_LEADER in state
