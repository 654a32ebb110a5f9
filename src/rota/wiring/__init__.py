"""Config -> running processes: the only place that names concrete classes. [I/O]"""

from rota.wiring import environment  # isort: split  (before gRPC is imported)
from rota.wiring.agent import run_agent
from rota.wiring.dev import run_dev
from rota.wiring.server import run_server

__all__ = ["environment", "run_agent", "run_dev", "run_server"]
