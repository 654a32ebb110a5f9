"""Accepts connections on a listening socket, up to a limit in total and per address. [I/O]

A connection counts from when it is accepted, so that one which never finishes its TLS handshake counts, too.
asyncio's own servers call the protocol, which could count, only after the handshake.
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
    """Counts open connections, in total and by address."""

    def __init__(self, total_max: int, per_address_max: int) -> None:
        # The rest of the descriptors is for agents, the store and
        # files: refusing clients is better than failing there.
        self._total_max = min(total_max, descriptors() // DESCRIPTORS_SHARE)
        self._per_address_max = per_address_max
        self._count = 0
        self._by_address: dict[str, int] = {}

    def why_refused(self, address: str) -> str | None:
        """Why one more connection from this address is refused; None if it is not."""
        if self._count >= self._total_max:
            return f"no more than {self._total_max} connections are accepted"
        if self._by_address.get(address, 0) >= self._per_address_max:
            return f"no more than {self._per_address_max} connections are accepted from one address"
        return None

    def add(self, address: str) -> Callable[[], None]:
        """Count a connection; returns the function that releases it, which may be called more than once."""
        # Idempotent, because both the failed handshake and the lost connection may release it.
        is_counted = True
        self._count += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1

        def release() -> None:
            nonlocal is_counted
            if not is_counted:
                return
            is_counted = False
            self._count -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

        return release


class Listener:
    """One listening socket: accepts, counts, and hands each connection to its protocol after TLS."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: MakeProtocol,
        tls: ssl.SSLContext | None,
        counter: ConnectionCounter,
        refusals: LogThrottle,
    ) -> None:
        self._socket = listening
        self._make_protocol = make_protocol
        self._tls = tls
        self._counter = counter
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
        """Stop accepting, and cancel connections in their TLS handshake; may be called twice."""
        if self._resuming is not None:
            self._resuming.cancel()
        # A closed socket has no descriptor, and removing its reader would raise.
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        for task in self._opening:
            task.cancel()

    def _listen(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Accept waiting connections, at most ACCEPTED_AT_ONCE, so that the event loop is not held up."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory. The socket stays readable, so the loop would spin: pause it.
                self._refusals.add("", f"accept failed: {error.strerror}")
                self._loop.remove_reader(self._socket)
                self._resuming = self._loop.call_later(_NO_DESCRIPTOR_SECONDS, self._listen)
                return
            self._admit(connected, str(peer[0]))

    def _admit(self, connected: socket.socket, address: str) -> None:
        connected.setblocking(False)
        if (why := self._counter.why_refused(address)) is not None:
            self._refusals.add(address, why)
            # Over TLS no response can be sent before the
            # handshake, which is the cost that is to be avoided.
            _refuse(connected, is_plain=self._tls is None)
            return
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Counted before the handshake, so that the next accepted connection sees it.
        release = self._counter.add(address)
        task = self._loop.create_task(self._connect(connected, address, release))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, connected: socket.socket, address: str, release: Callable[[], None]) -> None:
        seconds = None if self._tls is None else self._handshake_seconds
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(release),
                connected,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=None if self._tls is None else _TLS_SHUTDOWN_SECONDS,
            )
        except OSError:  # ssl.SSLError is one, and so is a handshake that took too long
            release()
            connected.close()
            self._refusals.add(address, "the TLS handshake failed")
        # Cancellation included: otherwise the count would never go down and the listener would fill up.
        except BaseException:
            release()
            connected.close()
            raise


def _refuse(connected: socket.socket, *, is_plain: bool) -> None:
    try:
        if is_plain:
            connected.send(_FULL)
    except OSError:
        pass  # the client has disconnected
    finally:
        connected.close()


def descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
