"""Config -> running processes: the only place that names concrete classes. [I/O]"""

import rota.wiring.environment  # isort: split

from rota.wiring.agent import run_agent
from rota.wiring.dev import run_dev
from rota.wiring.server import run_server

__all__ = ["run_agent", "run_dev", "run_server"]
