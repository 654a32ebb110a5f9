"""Renewal of an agent's certificate, also with wrong clocks."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.agent import dial
from rota.agent.credentials import Credentials
from rota.identity import authority as authority_module
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import IdentityRefused
from rota.identity.node_identity import load_identity
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc
from tests.agent.test_calling import FakeService, _identity, called

YEAR = timedelta(days=365)


class Signing(FakeService):
    """A server that renews certificates by a given clock, and fails a given number of times."""

    def __init__(
        self, authority: CertificateAuthority, *, ahead: timedelta = timedelta(0), refusals: int = 0
    ) -> None:
        super().__init__()
        self.renewed = 0
        self.refuses_connections = False
        self._authority = authority
        self._ahead = ahead
        self._refusals = refusals

    async def Connect(self, messages: AsyncIterator[pb.FromNode], context: Any) -> None:  # noqa: N802 - gRPC chooses this name
        if self.refuses_connections and not self.renewed:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate expired: renew it first")
        await super().Connect(messages, context)

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:  # noqa: N802 - gRPC chooses this name
        if self._refusals:
            self._refusals -= 1
            await context.abort(grpc.StatusCode.ABORTED, "not now")
        self.renewed += 1
        certificate = self._authority.sign_node(request.csr, "n1", "a", datetime.now(UTC) + self._ahead)
        return pb.RenewReply(certificate=certificate, ca=b"of somebody else")


class Rotating(Signing):
    """A server that names all of its authorities."""

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:  # noqa: N802 - gRPC chooses this name
        reply = await super().Renew(request, context)
        return pb.RenewReply(certificate=reply.certificate, ca=self._authority.bundle.pem)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.open(tmp_path / "ca", datetime.now(UTC) - YEAR)


@asynccontextmanager
async def credentials(
    tmp_path: Path, service: Signing, warned: list[str]
) -> AsyncIterator[tuple[Credentials, pb_grpc.AgentStub]]:
    async with called(tmp_path, service) as (agent, _):
        held = agent._credentials
        held._warn = lambda event, **told: warned.append(f"{event}: {told['reason']}")
        async with asyncio.timeout(60), dial.channel(agent._servers.current, held.identity) as channel:
            yield held, pb_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated


async def test_a_failed_renewal_is_retried_on_the_same_connection(
    tmp_path: Path, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority_module, "NODE_LIFE", timedelta(seconds=2))
    warned: list[str] = []
    service = Signing(authority, refusals=2)
    async with credentials(tmp_path, service, warned) as (held, stub):
        before = held.identity
        await held.keep_current(stub)

    assert warned == ["certificate not renewed: not now"] * 2
    assert held.identity.period.end > before.period.end
    assert held.identity.key_pem != before.key_pem
    assert held.identity.ca_pem == before.ca_pem, "the node goes on trusting the authority it joined"
    assert load_identity(tmp_path / "node") == held.identity


async def test_a_node_told_of_another_authority_renews_early(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    warned: list[str] = []
    async with credentials(tmp_path, Rotating(authority), warned) as (held, stub):
        before = held.identity
        authority.rotate(datetime.now(UTC), YEAR)
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(held.keep_current(stub))
            await held.trust(b"of somebody else", 0.0)
            await held.trust(authority.bundle.pem, 0.1)
            learned = held.identity
            await renewing

    assert [line.partition(":")[0] for line in warned] == ["authorities not trusted"]
    assert learned.cert_pem == before.cert_pem
    assert held.identity.is_current
    assert len(held.identity.bundle.roots) == 2
    assert load_identity(tmp_path / "node") == held.identity


@pytest.mark.parametrize("ahead", [YEAR, -YEAR / 2])
async def test_a_certificate_of_a_wrong_clock_is_not_accepted(
    tmp_path: Path, authority: CertificateAuthority, ahead: timedelta
) -> None:
    async with credentials(tmp_path, Signing(authority, ahead=ahead), []) as (held, stub):
        before = held.identity
        with pytest.raises(IdentityRefused, match="clock"):
            await held.renew(stub)

    assert load_identity(tmp_path / "node") == held.identity == before


async def test_a_certificate_that_cannot_be_stored_is_used_if_the_old_one_expired(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    warned: list[str] = []
    async with credentials(tmp_path, Signing(authority), warned) as (held, stub):
        before = held.identity
        shutil.rmtree(tmp_path / "node")
        with pytest.raises(OSError, match="No such file"):
            await held.renew(stub)
        kept = held.identity
        held.refused = True
        await held.renew(stub)

    assert kept == before
    assert held.identity.key_pem != before.key_pem
    assert warned == ["certificate not stored: No such file or directory"]


async def test_an_agent_with_a_late_clock_renews_when_the_server_refuses_it(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    service = Signing(authority)
    service.refuses_connections = True
    async with called(tmp_path, service) as (agent, _), asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(agent.run())
        await service.hellos.get()
        running.cancel()

    assert service.renewed == 1


async def test_a_lapsed_certificate_reports_the_remedy(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    now = datetime.now(UTC)
    good = Credentials(tmp_path / "node", _identity(authority, tmp_path / "node", now), print)
    expired = Credentials(tmp_path / "b", _identity(authority, tmp_path / "b", now - YEAR / 12), print)
    lapsed = Credentials(tmp_path / "c", _identity(authority, tmp_path / "c", now - YEAR / 2), print)

    assert [one.is_expired for one in (good, expired, lapsed)] == [False, True, True]
    assert (good.lapsed, expired.lapsed) == (None, None)
    assert "could be renewed until" in (lapsed.lapsed or "")
    assert "rota node token" in (lapsed.lapsed or "")
