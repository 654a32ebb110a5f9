"""Public names of `rota` for type checkers; at run time `__init__.py` loads them on first use."""

from rota.client import connect as connect
from rota.client import connect_async as connect_async
from rota.client import report as report

__all__ = ["__version__", "connect", "connect_async", "report"]

__version__: str
