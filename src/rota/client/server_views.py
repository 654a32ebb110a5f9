"""The API's answers about nodes, namespaces, crons, tokens and the server itself, as frozen, typed data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rota.client.views import raw_field


@dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    id: str
    name: str
    state: str
    eligibility: str = "open"
    drain: Mapping[str, Any] | None = None  # `left_ms` until its work moves, None: it may end
    taints: tuple[str, ...] = ()
    cluster: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    granted_labels: Mapping[str, str] = field(default_factory=dict)  # of these, by an operator's word
    ignored_labels: Mapping[str, str] = field(default_factory=dict)  # declared by its agent, not counted
    capacity: Mapping[str, float] = field(default_factory=dict)
    reserved: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] | None = None
    running: int = 0
    queued: int = 0
    agent_version: str | None = None
    heard_ms_ago: float | None = None
    report_interval_ms: float | None = None
    statistics: Mapping[str, Any] | None = None
    reason: str | None = None
    shortage: str | None = None
    certificate_expires_at_ms: int | None = None
    revoked_until_ms: int | None = None  # of a revoked node: when it is forgotten
    etag: str | None = None  # of what operators wish of it
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Brake:
    """Whether the work of nodes that fell silent together is started elsewhere: off, slowed or stopped."""

    level: str = "off"
    silent: int = 0
    of: int = 0
    sentence: str = ""
    released: tuple[str, ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class DrainPlan:
    """What would become of the work on nodes that are drained, job by job."""

    nodes: tuple[str, ...] = ()
    jobs: tuple[Mapping[str, Any], ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Namespace:
    """What the jobs of one group hold, and what they may hold together; their share against the others."""

    name: str
    quota: Mapping[str, float] = field(default_factory=dict)
    weight: int = 1
    defaults: Mapping[str, float] = field(default_factory=dict)  # of a task whose job does not say
    bounds: Mapping[str, Any] = field(default_factory=dict)  # only those that are set
    kept: Mapping[str, int] = field(default_factory=dict)  # unfinished jobs and tasks, bytes of all jobs
    held: Mapping[str, float] = field(default_factory=dict)
    waiting: int = 0
    etag: str | None = None  # of what is set for it
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Cron:
    """A job that is submitted again and again; its `runs` only where it is asked for alone."""

    name: str
    schedule: str
    zone: str = "UTC"
    namespace: str = "default"
    overlap: str = "skip"
    missed: str = "once"
    history: int = 10
    paused: bool = False
    user: str | None = None
    created_at_ms: int | None = None
    last_at_ms: int | None = None
    next_at_ms: int | None = None
    running: tuple[str, ...] = ()
    skipped: int = 0
    reason: str | None = None
    runs: tuple[Mapping[str, Any], ...] = ()
    job: Mapping[str, Any] | None = None
    etag: str | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Token:
    """The right to use the API; its secret only right after it was made."""

    id: str
    name: str
    role: str
    namespaces: tuple[str, ...] = ()
    made_at_ms: int | None = None
    expires_at_ms: int | None = None
    last_used_at_ms: int | None = None
    token: str | None = field(default=None, repr=False)
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class JoinToken:
    """The right of one machine to become a node, for a while."""

    token: str = field(repr=False)
    line: str = field(repr=False)
    id: str = ""
    address: str = ""
    ca: str = ""
    expires_at_ms: int | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class ListedJoinToken:
    """The right of one machine to join, without its secret: open, used, revoked or expired."""

    id: str
    state: str = "open"
    role: str = "node"
    cluster: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    made_at_ms: int = 0
    expires_at_ms: int = 0
    used_by: str | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Authority:
    """Who signs certificates of nodes; anybody may ask, and compares the fingerprint."""

    ca: str
    fingerprint: str
    trusted: tuple[str, ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class CaRotation:
    """The cluster's authorities, and what still depends on the previous one."""

    phase: str
    authorities: tuple[Mapping[str, Any], ...] = ()
    started_at_ms: int | None = None
    overlap_until_ms: int | None = None
    dependents: int = 0
    nodes: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    watchers: tuple[str, ...] = ()
    retired: tuple[Mapping[str, Any], ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Watcher:
    """A process that holds connections of agents for the leader."""

    id: str
    name: str
    joined_at_ms: int | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Enrolled:
    """What a machine that became a node needs to call the server."""

    node_id: str
    name: str
    certificate: str
    ca: str = ""
    authorities: str = ""
    agent_address: str = ""
    agent_addresses: tuple[str, ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Server:
    """The server that answers."""

    version: str
    epoch: int = 0
    revision: int = 0
    store: str = ""
    started_at_ms: int | None = None
    jobs: int = 0
    nodes: int = 0
    adopted_jobs: int = 0  # brought back by nodes after a restart of a server that keeps none on disk
    role: str = "leader"
    leader: str | None = None
    lag_ms: int | None = 0
    store_median_ms: float | None = None
    store_worst_ms: float | None = None
    store_problem: str | None = None
    is_short_of_disk: bool = False
    waits_for_accept: bool = False
    opens_in_ms: int = 0
    restored_from_ms: int | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    parked_count: int = 0
    parked: tuple[Mapping[str, Any], ...] = ()  # what it leaves alone after a fault of its own
    faults: Mapping[str, int] = field(default_factory=dict)
    certificates: tuple[Mapping[str, Any], ...] = ()  # `name`, `made_at_ms` and `expires_at_ms` of each
    certificate_warnings: tuple[str, ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Accepted:
    """Nodes may follow a server: with which epoch, and how long work under leases makes them wait."""

    epoch: int
    open_in_ms: int = 0
    raw: Mapping[str, Any] = raw_field()
