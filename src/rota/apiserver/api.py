"""Api: everything the routes need, handed to them once."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from rota.apiserver.access import Caller
from rota.apiserver.admit_move import WhyNotMoved
from rota.apiserver.logs import Logs
from rota.apiserver.metrics import MetricCounters
from rota.apiserver.rates import UnknownTokenLimits, RateLimits
from rota.apiserver.watch import EventHub
from rota.engine.run import Engine
from rota.engine.shadow import MirrorCopy
from rota.identity.audit import AuditLog
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import IdentityRefused
from rota.identity.expiry import Expiry
from rota.identity.signed_requests import SCHEME, RequestSignature, verify_request
from rota.identity.task_tokens import TaskTokens
from rota.identity.tokens import API_PREFIX, Role
from rota.identity.vault import Vault
from rota.model.errors import Rejected
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.outlook import DisplacedTasks, PlanResult, WhatIf
from rota.model.plan import Instant
from rota.model.sync import OutputsRequest
from rota.model.view import View
from rota.model.why import Explanation

CALLER = "caller"  # in a request's state, once its token has been checked
LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONCURRENT_PLANS_MAX = 2  # each is a copy of the cluster, in a thread of its own
ExplainJob = Callable[[View, JobId, Instant], Explanation]
PlanJob = Callable[[MirrorCopy, JobSpec, WhatIf, Instant], PlanResult]


BeforeToken = Callable[[], Awaitable[None]]  # awaited before a token is valid; raises to refuse it


async def no_precondition() -> None:
    """Nothing has to be done first."""


class PreviewDrain(Protocol):
    def __call__(
        self, taken: MirrorCopy, nodes: tuple[NodeId, ...], now: Instant, *, everything: bool
    ) -> tuple[DisplacedTasks, ...]: ...


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the three doors are, as others reach them: host:port."""

    http: str
    agent: str
    controller: str
    names: tuple[str, ...] = ()  # further host names under which requests are accepted

    @property
    def loopback_only(self) -> bool:
        return host_of(self.http) in LOOPBACK

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset((*LOOPBACK, host_of(self.http), *(name.lower() for name in self.names)))


class OutputSource(Protocol):
    def outputs(self, node: NodeId, wanted: OutputsRequest) -> AsyncGenerator[bytes, None]:
        """Lines or an archive. Raises NotFound, Conflict or Unavailable."""


class Workers(Protocol):
    """The workers that the worker gateway dials."""

    async def is_responsive(self, node: NodeId) -> bool:
        """Whether the worker of a node answers a call now; bounded in time."""


class ServerRole(Protocol):
    """What one that stands by knows of itself and of the one that leads."""

    def leader(self) -> str | None:
        """Its address, as far as is known."""

    def epoch(self) -> int:
        """The last there was, as far as is known."""

    def age_ms(self) -> int | None:
        """So long ago, at most, what is known here was all there is; None: nothing is known yet."""

    async def reach(self, revision: int) -> None:
        """Returns when that commit is known here."""


@dataclass(frozen=True, slots=True)
class Api:
    engine: Engine
    event_hub: EventHub
    logs: Logs
    outputs: OutputSource
    vault: Vault
    authority: CertificateAuthority
    audit: AuditLog
    explain: ExplainJob
    plan_job: PlanJob
    preview_drain: PreviewDrain
    why_not_moved: WhyNotMoved
    addresses: Addresses
    version: str
    backup_files: Callable[[], Mapping[str, bytes]] = dict  # files that a backup holds beside the records
    agent_addresses: Callable[[], list[str]] = list  # of all servers, where there are several
    controller_addresses: Callable[[], list[str]] = list
    standby_role: ServerRole | None = None  # of one that does not lead
    workers: Workers | None = None  # of the worker gateway, whose routes are then served
    expiries: Callable[[], list[Expiry]] = list  # of the certificates that this server uses
    before_token: BeforeToken = no_precondition
    started_at_ms: int = field(default_factory=wall_ms)
    counters: MetricCounters = field(default_factory=MetricCounters)
    rates: RateLimits = field(default_factory=RateLimits)
    guesses: UnknownTokenLimits = field(default_factory=UnknownTokenLimits)
    plan_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_PLANS_MAX))

    def __post_init__(self) -> None:
        self.engine.listen(self.counters.on_commit)

    def now(self) -> Instant:
        return Instant(self.engine.now_ms(), wall_ms())


class Unauthenticated(Rejected):
    """Nobody we know."""

    code = "unauthenticated"


def authenticate_token(vault: Vault, authorization: str) -> Caller:
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated("this needs a token", hint="send it as: authorization: Bearer TOKEN")
    token = vault.authenticate(secret.strip(), wall_ms()) if secret.startswith(API_PREFIX) else None
    if token is None:
        raise Unauthenticated("this token is not known, or no longer valid")
    return Caller(token.name, token.role, token.namespaces, token=token.id, owner=token.owned_by)


def authenticate_task(tokens: TaskTokens, authorization: str) -> Caller | None:
    """None: it is no task of ours that calls."""
    name = tokens.authenticate(authorization.partition(" ")[2].strip())
    if name is None:
        return None
    called = f"attempt {name.attempt} of task {name.task} of job {name.job}"
    return Caller(called, Role.VIEWER, (), name)


def verify_signed_request(authority: CertificateAuthority, authorization: str, method: str, path: str) -> RequestSignature | None:
    """The node that signed a request, known here or not, and what of it; None if it is not signed at all."""
    if authorization.partition(" ")[0].lower() != SCHEME:
        return None
    try:
        return verify_request(authorization, method, path, authority.bundle.roots_pem, datetime.now(UTC))
    except IdentityRefused as error:
        raise Unauthenticated(str(error)) from None


def host_of(address: str) -> str:
    """`[::1]:3000` -> `::1`, `Name:3000` -> `name`."""
    if address.startswith("["):
        return address[1:].partition("]")[0].lower()
    return address.partition(":")[0].lower()
