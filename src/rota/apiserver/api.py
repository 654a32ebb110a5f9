"""Api: what the routes and gRPC methods of one server need, built once at its start. [I/O]"""

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

CALLER = "caller"  # in a request's state, once the caller is authenticated
LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONCURRENT_PLANS_MAX = 2  # each copies the cluster and runs in a thread of its own
ExplainJob = Callable[[View, JobId, Instant], Explanation]
PlanJob = Callable[[MirrorCopy, JobSpec, WhatIf, Instant], PlanResult]
BeforeToken = Callable[[], Awaitable[None]]  # awaited before a token is valid; raises to refuse it


async def no_precondition() -> None:
    """A BeforeToken that lets every token be made."""


class PreviewDrain(Protocol):
    """Computes what would become of the tasks on nodes if these were drained."""

    def __call__(
        self, copy: MirrorCopy, nodes: tuple[NodeId, ...], now: Instant, /, *, everything: bool
    ) -> tuple[DisplacedTasks, ...]: ...


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of the three listeners as clients reach them, each host:port."""

    http: str
    agent: str
    controller: str
    names: tuple[str, ...] = ()  # further host names that requests may be for

    @property
    def loopback_only(self) -> bool:
        return host_of(self.http) in LOOPBACK

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset((*LOOPBACK, host_of(self.http), *(name.lower() for name in self.names)))


class OutputSource(Protocol):
    """Reads the output files that tasks left on their nodes."""

    def outputs(self, node: NodeId, request: OutputsRequest) -> AsyncGenerator[bytes, None]:
        """A list as JSON lines, or a tar archive. Raises NotFound, Conflict or Unavailable."""


class Workers(Protocol):
    """The workers that the worker gateway dials."""

    async def is_responsive(self, node: NodeId) -> bool:
        """Whether the worker of a node answers a call now; bounded in time."""


class ServerRole(Protocol):
    """What a standby knows of the leader, and of how far its own mirror lags behind."""

    def leader(self) -> str | None:
        """The leader's address; None if no leader is known."""

    def epoch(self) -> int:
        """The highest epoch that is known here."""

    def age_ms(self) -> int | None:
        """Upper bound of the mirror's age; None before anything was read."""

    async def wait_for_revision(self, revision: int) -> None:
        """Return when the mirror has reached that revision."""


@dataclass(frozen=True, slots=True)
class Api:
    """The parts of one server behind its API; a standby's mirror replays the leader's commits."""

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
    standby_role: ServerRole | None = None  # set on a standby
    workers: Workers | None = None  # set where the worker gateway runs: its routes are then served
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
