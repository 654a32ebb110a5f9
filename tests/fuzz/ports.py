"""Raw bytes on every port: malformed TLS, HTTP/1, HTTP/2 and keeper orders. [I/O]"""

import contextlib
import json
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil

from rota.keeper.protocol.wire import ORDER_PARSERS
from rota.testing.processes import until
from tests.fuzz.arena import Arena, ClusterBroken, Outcomes
from tests.fuzz.odd import TEXTS, bent, odd

PORTS = ("http", "controllers and gateway", "agents")
_SECONDS = 0.3  # wait for an answer
_SEND_SECONDS = 2.0  # for a peer that does not read
_OPEN_MAX = 24  # connections left open until the next check
_CLOSE_SECONDS = 60.0
_LINE_BYTES = 64 * 1024
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A peer at a keeper's socket counts as its agent: it may end the keeper, or make it refuse everything.
_ORDERS = [name for name in ORDER_PARSERS if name not in ("quit", "configure")]

Payload = Callable[[Random, str], bytes]


def fuzz(arena: Arena, seed: int, connections: int, outcomes: Outcomes) -> None:
    """Open connections one after the other, some for a while; all descriptors must be released."""
    rng = Random(seed)
    targets = _targets(arena)
    ours: set[int] = set()
    before = _unix_sockets(arena)
    with contextlib.ExitStack() as opened:
        for number in range(connections):
            port = rng.choice(list(targets))
            kinds = KEEPER if port == "keeper" else KINDS
            kind = rng.choice(list(kinds))
            peer = rng.choice(targets[port])()
            opened.callback(peer.close)
            ours.add(0 if port == "keeper" else peer.getsockname()[1])
            outcomes.record(f"{port}: {kind}", _deliver(rng, peer, kinds[kind](rng, arena.hostile)))
            if number % _OPEN_MAX == _OPEN_MAX - 1:
                arena.check()
                opened.close()
    arena.check()
    try:
        until(lambda: not _tcp_sockets(arena, ours), "all TCP connections are closed", _CLOSE_SECONDS)
        until(lambda: _unix_sockets(arena) <= before, "all unix connections are closed", _CLOSE_SECONDS)
    except TimeoutError as error:
        raise ClusterBroken(
            f"{error}: {_tcp_sockets(arena, ours)}, {_unix_sockets(arena)} of {before}"
        ) from error


def _tcp_sockets(arena: Arena, ports: set[int]) -> list[str]:
    """Connections from these ports that a process of the cluster still holds."""
    found = [
        connection
        for pid in arena.cluster.processes()
        for connection in psutil.Process(pid).net_connections("tcp")
    ]
    return [
        str(connection) for connection in found if getattr(connection.raddr, "port", None) in ports
    ]  # a listener has no peer


def _unix_sockets(arena: Arena) -> int:
    return sum(len(psutil.Process(pid).net_connections("unix")) for pid in arena.cluster.keepers())


def _targets(arena: Arena) -> dict[str, list[Callable[[], socket.socket]]]:
    cluster = arena.cluster
    addresses = (cluster.http, cluster.grpc, cluster.agent)
    found = {name: [_dialling(address)] for name, address in zip(PORTS, addresses, strict=True)}
    found["keeper"] = [_dialling_keeper(cluster.node_directory(number)) for number in cluster.numbers]
    return found


def _dialling(address: str) -> Callable[[], socket.socket]:
    host, _, port = address.rpartition(":")
    return lambda: socket.create_connection((host, int(port)), timeout=_SEND_SECONDS)


def _dialling_keeper(directory: Path) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        handle = os.open(directory, os.O_PATH)
        try:
            opened = socket.socket(socket.AF_UNIX)
            opened.settimeout(_SEND_SECONDS)
            opened.connect(
                f"/proc/self/fd/{handle}/keeper.sock"
            )  # the full path may exceed the size of a socket address
        finally:
            os.close(handle)
        return opened

    return connect


def _deliver(rng: Random, peer: socket.socket, payload: bytes) -> str:
    """Send the payload at once, in two parts or byte by byte; then close, reset or keep the connection."""
    try:
        for chunk in _chunks(rng, payload):
            peer.sendall(chunk)
        if rng.random() < 0.5:
            peer.shutdown(socket.SHUT_WR)
        peer.settimeout(_SECONDS if rng.random() < 0.5 else 0.01)
        answer = peer.recv(_LINE_BYTES)
        outcome = "answered" if answer else "closed"
    except TimeoutError:
        outcome = "no answer"
    except OSError as error:
        outcome = error.strerror or type(error).__name__
    if rng.random() < 0.3:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST instead of FIN
    if rng.random() < 0.8:
        peer.close()
    return outcome


def _chunks(rng: Random, payload: bytes) -> Iterator[bytes]:
    match rng.randrange(4):
        case 0:
            at = rng.randint(0, len(payload))
            yield payload[:at]
            yield payload[at:]
        case 1:
            for at in range(min(len(payload), 40)):
                yield payload[at : at + 1]
            yield payload[40:]
        case _:
            yield payload


def _noise(rng: Random, token: str) -> bytes:
    del token
    return rng.randbytes(rng.choice((1, 9, 100, 4096, _LINE_BYTES)))


