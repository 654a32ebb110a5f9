"""Api: everything the routes need, handed to them once."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rota.apiserver.admission.move import WhyNotMoved
from rota.apiserver.metrics import MetricCounters
from rota.apiserver.rate_limits import RateLimits, UnknownTokenLimits
from rota.apiserver.streams.event_hub import EventHub
from rota.apiserver.streams.logs import Logs
from rota.engine.run import Engine
from rota.engine.state.what_if import MirrorCopy
from rota.identity.audit import AuditLog
from rota.identity.authority import CertificateAuthority
from rota.identity.expiry import Expiry
from rota.identity.vault import Vault
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.messages import OutputsRequest
from rota.model.outlook import DisplacedTasks, Explanation, PlanResult, WhatIf
from rota.model.plan import Instant
from rota.model.view import View

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

    async def wait_for_revision(self, revision: int) -> None:
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
        self.engine.on_commit(self.counters.on_commit)

    def now(self) -> Instant:
        return Instant(self.engine.now_ms(), wall_ms())


def host_of(address: str) -> str:
    """`[::1]:3000` -> `::1`, `Name:3000` -> `name`."""
    if address.startswith("["):
        return address[1:].partition("]")[0].lower()
    return address.partition(":")[0].lower()
