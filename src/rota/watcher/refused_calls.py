"""Refused calls at the agent port -> the audit log. [I/O]"""

import time
from typing import Any

import grpc

from rota.identity import certificates
from rota.identity.audit import AuditEntry, AuditLog
from rota.wire import forwarding


class RefusedCalls:
    """Writes refused calls to the audit log; without a log, nothing."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._audit = audit

    def record(self, context: Any, action: str, code: grpc.StatusCode, reason: str, who: str = "") -> None:
        """Record a refused call. Repetitions are counted, not written, as refused agents retry forever."""
        origin = forwarding.origin(context, certificates.may_forward)
        self.record_from(origin, action, code, reason, who)

    def record_from(
        self, origin: str, action: str, code: grpc.StatusCode, reason: str, who: str = ""
    ) -> None:
        """As `record`, for a call that a watcher relays, whose origin is an address."""
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
