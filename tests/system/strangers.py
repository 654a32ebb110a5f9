"""A client without a token: connections that flood, stall or never end, and what they cost a server. [I/O]"""

import contextlib
import selectors
import socket
from collections.abc import Callable, Iterator

MIB = 1 << 20
_CLOSED_SECONDS = 60.0
_SEND_SECONDS = 1.0  # a peer that accepts nothing for this long does not read
_READ_BYTES = 65536


def dial(address: str, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), _SEND_SECONDS, source_address=(source, 0))


@contextlib.contextmanager
def dialled(address: str, count: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """`count` connections, each of which has sent `said`."""
    with contextlib.ExitStack() as opened:
        peers = [opened.enter_context(dial(address)) for _ in range(count)]
        for peer in peers:
            peer.sendall(data)
        yield peers


def pour(peer: socket.socket, first: bytes, endless: Callable[[int], bytes], offered: int) -> None:
    """Send up to `offered` bytes and read nothing, until the server has closed or does not read any more."""
    with contextlib.suppress(OSError):
        peer.sendall(first)
        sent = number = 0
        while sent < offered:
            piece = endless(number)
            peer.sendall(piece)
            sent += len(piece)
            number += 1


def wait_until_closed(peers: list[socket.socket]) -> None:
    """Wait until the server has closed all of these connections."""
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(_CLOSED_SECONDS)
            if not ready:
                raise TimeoutError(f"{len(selector.get_map())} of {len(peers)} connections are still open")
            for key, _ in ready:
                if _is_closed(key.fileobj):  # type: ignore[arg-type]  # a socket
                    selector.unregister(key.fileobj)


def _is_closed(peer: socket.socket) -> bool:
    try:
        return not peer.recv(_READ_BYTES)
    except ConnectionError:
        return True
    except (BlockingIOError, InterruptedError):
        return False
