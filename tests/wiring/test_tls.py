"""Certificates of listeners are replaced while they serve: no handshake fails, no connection is dropped."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from starlette.types import Receive, Scope, Send

from rota.config import ConfigError, GrpcServerConfig, HttpServerConfig, ServerConfig
from rota.config.etcd import EtcdConfig
from rota.identity import authority as authority_module
from rota.identity.authority import SERVER_NAME, CertificateAuthority, KeyPair
from rota.identity.errors import IdentityRefused
from rota.identity.listener_certificates import FilePair, SignedPair
from rota.identity.node_identity import NodeIdentity, make_request, store_identity
from rota.wiring.listeners import ports, tls
from rota.wiring.listeners.tls import ServerTls, grpc_credentials

LIFE_SECONDS = 3
LIVES = 3
OFF_LOOPBACK = "10.0.0.5:0"  # as configured; the test binds it to loopback


@pytest.fixture
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority_module, "SERVER_LIFE", timedelta(seconds=LIFE_SECONDS))


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.open(tmp_path / "ca", datetime.now(UTC))


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def web(served: ServerTls) -> AsyncIterator[int]:
    bound = ports.bind_http("127.0.0.1:0")
    bound.listen()
    server = ports.web_server(answer, served)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[bound]))
        renewing = tasks.create_task(served.keep_current())
        try:
            yield bound.getsockname()[1]
        finally:
            renewing.cancel()
            server.should_exit = server.force_exit = True
            await asyncio.wait([serving])
            await server.close_all()
            bound.close()


class Reader:
    """One connection over which requests are made."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int, trusted_pem: bytes) -> "Reader":
        context = ssl.create_default_context(cadata=trusted_pem.decode())
        opened = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        return cls(*opened)

    @property
    def certificate(self) -> bytes:
        shown: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return shown.getpeercert(binary_form=True) or b""

    async def get(self) -> bytes:
        self._writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return (await self._reader.readuntil(b"\r\n\r\n")).split()[1]

    def close(self) -> None:
        self._writer.transport.abort()


async def test_https_works_through_many_renewals_of_its_certificate(
    short_lives: None, authority: CertificateAuthority
) -> None:
    config = ServerConfig(http_server=HttpServerConfig(addr=OFF_LOOPBACK))
    served = ports.server_tls(config, authority, datetime.now(UTC))
    first_end = served.signed.period.end
    shown: set[bytes] = set()
    async with web(served) as port:
        old = await Reader.connect(port, authority.ca_pem)
        while len(shown) < LIVES or datetime.now(UTC) < first_end:
            fresh = await Reader.connect(port, authority.ca_pem)
            assert await fresh.get() == b"204"
            shown.add(fresh.certificate)
            fresh.close()

        assert await old.get() == b"204", "an open connection stays"
        old.close()


async def test_the_agent_listener_works_through_many_renewals_of_its_certificate(
    short_lives: None, authority: CertificateAuthority, tmp_path: Path
) -> None:
    served = ports.server_tls(ServerConfig(), authority, datetime.now(UTC))
    node = joined(authority, tmp_path / "node")
    first_end, signed = served.signed.period.end, {served.signed.pair.cert_pem}
    async with (
        asyncio.TaskGroup() as tasks,
        grpc_server(grpc_credentials(served.signed, checks_clients=True)) as port,
    ):
        renewing = tasks.create_task(served.keep_current())
        async with channel(port, node) as old:
            assert await who(old) == b"rota://node/n1"
            while len(signed) < LIVES or datetime.now(UTC) < first_end:
                async with channel(port, node) as fresh:
                    assert await who(fresh) == b"rota://node/n1"
                signed.add(served.signed.pair.cert_pem)
            assert await who(old) == b"rota://node/n1", "an open connection stays"
        with pytest.raises(grpc.aio.AioRpcError):
            async with channel(
                port, joined(CertificateAuthority.open(tmp_path / "x", datetime.now(UTC)), tmp_path / "y")
            ) as no:
                await who(no)
        renewing.cancel()


async def test_an_operators_certificate_is_read_again_when_its_files_change(
    short_lives: None, authority: CertificateAuthority, tmp_path: Path
) -> None:
    first, second = (authority.server_identity([], datetime.now(UTC)) for _ in range(2))
    crt, key = write(tmp_path, first)
    listener = HttpServerConfig(addr="127.0.0.1:0", use_tls=True, crt_file=str(crt), key_file=str(key))
    served = ports.server_tls(ServerConfig(http_server=listener), authority, datetime.now(UTC))
    async with web(served) as port:
        before = await Reader.connect(port, authority.ca_pem)
        write(tmp_path, second)
        while (after := await Reader.connect(port, authority.ca_pem)).certificate == before.certificate:
            after.close()

        assert await before.get() == await after.get() == b"204"
        assert ssl.DER_cert_to_PEM_cert(after.certificate).encode() == second.cert_pem
        before.close()
        after.close()


