"""The admission queue: accepted attempts that wait for resources -> journaled attempts to be started."""

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
    """Attempts between their acceptance and their start. Call with `Supervisor.lock` held."""

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
        """Enqueue an attempt, or return why it is refused. A repeated order changes nothing.

        Fencing: a number that is not above the highest one of the task was withdrawn or acknowledged before.
        """
        # The agent has not seen this end, or it would not repeat the order: send it again.
        if row := self._state.ended.get(key):
            self._ledger.emit_end(key, row)
            return None
        job, index, attempt = key
        highest = self._state.highest.get(job, {}).get(index, -1)
        if attempt <= highest and not self.reservations.is_waiting(key):
            return f"attempt {attempt} is not newer than {highest}"
        refusal = self.reservations.enqueue(
            key, ResourceRequest(self._state.specs[job].needs, task.gpus), firm=task.firm
        )
        if refusal is None:
            # After the enqueue: a refused attempt may be offered again under the same number.
            self._state.raise_highest(key)
        return refusal

    def admit(self) -> list[RunningAttempt] | None:
        """Reserve resources for what can start now, and journal those starts; on disk on return.

        None: the journal cannot be written, and they were refused. The caller asks again, because the queue
        behind them is to be refused, too.
        """
        decisions = list(iter(self.reservations.admit_next, None))
        grants = [decision for decision in decisions if isinstance(decision, Grant)]
        for refusal in (decision for decision in decisions if isinstance(decision, Refusal)):
            self._ledger.emit_refusal(refusal.key, refusal.reason)
        keys = [grant.key for grant in grants]
        started_ms, started_ns = self._kernel.now_ms(), self._kernel.now_ns()
        # Ordering: the journal before the output index, and both before any process is spawned. A crash in
        # between leaves a start without output, which the next keeper reports as lost.
        try:
            self._ledger.record_starts(keys, started_ms)
            segments = self._outputs.allocate(keys)
        except OSError as error:
            for key in keys:
                self.release_and_refuse(key, f"cannot write the journal: {os.strerror(error.errno or 0)}")
            if grants:  # the journal may have taken them before the output index failed
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
