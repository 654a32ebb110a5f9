"""Addresses, sockets and TLS of the three ports of a server: HTTP, gRPC for controllers, agents. [I/O]"""

import asyncio
import contextlib
import logging
import platform
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import grpc
import uvicorn
from starlette.types import ASGIApp

from rota.config import ConfigError, GrpcServerConfig, HttpServerConfig, ServerConfig
from rota.config.etcd import endpoints
from rota.identity import certificates
from rota.identity.authority import CertificateAuthority
from rota.identity.listener_certificates import ServingPair, SignedPair
from rota.model.limits import (
    AGENT_CONNECTIONS_MAX,
    AGENT_DESCRIPTORS_PERCENT,
    AGENT_MESSAGE_BYTES_MAX,
    CALL_BYTES_MAX,
    CALLS_MAX,
    GRPC_IDLE_SECONDS,
    HANDSHAKE_SECONDS,
)
from rota.model.names import is_loopback
from rota.watcher.refused_calls import NO_AUDIT, RefusedCalls
from rota.wire import forwarding
from rota.wiring.listeners import tls
from rota.wiring.listeners.http_protocol import BoundedHttp, ClientTimeouts
from rota.wiring.listeners.listener import ConnectionCounter, Listener, descriptors
from rota.wiring.listeners.log_throttle import LogThrottle
from rota.wiring.listeners.tls import ServerTls

_NAME_SECONDS = 2.0  # for a name server: the server's start waits for it
_KINDS = {  # (request is a stream, response is a stream) -> kind of method
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}


@dataclass(frozen=True)
class GrpcLimits:
    """Limits of one gRPC listener."""

    message_bytes: int
    connections: int
    streams: int
    idle_seconds: float
    handshake_seconds: float = HANDSHAKE_SECONDS

    @property
    def options(self) -> list[tuple[str, int]]:
        return [
            # Otherwise a second server could share the port
            # unnoticed, and each would get part of the connections.
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.max_send_message_length", 64 * 1024 * 1024),
            # Counted by gRPC before the TLS handshake: that is where a flood of connections costs most.
            ("grpc.max_allowed_incoming_connections", self.connections),
            ("grpc.max_concurrent_streams", self.streams),
            ("grpc.server_handshake_timeout_ms", round(self.handshake_seconds * 1000)),
            ("grpc.max_connection_idle_ms", round(self.idle_seconds * 1000)),
        ]


def controller_limits(listener: GrpcServerConfig) -> GrpcLimits:
    return GrpcLimits(CALL_BYTES_MAX, listener.max_connections, CALLS_MAX, listener.idle_seconds)


def agent_limits() -> GrpcLimits:
    """For ports that require a certificate. A standby forwards all its calls over one connection."""
    connections = min(AGENT_CONNECTIONS_MAX, descriptors() * AGENT_DESCRIPTORS_PERCENT // 100)
    return GrpcLimits(AGENT_MESSAGE_BYTES_MAX, connections, 2**31 - 1, GRPC_IDLE_SECONDS)


def grpc_server(bounds: GrpcLimits, *interceptors: grpc.aio.ServerInterceptor) -> grpc.aio.Server:
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_disconnect)
    return grpc.aio.server(interceptors=interceptors, options=bounds.options)


