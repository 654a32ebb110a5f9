"""Rota, a cluster workload scheduler: `rota.connect()` is where a program starts."""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import rota` stays cheap for the command line and the keeper.
    if name in ("connect", "connect_async", "report"):
        return getattr(importlib.import_module("rota.client"), name)
    raise AttributeError(f"module 'rota' has no attribute {name!r}")