def test_mismatched_files_leave_the_old_certificate_in_place(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    first, second = (authority.server_identity([], now) for _ in range(2))
    crt, key = write(tmp_path, first)
    files = FilePair(str(crt), str(key))
    crt.write_bytes(second.cert_pem)

    with pytest.raises(IdentityRefused, match="is not the key of"):
        files.refresh(now)
    assert files.pair.cert_pem == first.cert_pem
    assert not files.refresh(now), "it is refreshed once"
    key.write_bytes(second.key_pem)
    assert files.refresh(now)
    assert files.pair.cert_pem == second.cert_pem


def test_files_that_cannot_be_served_are_refused_at_start(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    crt, key = write(tmp_path, authority.server_identity([], now))
    crt.write_bytes(b"rubbish")
    listener = GrpcServerConfig(addr="127.0.0.1:0", use_tls=True, crt_file=str(crt), key_file=str(key))

    with pytest.raises(ConfigError, match=r"grpc_server\.crt_file.*is not a PEM certificate"):
        ports.server_tls(ServerConfig(grpc_server=listener), authority, now)


def test_a_server_certificate_is_renewed_at_half_its_life_and_after_the_clock_was_ahead(
    tmp_path: Path,
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    signed = SignedPair(CertificateAuthority.open(tmp_path / "ca", now), [], now)
    day = timedelta(days=1)

    assert not signed.refresh(now + 14 * day)
    assert signed.refresh(now + 19 * day), "half of 30 days, and a tenth of jitter"
    assert signed.period.begin == now + 19 * day
    assert signed.refresh(now + 400 * day), "it slept"
    assert signed.refresh(now + 20 * day), "the clock was ahead"
    assert signed.period.end == now + 50 * day
    assert signed.refresh(now - 300 * day), "the clock is behind, before the authority was made"
    assert signed.refresh(now + 20 * day)


def test_a_certificate_that_ends_with_its_ca_is_not_renewed_repeatedly(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    authority = CertificateAuthority.open(tmp_path / "ca", now)
    signed = SignedPair(authority, [], now)
    end = authority.period.end

    assert signed.refresh(end - timedelta(days=1))
    assert signed.period.end == end
    assert not signed.refresh(end - timedelta(hours=1))
    assert not signed.refresh(end + timedelta(hours=1))


def write(directory: Path, pair: KeyPair) -> tuple[Path, Path]:
    crt, key = directory / "own.crt", directory / "own.key"
    crt.write_bytes(pair.cert_pem)
    key.write_bytes(pair.key_pem)
    return crt, key


def joined(authority: CertificateAuthority, directory: Path) -> NodeIdentity:
    cert_pem = authority.sign_node(make_request(directory), "n1", "node-1", datetime.now(UTC))
    return store_identity(directory, cert_pem, authority.ca_pem)


@asynccontextmanager
async def grpc_server(credentials: grpc.ServerCredentials) -> AsyncIterator[int]:
    """Answers every call with the names in the caller's certificate."""

    async def tell(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return b" ".join(context.peer_identities() or ())

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(tell)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"who": handler})])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def channel(port: int, node: NodeIdentity) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(node.ca_pem, node.key_pem, node.cert_pem)
    options = [("grpc.ssl_target_name_override", SERVER_NAME)]
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)


async def who(opened: grpc.aio.Channel) -> bytes:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = opened.unary_unary("/test/who")
    return await call(b"", timeout=30)


def test_an_expiring_certificate_is_logged_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(tls.log, "warning", logged.append, raising=False)
    logged_at: dict[str, float] = {}
    hour = 3600.0

    for now in (0.0, hour, 23 * hour, 24 * hour):
        tls._warn({"ca": "the ca ends"}, logged_at, now)
    tls._warn({}, logged_at, 25 * hour)  # it was replaced
    tls._warn({"ca": "the ca ends"}, logged_at, 26 * hour)

    assert logged == ["the ca ends"] * 3


def test_every_certificate_that_a_server_depends_on_is_listed(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    crt, key = (str(path) for path in write(tmp_path, authority.server_identity([], now)))
    config = ServerConfig(
        store="etcd://127.0.0.1:2379",
        http_server=HttpServerConfig(addr="127.0.0.1:0", use_tls=True, crt_file=crt, key_file=key),
        etcd=EtcdConfig(ca_file=crt, crt_file=crt, key_file=key),
    )
    served = ports.server_tls(config, authority, now)

    names = [expiry.name for expiry in served.expiries()]

    assert names == ["server", "http_server.crt_file", "ca", "etcd.crt_file"]
    assert not served.expiry_warnings()


async def test_https_offers_no_suite_with_cbc_or_without_forward_secrecy(
    authority: CertificateAuthority,
) -> None:
    config = ServerConfig(http_server=HttpServerConfig(addr=OFF_LOOPBACK))
    served = ports.server_tls(config, authority, datetime.now(UTC))
    client = ssl.create_default_context(cadata=authority.ca_pem.decode())
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers("ALL:@SECLEVEL=0")
    offered = [cipher["name"] for cipher in client.get_ciphers() if not cipher["name"].startswith("TLS_")]
    taken = []
    async with web(served) as port:
        for name in offered:
            client.set_ciphers(f"{name}:@SECLEVEL=0")
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=client, server_hostname="localhost"
                )
                taken.append(name)
                writer.transport.abort()

    assert len(offered) > 20
    assert taken
    assert all("ECDHE" in name and ("GCM" in name or "CHACHA20" in name) for name in taken)