def _is_no_disconnect(record: logging.LogRecord) -> bool:
    """A status that cannot be sent, because the client has just gone, is not worth a stack trace.

    gRPC logs it as an error if it notices the disconnect only when it sends. The session ends in any case,
    and its end is logged by the service.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))


class ForwardedCalls(grpc.aio.ServerInterceptor):
    """Admits servers only to services other than `own` on the agent port: standbys forward calls to them."""

    def __init__(
        self,
        *own: str,
        is_retired: Callable[[bytes], bool] = lambda _: False,
        refused: RefusedCalls = NO_AUDIT,
    ) -> None:
        """`is_retired`: whether the CA of a certificate is no longer trusted; its connection may be older."""
        self._own = tuple(f"/{service}/" for service in own)
        self._is_retired = is_retired
        self._refused = refused

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(self._own):
            return handler
        kind = _KINDS[handler.request_streaming, handler.response_streaming]
        return handler._replace(**{kind: self._for_servers(getattr(handler, kind))})

    def _for_servers(self, behavior: Any) -> Any:
        async def checked(request: Any, context: Any) -> Any:
            shown = forwarding.shown_certificate(context)
            # Checked per call: TLS accepted the certificate when the
            # connection was opened, perhaps before the CA was retired.
            if not certificates.is_server(shown) or self._is_retired(shown):
                code, reason = grpc.StatusCode.PERMISSION_DENIED, "this port is for agents and servers"
                self._refused.record(context, "call as a server", code, reason)
                await context.abort(code, reason)
            return await behavior(request, context)

        return checked


def server_tls(config: ServerConfig, authority: CertificateAuthority, now: datetime) -> ServerTls:
    """Certificates of the listeners: plain text on loopback only, and there only without `use_tls`."""
    served = tls.ServerTls(SignedPair(authority, host_names(config), now), authority)
    if uses_tls(config.http_server):
        served.web = tls.pair_of("http_server", config.http_server, served.signed)
    if uses_tls(config.grpc_server):
        served.controllers = tls.pair_of("grpc_server", config.grpc_server, served.signed)
    if endpoints(config.store) and config.etcd.crt_file is not None:
        served.watch_file("etcd.crt_file", config.etcd.crt_file)
    return served


def open_agent_port(server: grpc.aio.Server, config: ServerConfig, served: ServerTls) -> str:
    """Open the port, which always requires a client certificate; returns the address with its real port."""
    credentials = tls.grpc_credentials(served.signed, checks_clients=True)
    return _add_port(server, "agent_server.addr", config.agent_server.addr, credentials)


def open_controller_port(server: grpc.aio.Server, config: ServerConfig, served: ServerTls) -> str:
    credentials = None if served.controllers is None else tls.grpc_credentials(served.controllers)
    return _add_port(server, "grpc_server.addr", config.grpc_server.addr, credentials)


def open_watcher_port(server: grpc.aio.Server, addr: str, serving: ServingPair) -> None:
    credentials = tls.grpc_credentials(serving, checks_clients=True)
    _add_port(server, "agent_addr", addr, credentials)


def bind_http(addr: str) -> socket.socket:
    host, port = host_of(addr), int(addr.rpartition(":")[2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY for IPPROTO_TCP only.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _cannot_open("http_server.addr", addr, error.strerror) from None
    return bound


def web_server(app: ASGIApp, served: ServerTls, listener: HttpServerConfig | None = None) -> "WebServer":
    logging.getLogger("uvicorn.error").addFilter(_is_an_error)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # callers are identified by their token
    )
    config.load()
    if served.web is not None:
        config.ssl = context = tls.web_context(served.web)
        served.when_replaced(served.web, lambda pair: tls.load_pair(context, pair))
    return WebServer(config, listener or HttpServerConfig())


def uses_tls(listener: HttpServerConfig | GrpcServerConfig) -> bool:
    return bool(listener.use_tls) or not is_loopback(host_of(listener.addr))


def _is_an_error(record: logging.LogRecord) -> bool:
    """Drop uvicorn's errors about requests that were cancelled because the server stops."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class WebServer(uvicorn.Server):
    """uvicorn with our listeners, and without its handling of signals: the process does that in one place."""

    def __init__(self, config: uvicorn.Config, settings: HttpServerConfig) -> None:
        super().__init__(config)
        self._settings = settings
        self._refusals = LogThrottle("HTTP connections refused")
        self._listeners: list[Listener] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Replaces uvicorn's, whose servers accept without bounds and wait a minute for each handshake."""
        self.servers = []
        counter = ConnectionCounter(
            self._settings.max_connections, self._settings.max_connections_per_address
        )
        for listening in sockets or ():
            listener = Listener(listening, self._protocol, self.config.ssl, counter, self._refusals)
            listener.open(self.config.backlog, self._settings.head_seconds)
            self._listeners.append(listener)
        self.started = True

    def _protocol(self, closed: Callable[[], None]) -> BoundedHttp:
        settings = self._settings
        return BoundedHttp(
            timeouts=ClientTimeouts(settings.head_seconds, settings.body_seconds, settings.idle_seconds),
            closed=closed,
            refused=self._refusals.add,
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop_listening()
        await super().shutdown(sockets)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._refusals.close()

    async def close_all(self) -> None:
        """Free the port and close all connections, also when serving was cancelled."""
        self._stop_listening()
        for connection in list(self.server_state.connections):
            # Before the tasks are cancelled: a client must not read the resulting error as a response.
            connection.transport.abort()
        if requests := list(self.server_state.tasks):
            for task in requests:
                task.cancel()
            await asyncio.wait(requests)

    @property
    def scheme(self) -> str:
        return "http" if self.config.ssl is None else "https"


def host_of(addr: str) -> str:
    return addr.rpartition(":")[0].strip("[]")


def with_port(addr: str, port: int) -> str:
    return f"{addr.rpartition(':')[0]}:{port}"


def host_names(config: ServerConfig) -> list[str]:
    """Names and addresses that the server's certificate is valid for, and that the Host header may have."""
    addrs = (config.http_server.addr, config.grpc_server.addr, config.agent_server.addr)
    hosts = {host_of(addr) for addr in addrs}
    own = {platform.node(), *hosts, *config.http_server.names}
    if not all(is_loopback(host) for host in hosts):
        own.add(_qualified_name())
    return sorted(own - {"0.0.0.0", "::", ""})


@cache
def _qualified_name() -> str:
    """The machine's name with its domain; the bare name if the name server does not answer in time."""
    found: list[str] = []
    # In a daemon thread, because the resolver has no timeout of its own.
    lookup = threading.Thread(target=lambda: found.append(socket.getfqdn()), daemon=True)
    lookup.start()
    lookup.join(_NAME_SECONDS)
    return found[0] if found else platform.node()


def _add_port(server: grpc.aio.Server, key: str, addr: str, tls: grpc.ServerCredentials | None) -> str:
    try:
        port = server.add_insecure_port(addr) if tls is None else server.add_secure_port(addr, tls)
    except RuntimeError:
        raise _cannot_open(key, addr, "is in use or not an address of this machine") from None
    return with_port(addr, port)


def _cannot_open(key: str, addr: str, problem: str | None) -> ConfigError:
    return ConfigError(key, f"{addr}: {problem}", "choose another port, or 0 for a free one")
