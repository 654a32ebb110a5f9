"""The Python client: uses only the public HTTP API and, except `controller`, only the standard library.

`__init__.pyi` beside this file declares the same names for type checkers.
"""

from importlib import import_module
from typing import Any

# Imported on first use: the command line must not pay for asyncio, nor `--help` for http.client.
_MODULES = {
    "connect": "rota.client.cluster",
    "Cluster": "rota.client.cluster",
    "Job": "rota.client.job",
    "connect_async": "rota.client.aio.connecting",
    "AsyncCluster": "rota.client.aio.cluster",
    "AsyncJob": "rota.client.aio.job",
    "report": "rota.client.results",
    "Result": "rota.client.results",
    "RotaError": "rota.client.errors",
    "Rejected": "rota.client.errors",
    "NotFound": "rota.client.errors",
    "NotAllowed": "rota.client.errors",
    "Conflict": "rota.client.errors",
    "Unavailable": "rota.client.errors",
    "TimedOut": "rota.client.errors",
    "Broken": "rota.client.errors",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
