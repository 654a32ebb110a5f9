"""Refused calls at the agent port -> the audit log. [I/O]"""

import time
from typing import Any

import grpc

from rota.identity import certificates
from rota.identity.audit import AuditEntry, AuditLog
from rota.wire import forwarding


class RefusedCalls:
    """Without a log nothing is written, as in a simulation."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._audit = audit

    def record(self, context: Any, action: str, code: grpc.StatusCode, reason: str, who: str = "") -> None:
        """Write the first of its kind, and how many more there were: an agent calls again and again."""
        origin = forwarding.origin(context, certificates.may_forward)
        self.note_from(origin, action, code, reason, who)

    def note_from(self, origin: str, action: str, code: grpc.StatusCode, reason: str, who: str = "") -> None:
        """The same, where the call is known by its address alone: a watcher has taken it."""
        if self._audit is None:
            return
        entry = AuditEntry(
            at_ms=time.time_ns() // 1_000_000,
            who=who,
            action=action,
            target=reason,
            outcome=code.name.lower(),
            origin=origin,
        )
        self._audit.write_counted(entry)


NO_AUDIT = RefusedCalls()
