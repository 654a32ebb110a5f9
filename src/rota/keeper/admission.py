"""What was accepted and waits for room -> attempts that are about to be started, on record."""

import os

from rota.keeper.attempt import Kernel, RunningAttempt
from rota.keeper.journal import JournalState
from rota.keeper.leases import Leases
from rota.keeper.ledger import AttemptLedger
from rota.keeper.output.segments import Segment, SegmentStore
from rota.keeper.protocol import wire
from rota.keeper.resources.reservations import AttemptKey, Grant, Refusal, Reservations, ResourceRequest
from rota.keeper.service.state import ServiceState


class AdmissionQueue:
    """Used under the lock of the work."""

    def __init__(
        self,
        state: JournalState,
        outputs: SegmentStore,
        ledger: AttemptLedger,
        leases: Leases,
        kernel: Kernel,
    ) -> None:
        self.reservations = Reservations()
        self._state = state
        self._outputs = outputs
        self._ledger = ledger
        self._leases = leases
        self._kernel = kernel

    def configure(self, order: wire.ConfigureOrder) -> None:
        for refusal in self.reservations.configure(order.amounts, order.gpus):
            self._ledger.emit_refusal(refusal.key, refusal.reason)

    def accept(self, key: AttemptKey, task: wire.TaskStart) -> str | None:
        """Put it in line, or say why not. An order that came before is no new one."""
        if told := self._state.ended.get(key):
            self._ledger.emit_end(key, told)
            return None
        job, index, attempt = key
        highest = self._state.highest.get(job, {}).get(index, -1)
        if attempt <= highest and not self.reservations.is_waiting(key):
            return f"attempt {attempt} is not newer than {highest}"
        refusal = self.reservations.enqueue(
            key, ResourceRequest(self._state.specs[job].needs, task.gpus), firm=task.firm
        )
        if refusal is None:
            self._state.raise_highest(key)
        return refusal

    def admit(self) -> list[RunningAttempt] | None:
        """Take room for what starts now, and write down what is pending and that these are about to start.

        None: they were refused, because it cannot be written; so must be those behind them in the line.
        """
        turns = list(iter(self.reservations.admit_next, None))
        grants = [turn for turn in turns if isinstance(turn, Grant)]
        for refusal in (turn for turn in turns if isinstance(turn, Refusal)):
            self._ledger.emit_refusal(refusal.key, refusal.reason)
        keys = [grant.key for grant in grants]
        started_ms, started_ns = self._kernel.now_ms(), self._kernel.now_ns()
        try:
            self._ledger.record_starts(keys, started_ms)
            segments = self._outputs.allocate(keys)
        except OSError as error:
            for key in keys:
                self.release_and_refuse(key, f"cannot write the journal: {os.strerror(error.errno or 0)}")
            if grants:  # they may be on record
                self._ledger.withdraw_starts(keys)
            return None if grants else []
        pairs = zip(grants, segments, strict=True)
        return [self._open_attempt(grant, segment, started_ms, started_ns) for grant, segment in pairs]

    def release_and_refuse(self, key: AttemptKey, reason: str) -> None:
        self.reservations.release(key)
        self._ledger.emit_refusal(key, reason)

    def _open_attempt(
        self, grant: Grant, segment: Segment, started_ms: int, started_ns: int
    ) -> RunningAttempt:
        spec = self._state.specs[grant.key[0]]
        attempt = RunningAttempt(grant.key, spec, grant.gpus, started_ms, started_ns, segment)
        self._leases.set_expiry(attempt)
        if spec.restart:
            attempt.service = ServiceState()
        self._ledger.record_attempt(attempt)
        return attempt
