"""Rota, a cluster workload scheduler. Programs start with `rota.connect()`.

`__init__.pyi` beside this file declares the same names for type checkers.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "connect", "connect_async", "report"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `import rota` must stay cheap for the command line and the keeper.
    if name in __all__:
        return getattr(importlib.import_module("rota.client"), name)
    raise AttributeError(f"module 'rota' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
