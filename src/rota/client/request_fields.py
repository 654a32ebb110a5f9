"""Keyword arguments of the client, as typed dictionaries.

Sizes are given as `512m` or in bytes, durations as `90s` or in seconds.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict


class SpecFields(TypedDict, total=False):
    """Fields of a job spec besides its command."""

    name: str
    namespace: str
    steps: list[Mapping[str, Any]]
    files: Mapping[str, str | bytes]
    env: Mapping[str, str]
    workdir: str | None
    count: int
    parallel: int | None
    cpu: float | str
    memory: str | int
    disk: str | int
    gpu: float
    resources: Mapping[str, float]
    where: str | list[str]
    region: str
    cluster: str
    on: str
    gpu_model: str
    prefer: str | list[str]
    near: str | list[str]
    apart: str | list[str]
    spread: str | list[str]
    tolerate: str | list[str]
    kind: str
    after: str | list[str | Mapping[str, str]]
    gang: bool
    policy: str
    noise: str
    move_pending: bool
    preemptible: bool
    evict_at_most: int | None
    expect: str | float | None
    deadline: str | float | datetime | None
    log_bytes: str | int | None
    results: bool | Literal["agent"]
    keep: str | float | None
    priority: int
    retries: int
    retry: Mapping[str, Any]
    retry_on: str | int | list[str | int]
    fail_on: int | list[int]
    timeout: str | float | None
    queue_timeout: str | float | None
    grace: str | float
    run: str
    lease: str | float
    lease_margin: str | float
    when_unschedulable: str
    recovery: str
    controller: str
    when_no_controller: str
    controller_wait: str | float
    labels: Mapping[str, str]
    image: str
    container: Mapping[str, Any]
    limits: Mapping[str, str | float]
    stop_signal: str
    restart: Mapping[str, Any]
    check: Mapping[str, Any]
    rollout: Mapping[str, Any]


class JoinTokenFields(TypedDict, total=False):
    """Options of a join token; None is the server's default."""

    labels: Mapping[str, str] | None
    cluster: str | None
    valid_seconds: str | float | None
    local: bool | None
    role: Literal["node", "watcher"] | None
    addresses: Sequence[str] | None


class ClusterSizeFields(TypedDict, total=False):
    """Settings of a cluster that can change: its size, and how clusters are made like it."""

    min_nodes: int | str
    max_nodes: int | str
    nodes: int | str | None  # a number, or "auto": as many as the waiting tasks need
    idle: str | float
    join: str | float
    pause: str | float
    min_clusters: int | str
    max_clusters: int | str
    wait: str | float
    fail_after: str | float | None  # a duration or "never"; only where nodes join by hand
    drain: bool


class ClusterFields(ClusterSizeFields, total=False):
    """All settings of a cluster besides its name."""

    type: str | None
    region: str | None
    labels: Mapping[str, str]
    provider: str
    settings: Mapping[str, str]
    capacity: Mapping[str, str | float]


class CronFields(TypedDict, total=False):
    """Settings of a cron besides its schedule and its job."""

    zone: str
    overlap: Literal["allow", "skip", "replace"]
    missed: Literal["skip", "once", "all"]
    history: int | str
    namespace: str
