"""Answers of the API about nodes, namespaces, crons, tokens and servers, as frozen, typed data."""

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
    drain: Mapping[str, Any] | None = None  # `left_ms` until its tasks move; None: they may end
    taints: tuple[str, ...] = ()
    cluster: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    # Those of `labels` that an operator granted.
    granted_labels: Mapping[str, str] = field(default_factory=dict)
    ignored_labels: Mapping[str, str] = field(default_factory=dict)  # declared by the agent, but overridden
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
    revoked_until_ms: int | None = None  # when a revoked node is deleted
    etag: str | None = None  # version of the desired state
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Brake:
    """Whether tasks of nodes that fell silent together are restarted elsewhere: off, slowed or stopped."""

    level: str = "off"
    silent: int = 0
    of: int = 0
    sentence: str = ""
    released: tuple[str, ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class DrainPlan:
    """What a drain would do with the tasks of nodes, job by job."""

    nodes: tuple[str, ...] = ()
    jobs: tuple[Mapping[str, Any], ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Namespace:
    """A group of jobs: its quota, weight, defaults and bounds, and the resources its jobs hold."""

    name: str
    quota: Mapping[str, float] = field(default_factory=dict)
    weight: int = 1
    defaults: Mapping[str, float] = field(default_factory=dict)  # requests of a task whose job gives none
    bounds: Mapping[str, Any] = field(default_factory=dict)  # only those that are set
    kept: Mapping[str, int] = field(default_factory=dict)  # unfinished jobs and tasks, bytes of all jobs
    held: Mapping[str, float] = field(default_factory=dict)
    waiting: int = 0
    etag: str | None = None  # version of the settings
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Cron:
    """A job that is submitted on a schedule; only `get` returns its `runs`."""

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
    """An API token; only the answer to `create` has its secret."""

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
    """A join token with its secret, and the command line to run on the new machine."""

    token: str = field(repr=False)
    line: str = field(repr=False)
    id: str = ""
    address: str = ""
    ca: str = ""
    expires_at_ms: int | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class ListedJoinToken:
    """A join token without its secret; its state is open, used, revoked or expired."""

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
    """The certificate authority of the cluster; readable without a token, verified by its fingerprint."""

    ca: str
    fingerprint: str
    trusted: tuple[str, ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class CaRotation:
    """The trusted authorities, and the nodes and watchers that still depend on the previous one."""

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
    """Certificate and addresses for a machine that has joined."""

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
    """Status of the server that answers."""

    version: str
    epoch: int = 0
    revision: int = 0
    store: str = ""
    started_at_ms: int | None = None
    jobs: int = 0
    nodes: int = 0
    adopted_jobs: int = 0  # offered by nodes after the restart of a server with a memory store
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
    parked: tuple[Mapping[str, Any], ...] = ()  # keys excluded from decisions after an internal error
    faults: Mapping[str, int] = field(default_factory=dict)
    certificates: tuple[Mapping[str, Any], ...] = ()  # `name`, `made_at_ms` and `expires_at_ms` of each
    certificate_warnings: tuple[str, ...] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Accepted:
    """The epoch with which the server accepts nodes, and how long leases delay this."""

    epoch: int
    open_in_ms: int = 0
    raw: Mapping[str, Any] = raw_field()
