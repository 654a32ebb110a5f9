"""Public names of `rota.client` for type checkers; at run time `__init__.py` loads them on first use."""

from rota.client.aio.cluster import AsyncCluster
from rota.client.aio.connecting import connect_async
from rota.client.aio.job import AsyncJob
from rota.client.cluster import Cluster, connect
from rota.client.errors import (
    Broken,
    Conflict,
    NotAllowed,
    NotFound,
    Rejected,
    RotaError,
    TimedOut,
    Unavailable,
)
from rota.client.job import Job
from rota.client.results import Result, report

__all__ = [
    "AsyncCluster",
    "AsyncJob",
    "Broken",
    "Cluster",
    "Conflict",
    "Job",
    "NotAllowed",
    "NotFound",
    "Rejected",
    "Result",
    "RotaError",
    "TimedOut",
    "Unavailable",
    "connect",
    "connect_async",
    "report",
]
