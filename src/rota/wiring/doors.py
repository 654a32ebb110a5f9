"""Addresses, sockets and TLS of the three doors. [I/O]"""

import asyncio
import contextlib
import logging
import platform
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import uvicorn
from starlette.types import ASGIApp

from rota.config import ConfigError, HttpServer, ServerConfig
from rota.identity.authority import KeyPair
from rota.identity.token_files import write_token
from rota.model.addresses import is_loopback

_GRPC_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a rival
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
]
_KEEP_ALIVE_SECONDS = 75


def grpc_server() -> grpc.aio.Server:
    return grpc.aio.server(options=_GRPC_OPTIONS)


def open_agent_door(server: grpc.aio.Server, config: ServerConfig, keys: KeyPair) -> str:
    """A client certificate is required always, on loopback too. Returns the address with its real port."""
    pair = [(keys.key_pem, keys.cert_pem)]
    credentials = grpc.ssl_server_credentials(pair, keys.ca_pem, require_client_auth=True)
    return _add_port(server, "agent_server.addr", config.agent_server.addr, credentials)


def open_controller_door(server: grpc.aio.Server, config: ServerConfig, keys: KeyPair) -> str:
    """Plain text on loopback only, unless TLS is asked for there too."""
    door = config.grpc_server
    if is_loopback(host_of(door.addr)) and not door.use_tls:
        return _add_port(server, "grpc_server.addr", door.addr, None)
    pair = (keys.key_pem, keys.cert_pem)
    if door.key_file is not None and door.crt_file is not None:
        pair = (Path(door.key_file).read_bytes(), Path(door.crt_file).read_bytes())
    return _add_port(server, "grpc_server.addr", door.addr, grpc.ssl_server_credentials([pair]))


def bind_http(addr: str) -> socket.socket:
    host, port = host_of(addr), int(addr.rpartition(":")[2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio sets no TCP_NODELAY
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _cannot_open("http_server.addr", addr, error.strerror) from None
    return bound


def web_server(app: ASGIApp, directory: Path, door: HttpServer, keys: KeyPair) -> "Web":
    """Plain text on loopback only; else with the files given, or a certificate of the cluster's CA."""
    crt_file, key_file = door.crt_file, door.key_file
    if not speaks_tls(door):
        crt_file = key_file = None
    elif crt_file is None or key_file is None:
        crt_file, key_file = str(directory / "http.crt"), str(directory / "http.key")
        Path(crt_file).write_bytes(keys.cert_pem)
        write_token(Path(key_file), keys.key_pem.decode())
    logging.getLogger("uvicorn.error").addFilter(_is_an_error)
    return Web(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who calls is told by the token alone
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            ssl_certfile=crt_file,
            ssl_keyfile=key_file,
        )
    )


def speaks_tls(door: HttpServer) -> bool:
    return bool(door.use_tls) or not is_loopback(host_of(door.addr))


def _is_an_error(record: logging.LogRecord) -> bool:
    """Requests that are cut short because the server stops are none."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class Web(uvicorn.Server):
    """uvicorn without its own ideas about signals: the process has one place for those."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def hang_up(self) -> None:
        """Its port is free from here on, also when serving was cut short; whoever still reads is cut off."""
        for server in getattr(self, "servers", ()):
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # before they are ended: nobody is to be told of an error of ours
        if answering := list(self.server_state.tasks):
            for task in answering:
                task.cancel()
            await asyncio.wait(answering)

    @property
    def scheme(self) -> str:
        return "http" if self.config.ssl_certfile is None else "https"


def host_of(addr: str) -> str:
    return addr.rpartition(":")[0].strip("[]")


def with_port(addr: str, port: int) -> str:
    return f"{addr.rpartition(':')[0]}:{port}"


def host_names(config: ServerConfig) -> list[str]:
    """What the server's certificate must vouch for."""
    addrs = (config.http_server.addr, config.grpc_server.addr, config.agent_server.addr)
    return sorted({platform.node(), *(host_of(addr) for addr in addrs)} - {"0.0.0.0", "::", ""})


def _add_port(server: grpc.aio.Server, key: str, addr: str, tls: grpc.ServerCredentials | None) -> str:
    try:
        port = server.add_insecure_port(addr) if tls is None else server.add_secure_port(addr, tls)
    except RuntimeError:
        raise _cannot_open(key, addr, "is in use or not an address of this machine") from None
    return with_port(addr, port)


def _cannot_open(key: str, addr: str, problem: str | None) -> ConfigError:
    return ConfigError(key, f"{addr}: {problem}", "choose another port, or 0 for a free one")
