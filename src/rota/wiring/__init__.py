"""Config -> running processes: the only place that names concrete classes. [I/O]

Only what a process needs is imported: begin with `server`, `agent` or `dev`.
"""

from rota.wiring import environment  # before gRPC is imported

__all__ = ["environment"]
