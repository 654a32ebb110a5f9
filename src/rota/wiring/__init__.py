"""Config -> running processes: the only place that names concrete classes. [I/O]

Each process has a module of its own, so that none waits for what another needs.
"""

from rota.wiring import environment  # before gRPC is imported

__all__ = ["environment"]
