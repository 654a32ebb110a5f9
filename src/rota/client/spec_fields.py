"""What a job may ask for, as keyword arguments."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict


class SpecFields(TypedDict, total=False):
    """What a job may ask for besides its command; sizes as `512m` or bytes, durations as `90s` or seconds."""

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
