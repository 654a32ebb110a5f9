"""The node's certificate and key, renewed before they expire, and within a grace period after. [I/O]

Validity dates are wall-clock time, and a machine may sleep: so the clock is read every few seconds instead of
one timer until the date. The renewal is due after half of the certificate's life and a random part more,
because nodes that joined together would otherwise renew together. When the cluster's authority is rotated, it
is due at a random moment within the time that the server names.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import grpc

from rota.agent.dial import reason_of
from rota.identity.errors import IdentityRefused
from rota.identity.node_identity import NodeIdentity, Renewal, replace_identity, trusting
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

_CHECK_SECONDS = 10.0
_RETRY_SECONDS = 60.0
_CHECKS = 40  # at least, within the life of a certificate
_RENEW_SECONDS = 30.0  # for the server to answer


class Credentials:
    """The node's current identity; each new connection uses the one held at that time."""

    def __init__(self, directory: Path, identity: NodeIdentity, warn: Callable[..., None]) -> None:
        self._directory = directory
        self._warn = warn
        self._woken = asyncio.Event()
        self._storing = asyncio.Lock()  # so that the identity stored last is the one held
        self._hold(identity)

    def _hold(self, identity: NodeIdentity) -> None:
        self.identity = identity
        self.refused = False  # the server says it has expired; this machine's clock may be wrong
        self._period = identity.period
        self._jitter = random.random()
        self._early_at: float | None = None  # when to renew early, because another authority signs now

    @property
    def is_expired(self) -> bool:
        return self.refused or datetime.now(UTC) >= self._period.end

    @property
    def lapsed(self) -> str | None:
        """The remedy to show when the certificate can no longer be renewed, by this machine's clock."""
        until = self.identity.renewable_until
        if datetime.now(UTC) < until:
            return None
        return (
            f"this node's certificate expired on {self._period.end:%Y-%m-%d} and could be renewed until "
            f"{until:%Y-%m-%d}: get a line with `rota node token` and start with --join"
        )

    async def trust(self, ca_pem: bytes, spread_seconds: float) -> None:
        """Trust the authorities that the server names; renew soon if the first one has not signed it."""
        try:
            # Race: a renewal may store another identity at the
            # same time; the last one stored must be the one held.
            async with self._storing:
                known = trusting(self.identity, ca_pem)
                if known != self.identity:
                    # Stored before it is used: after a crash the agent
                    # still trusts the server it was connected to.
                    await asyncio.to_thread(replace_identity, self._directory, known)
                    self.identity = known
        except IdentityRefused as refusal:
            self._warn("authorities not trusted", reason=str(refusal))
        except OSError as error:  # the server sends them again on the next connection
            self._warn("authorities not stored", reason=error.strerror)
        if not self.identity.is_current and self._early_at is None:
            # Spread at random: at a rotation all nodes renew, and the server signs each certificate.
            self._early_at = asyncio.get_running_loop().time() + random.random() * spread_seconds
            self._woken.set()

    def _is_due(self) -> bool:
        is_early = self._early_at is not None and asyncio.get_running_loop().time() >= self._early_at
        return is_early or self._period.is_due(datetime.now(UTC), self._jitter)

    async def _sleep(self, seconds: float) -> None:
        """Sleep until the next check; a rotation of the authority cuts that short."""
        if self._early_at is not None:
            seconds = min(seconds, max(0.0, self._early_at - asyncio.get_running_loop().time()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        # After the wait: a rotation that comes while the certificate is renewed cuts the next sleep short.
        self._woken.clear()

    async def keep_current(self, stub: pb_grpc.AgentStub) -> None:
        """Renew the certificate when that is due; return when it was replaced."""
        check_seconds = self._period.life.total_seconds() / _CHECKS
        while True:
            await self._sleep(min(_CHECK_SECONDS, check_seconds))
            if not self._is_due():
                continue
            try:
                return await self.renew(stub)
            except grpc.aio.AioRpcError as error:
                self._warn("certificate not renewed", reason=reason_of(error))
            except (IdentityRefused, OSError) as reason:
                self._warn("certificate not renewed", reason=str(reason))
            await asyncio.sleep(min(_RETRY_SECONDS, check_seconds))

    async def renew(self, stub: pb_grpc.AgentStub) -> None:
        """Ask for a new certificate once; the connection proves the old key, the request the new one.

        Raises AioRpcError, IdentityRefused or OSError: then the current identity stays. A renewed one that
        cannot be stored is used nevertheless if the current one has expired.
        """
        renewal = Renewal(self.identity)
        request = pb.RenewRequest(csr=renewal.request, follows=True)
        reply = await stub.Renew(request, timeout=_RENEW_SECONDS)
        renewed = renewal.accept(reply.certificate, datetime.now(UTC), reply.ca)
        async with self._storing:
            try:
                await asyncio.to_thread(replace_identity, self._directory, renewed)
            except OSError as error:
                if not self.is_expired:
                    raise
                # A full disk: without the new certificate the node could not even report.
                self._warn("certificate not stored", reason=error.strerror)
            # Under the lock, so that a concurrent `trust` extends this identity and not the previous one.
            self._hold(renewed)
