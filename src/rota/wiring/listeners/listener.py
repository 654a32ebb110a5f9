"""Accepts the connections of a listening socket, up to a number in all and from one address. [I/O]

A connection is counted from when it is accepted, so that one which never finishes its TLS handshake counts,
too. asyncio's own servers accept first and ask later: they know an address only after the handshake.
"""

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable

from rota.model.limits import ACCEPTED_AT_ONCE, DESCRIPTORS_SHARE
from rota.wiring.listeners.log_throttle import LogThrottle

_NO_DESCRIPTOR_SECONDS = 1.0
_TLS_SHUTDOWN_SECONDS = 2.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)

MakeProtocol = Callable[[Callable[[], None]], asyncio.Protocol]


class ConnectionCounter:
    """How many connections there are, in all and by address."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = min(most, descriptors() // DESCRIPTORS_SHARE)
        self._most_per_address = most_per_address
        self._count = 0
        self._by_address: dict[str, int] = {}

    def why_refused(self, address: str) -> str | None:
        """Why one more connection from this address is refused; None: it is not."""
        if self._count >= self._most:
            return f"no more than {self._most} connections are taken"
        if self._by_address.get(address, 0) >= self._most_per_address:
            return f"no more than {self._most_per_address} connections are taken from one address"
        return None

    def add(self, address: str) -> Callable[[], None]:
        """Count a connection until what this returns is called, once or more often."""
        is_counted = True
        self._count += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1

        def leave() -> None:
            nonlocal is_counted
            if not is_counted:
                return
            is_counted = False
            self._count -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

        return leave


class Listener:
    """One listening socket, and what becomes of each connection before its protocol has it."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: MakeProtocol,
        tls: ssl.SSLContext | None,
        census: ConnectionCounter,
        refusals: LogThrottle,
    ) -> None:
        self._socket = listening
        self._make_protocol = make_protocol
        self._tls = tls
        self._census = census
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._handshake_seconds = 0.0

    def open(self, backlog: int, handshake_seconds: float) -> None:
        self._handshake_seconds = handshake_seconds
        self._socket.setblocking(False)
        self._socket.listen(backlog)
        self._listen()

    def close(self) -> None:
        """Accept no more, and give up connections whose handshake is under way; may be called twice."""
        if self._resuming is not None:
            self._resuming.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        for task in self._opening:
            task.cancel()

    def _listen(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """As many as are waiting, but not so many that other clients wait for it."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory: it would be tried again at once, for ever
                self._refusals.add("", f"accept failed: {error.strerror}")
                self._loop.remove_reader(self._socket)
                self._resuming = self._loop.call_later(_NO_DESCRIPTOR_SECONDS, self._listen)
                return
            self._admit(connected, str(peer[0]))

    def _admit(self, connected: socket.socket, address: str) -> None:
        connected.setblocking(False)
        if (why := self._census.why_refused(address)) is not None:
            self._refusals.add(address, why)
            _refuse(connected, is_plain=self._tls is None)
            return
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        leave = self._census.add(address)  # now, for the next one that is accepted is to see it
        task = self._loop.create_task(self._connect(connected, address, leave))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, connected: socket.socket, address: str, leave: Callable[[], None]) -> None:
        seconds = None if self._tls is None else self._handshake_seconds
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(leave),
                connected,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=None if self._tls is None else _TLS_SHUTDOWN_SECONDS,
            )
        except OSError:  # ssl.SSLError is one, and so is a handshake that took too long
            leave()
            connected.close()
            self._refusals.add(address, "the TLS handshake failed")
        except BaseException:
            leave()
            connected.close()
            raise


def _refuse(connected: socket.socket, *, is_plain: bool) -> None:
    try:
        if is_plain:
            connected.send(_FULL)
    except OSError:
        pass  # it has gone already
    finally:
        connected.close()


def descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