def _client_hello(rng: Random, token: str) -> bytes:
    """A real TLS client hello, truncated or with some bytes changed."""
    del token
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="rota-server").do_handshake()
    hello = bytearray(outgoing.read())
    for _ in range(rng.randrange(4)):
        hello[rng.randrange(len(hello))] = rng.randrange(256)
    return bytes(hello[: rng.choice((1, 5, 6, 50, len(hello) - 1, len(hello)))])


def _frames(rng: Random, token: str) -> bytes:
    """HTTP/2: the preface, and frames with arbitrary lengths, types, flags and streams."""
    del token
    frames = [_PREFACE, b"\0\0\0\4\0\0\0\0\0"] if rng.random() < 0.8 else [_PREFACE[: rng.randrange(24)]]
    for _ in range(rng.randrange(1, 8)):
        body = rng.randbytes(rng.choice((0, 1, 4, 8, 100)))
        length = rng.choice((len(body), len(body), len(body) + 1, 0, 2**14, 2**14 + 1, 2**24 - 1))
        head = length.to_bytes(3, "big") + bytes([rng.choice((*range(10), 255)), rng.randrange(256)])
        frames.append(head + rng.choice((0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1)).to_bytes(4, "big") + body)
    return b"".join(frames)


def _request(rng: Random, token: str) -> bytes:
    """HTTP/1: a request with odd parts, often with a valid token."""
    method = rng.choice(
        ("GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS", "CONNECT", "get", "", "A" * 300)
    )
    text = rng.choice(TEXTS).encode("utf-8", "replace").decode("latin-1")
    path = rng.choice(
        ("/v1/jobs", "/v1/events", "/v1/jobs/1/logs", "*", "//", "/%00", "/%ff%fe", "/..", f"/v1/jobs/{text}")
    )
    version = rng.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "", "\0"))
    headers = [
        f"Host: {rng.choice(('127.0.0.1', 'localhost', 'elsewhere', '', text))}",
        f"Authorization: {rng.choice((f'Bearer {token}', 'Bearer', f'Bearer {text}', 'Basic x'))}",
        *rng.sample(
            (
                f"Content-Length: {rng.choice((0, 1, 10, 2**20, 2**20 + 1, 2**63, 2**64, -1, 'x', '1, 2'))}",
                f"Transfer-Encoding: {rng.choice(('chunked', 'gzip', 'chunked, chunked', text))}",
                "Connection: upgrade\r\nUpgrade: websocket",
                f"Expect: {rng.choice(('100-continue', text))}",
                f"Idempotency-Key: {text}",
                f"Last-Event-ID: {text}",
                f"Range: bytes={rng.choice(('0-', '-1', '9-1', '0-' + '9' * 40))}",
                f"{text}: {text}",
                "X: " + "a" * rng.choice((10, 8192, _LINE_BYTES)),
                "Accept: text/event-stream",
            ),
            rng.randrange(4),
        ),
    ]
    end = rng.choice(("\r\n", "\r\n", "\r\n", "\n"))
    head = end.join((f"{method} {path} {version}", *headers, "", ""))
    body = rng.choice(
        (
            b"",
            b"{",
            b'{"command": ["true"]}',
            b"5\r\nhello\r\n0\r\n\r\n",
            b"ffffffffffffffffff\r\n",
            b"\xff" * 300,
        )
    )
    return head.encode("latin-1", "replace") + body


def _pipelined(rng: Random, token: str) -> bytes:
    good = f"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    return good * rng.choice((2, 30)) + _request(rng, token)


def _long_line(rng: Random, token: str) -> bytes:
    del token
    return rng.choice((b"GET /", b"", b"GET / HTTP/1.1\r\nX: ")) + b"a" * _LINE_BYTES


def _order(rng: Random, token: str) -> bytes:
    """A line for a keeper: an order with odd fields, or other JSON."""
    del token
    plausible = {
        "op": rng.choice(_ORDERS),
        "protocol": 1,
        "job": "fuzz",
        "jobs": ["fuzz"],
        "attempts": [["fuzz", 0, 1]],
    }
    spec = {
        "name": "",
        "argv": ["true"],
        "needs": {"cpu": 1},
        "count": 1,
        "grace_ms": 0,
        "run": "at_least_once",
        "limits": {},
        "version": 1,
        "stop_signal": 15,
    }
    order = bent(rng, plausible | {"spec": spec, "tasks": [[0, 1, True]], "signals": [], "said_ns": 0})
    line = json.dumps(order if rng.random() < 0.8 else odd(rng)).encode()
    return line + rng.choice((b"\n", b"\n", b"\n" * 50, b"", b"\0\n"))


def _deep(rng: Random, token: str) -> bytes:
    del token
    return b"[" * rng.choice((100, 2000, _LINE_BYTES)) + b"\n"


KINDS: dict[str, Payload] = {
    "noise": _noise,
    "TLS hello": _client_hello,
    "HTTP/2 frames": _frames,
    "HTTP/1 request": _request,
    "pipelined": _pipelined,
    "long line": _long_line,
}
KEEPER: dict[str, Payload] = {"noise": _noise, "order": _order, "deep JSON": _deep, "long line": _long_line}
