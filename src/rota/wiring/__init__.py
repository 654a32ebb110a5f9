"""Config -> running processes: the only place that names concrete classes. [I/O]

Each process has a module of its own, so that its start-up imports only what it needs.
"""

from rota.wiring import environment  # before gRPC is imported

__all__ = ["environment"]
