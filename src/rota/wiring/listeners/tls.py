"""TLS of a server's listeners: a new handshake uses the newest certificate, open connections stay. [I/O]"""

import asyncio
import contextlib
import math
import os
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import grpc
import structlog

from rota.config import ConfigError, GrpcServerConfig, HttpServerConfig
from rota.identity import certificates
from rota.identity.authority import CertificateAuthority, KeyPair
from rota.identity.errors import IdentityRefused
from rota.identity.expiry import Expiry
from rota.identity.listener_certificates import FilePair, ServingPair, SignedPair

log = structlog.get_logger("rota.server")

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2: forward secrecy, and no CBC; 1.3 has its own
_CHECK_SECONDS = 10.0
_CHECK_SECONDS_MIN = 0.05
_WARN_CHECK_SECONDS = 60.0  # over all nodes
_WARN_SECONDS = 24 * 3600.0
_CHECKS = 40  # at least, in the life of a certificate
_SEE_LOG = "it should have been renewed: the server's log says why not"
_NEW_FILE = "replace the files: they are read again without a restart"
_NEW_FILE_RESTART = "replace the files and restart the server"
_NEW_CA = "rotate it: `rota ca rotate`"
_OVERLAP = "`rota ca status` lists what still depends on it"


def pair_of(name: str, listener: HttpServerConfig | GrpcServerConfig, signed: ServingPair) -> ServingPair:
    """The configured certificate files of the listener, or else the server's own certificate."""
    if listener.crt_file is None or listener.key_file is None:
        return signed
    try:
        return FilePair(listener.crt_file, listener.key_file)
    except IdentityRefused as refusal:
        raise ConfigError(f"{name}.crt_file", str(refusal), "name a certificate and its key, PEM") from None


def grpc_credentials(serving: ServingPair, *, checks_clients: bool = False) -> grpc.ServerCredentials:
    """Credentials that follow `serving`. With `checks_clients`, clients must show a trusted certificate."""
    current = serving.pair

    def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
        roots = pair.ca_pem if checks_clients else None
        return grpc.ssl_server_certificate_configuration([(pair.key_pem, pair.cert_pem)], roots)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake, in one of its threads; None: unchanged."""
        nonlocal current
        pair = serving.pair
        if pair is current:
            return None
        current = pair
        return configuration(pair)

    return grpc.dynamic_ssl_server_credentials(
        configuration(current),
        fetch,  # type: ignore[arg-type]  # it may return None, says its documentation
        require_client_authentication=checks_clients,
    )


def web_context(serving: ServingPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(_CIPHERS)
    load_pair(context, serving.pair)
    return context


def load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Serve with this pair from the next handshake on. Call it in the thread that starts handshakes."""
    descriptor = os.memfd_create("tls")  # OpenSSL takes a path; the key is never written to a disk
    with open(descriptor, "wb", buffering=0) as file:
        file.write(pair.key_pem + b"\n" + pair.cert_pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


class ServerTls:
    """The certificates of a server's listeners, and the task that keeps them current."""

    def __init__(self, signed: SignedPair, authority: CertificateAuthority) -> None:
        self.signed = signed
        self.web: ServingPair | None = None  # None: plain text
        self.controllers: ServingPair | None = None
        self.fixed: list[Expiry] = []
        self._authority = authority
        self._rotated = asyncio.Event()
        self._listeners: list[tuple[ServingPair, Callable[[KeyPair], None]]] = []

    def watch_file(self, name: str, crt_file: str) -> None:
        """Warn before this client certificate expires; it is only read when the server starts."""
        # An unreadable file is reported where it is used.
        with contextlib.suppress(OSError, IdentityRefused):
            period = certificates.period_of(Path(crt_file).read_bytes())
            self.fixed.append(Expiry(name, period, _NEW_FILE_RESTART))

    def when_replaced(self, serving: ServingPair, replaced: Callable[[KeyPair], None]) -> None:
        self._listeners.append((serving, replaced))

    def expiries(self) -> list[Expiry]:
        """Every certificate that this server serves with or depends on."""
        found = [Expiry("server", self.signed.period, _SEE_LOG)]
        for name, serving in (("http_server.crt_file", self.web), ("grpc_server.crt_file", self.controllers)):
            if isinstance(serving, FilePair):
                found.append(Expiry(name, serving.period, _NEW_FILE))
        return [*found, Expiry("ca", self._authority.period, _NEW_CA), *self._overlap(), *self.fixed]

    def _overlap(self) -> list[Expiry]:
        """The previous CA, whose trust ends with the overlap of a rotation."""
        if (period := self._authority.overlap) is None:
            return []
        return [Expiry("previous ca", period, _OVERLAP)]

    def expiry_warnings(self) -> Mapping[str, str]:
        """Warnings about certificates that expire soon, by name."""
        now = datetime.now(UTC)
        warnings = ((expiry.name, expiry.warning(now)) for expiry in self.expiries())
        return {name: warning for name, warning in warnings if warning is not None}

    async def keep_current(self, warnings: Callable[[], Mapping[str, str]] | None = None) -> None:
        """Renew certificates when due, and log `warnings`, by default `expiry_warnings`, once a day each."""
        logged_at: dict[str, float] = {}
        checked_at = -math.inf
        loop = asyncio.get_running_loop()
        with self._authority.listening(lambda: loop.call_soon_threadsafe(self._rotated.set)):
            while True:
                await self._wait()
                self._refresh()
                if time.monotonic() - checked_at >= _WARN_CHECK_SECONDS:
                    checked_at = time.monotonic()
                    _warn((warnings or self.expiry_warnings)(), logged_at, checked_at)

    async def _wait(self) -> None:
        """Wait until the next check is due; a rotation of the CA cuts that short."""
        lives = [serving.period.life.total_seconds() for serving in self._all()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(_CHECK_SECONDS_MIN, min(_CHECK_SECONDS, min(lives) / _CHECKS))):
                await self._rotated.wait()
        self._rotated.clear()

    def _refresh(self) -> None:
        now = datetime.now(UTC)
        renewed = [serving for serving in self._all() if _is_replaced(serving, now)]
        for serving, replaced in self._listeners:
            if serving in renewed:
                replaced(serving.pair)

    def _all(self) -> list[ServingPair]:
        others = (self.web, self.controllers)
        return [self.signed, *(pair for pair in others if pair is not None and pair is not self.signed)]


def _warn(warnings: Mapping[str, str], logged_at: dict[str, float], now: float) -> None:
    """Log each warning unless it was logged less than a day ago, by `logged_at`."""
    for name in logged_at.keys() - warnings.keys():
        del logged_at[name]
    for name, warning in warnings.items():
        if now - logged_at.get(name, -math.inf) >= _WARN_SECONDS:
            logged_at[name] = now
            log.warning(warning)


def _is_replaced(serving: ServingPair, now: datetime) -> bool:
    try:
        if not serving.refresh(now):
            return False
    except IdentityRefused as refusal:
        log.warning("certificate not replaced", reason=str(refusal))
        return False
    log.info("server certificate renewed", until=f"{serving.period.end:%Y-%m-%d %H:%M:%S} UTC")
    return True
