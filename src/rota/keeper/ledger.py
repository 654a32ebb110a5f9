"""The ledger of attempts: their records in the journal, and the events that tell the agent of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from rota.keeper import journal as lines
from rota.keeper.attempt import ExitStatus, Kernel, RunningAttempt, result_row
from rota.keeper.journal import Journal, JournalState
from rota.keeper.outbox import Outbox
from rota.keeper.output.index import Extent
from rota.keeper.protocol import wire
from rota.keeper.protocol.wire import KeeperJobSpec, RunModeName
from rota.keeper.resources.reservations import AttemptKey


class AttemptLedger:
    """Journals and emits what happens to attempts. Call with `Supervisor.lock` held.

    `record_*` changes the journal and its state, `emit_*` queues an event for the agent.
    """

    def __init__(
        self,
        state: JournalState,
        journal: Journal,
        outbox: Outbox,
        is_idle: Callable[[], bool],
        kernel: Kernel,
    ) -> None:
        self._state = state
        self._journal = journal
        self._outbox = outbox
        self._is_idle = is_idle
        self._kernel = kernel

    def add_spec(self, job: str, spec: KeeperJobSpec | None) -> str | None:
        """Store a job's spec if it is newer; return why the job cannot start, or None."""
        if spec and spec.is_newer_than(self._state.specs.get(job)):
            self._state.specs[job] = spec
            # Ordering: pending lines are written with the first start, or that start is refused.
            self._journal.append_later(lines.spec_line(job, spec))
        known = self._state.specs.get(job)
        return "unknown job" if known is None else None

    def record_starts(self, keys: Sequence[AttemptKey], started_ms: int) -> None:
        """Journal attempts that are about to be started; OSError: they must not be.

        `at_most_once` is synced to disk: after a power failure it must be known that it may have run.
        """
        # Crash point: once this is written, a keeper that dies
        # reports the attempt as lost and never starts it again.
        self._journal.write([lines.start_line(key, started_ms) for key in keys])
        if any(self._state.specs[key[0]].run is RunModeName.AT_MOST_ONCE for key in keys):
            self._journal.sync()

    def record_attempt(self, attempt: RunningAttempt) -> None:
        """Record an attempt that is about to be spawned in the journal's state."""
        spec = attempt.spec
        if spec.steps and not spec.restart:
            self.start_step(attempt, attempt.segment.at)
        self._state.started[attempt.key] = attempt.started_ms
        if spec.version > 1:
            self._state.versions[attempt.key] = spec.version

    def start_step(self, attempt: RunningAttempt, written: Extent) -> None:
        attempt.start_step(self._kernel.now_ms(), self._kernel.now_ns(), written)
        self._record_step(attempt)

    def end_step(self, attempt: RunningAttempt) -> bool:
        """Record the end of a step; return True if another one follows."""
        goes_on = attempt.end_step(self._kernel.now_ms())
        self._record_step(attempt)
        return goes_on

    def record_service(self, attempt: RunningAttempt) -> None:
        """Journal the state of a service; it is sent with the next event of the attempt."""
        assert attempt.service is not None
        row = self._state.services[attempt.key] = attempt.service.row()
        self._journal.append_later(lines.service_line(attempt.key, row))

    def emit_service(self, attempt: RunningAttempt) -> None:
        self.record_service(attempt)
        self.emit_started(attempt)

    def emit_started(self, attempt: RunningAttempt) -> None:
        """Emit that the attempt, or one more step of it, has started."""
        self._emit_details(attempt.key)
        self._outbox.add_started(attempt.key, attempt.started_ms)

    def record_end(self, key: AttemptKey, state: str, outcome: ExitStatus, started_ms: int | None) -> None:
        row = result_row(key, state, outcome, started_ms, self._kernel.now_ms())
        self._state.started.pop(key, None)
        self._state.ended[key] = row
        self._journal.append_later(lines.end_line(row))
        self.emit_end(key, row)

    def emit_refusal(self, key: AttemptKey, reason: str) -> None:
        """Emit the refusal of an attempt that never started; refusals are not journaled."""
        self._outbox.add_refused(key, reason)

    def emit_end(self, key: AttemptKey, row: str) -> None:
        self._emit_details(key)
        self._outbox.add_ended(key, row, is_last=self._is_idle())

    def ack(self, keys: Sequence[AttemptKey]) -> None:
        """Forget results that are durable on the server; the highest attempt numbers stay, for fencing."""
        # Only known ones: an acknowledgement may be repeated after a reconnect.
        known = [key for key in keys if self._state.ended.pop(key, None)]
        for key in known:
            self._drop_details(key)
        if known:
            self._journal.append_later(lines.ack_line(known))
            self._journal.flush()

    def forget(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._state.forget(job)
        if jobs:
            self._journal.append_later(lines.forget_line(jobs))
            self._journal.flush()

    def unrecord(self, key: AttemptKey) -> None:
        """Undo `record_attempt` for an attempt that could not be started."""
        self._state.started.pop(key, None)
        self._drop_details(key)
        self.withdraw_starts([key])

    def withdraw_starts(self, keys: Sequence[AttemptKey]) -> None:
        """Journal that these attempts were not started, whether their starts were written or not."""
        self._journal.append_later(lines.ack_line(keys))

    def state_message(self, node_fields: Mapping[str, object], live: list[list[object]]) -> bytes:
        """The `state` message: fields of the node, all live attempts, all unacknowledged results."""
        state = self._state
        head = {"op": "state", "protocol": wire.PROTOCOL, "pid": os.getpid(), "boot": state.boot}
        steps = [[*key, [mark.row() for mark in marks]] for key, marks in state.steps.items()]
        versions = [[*key, version] for key, version in state.versions.items()]
        lives = [[*key, row] for key, row in state.services.items()]
        known = {str(row[0]) for row in live} | {key[0] for key in state.ended}
        attempts = {
            "jobs": list(state.specs),
            "reports": self._result_endpoints(known),
            "records": self._records(known),
            "live": live,
            "steps": steps,
            "lives": lives,
            "versions": versions,
        }
        text = wire.encode({**head, **node_fields, **attempts})
        return f'{text[:-1]},"ended":[{",".join(state.ended.values())}]}}\n'.encode()

    def _result_endpoints(self, jobs: set[str]) -> dict[str, object]:
        """Where the agent reports the results of these jobs, for an agent that was restarted."""
        specs = {job: self._state.specs[job] for job in sorted(jobs) if job in self._state.specs}
        endpoints = {job: spec.reports for job, spec in specs.items() if spec.reports is not None}
        return {job: asdict(endpoint) for job, endpoint in endpoints.items() if endpoint.by_agent}

    def _records(self, jobs: set[str]) -> dict[str, str]:
        """The sealed specs of these jobs, which a server without records may ask for."""
        specs = self._state.specs
        return {job: specs[job].record for job in sorted(jobs) if job in specs and specs[job].record}

    def _drop_details(self, key: AttemptKey) -> None:
        self._state.steps.pop(key, None)
        self._state.versions.pop(key, None)
        self._state.services.pop(key, None)

    def _record_step(self, attempt: RunningAttempt) -> None:
        self._state.steps[attempt.key] = attempt.step_starts
        self._journal.append_later(
            lines.step_line(attempt.key, len(attempt.step_starts), attempt.step_starts[-1])
        )

    def _emit_details(self, key: AttemptKey) -> None:
        if marks := self._state.steps.get(key):
            self._outbox.add_steps(key, wire.steps_row(key, (mark.row() for mark in marks)))
        if version := self._state.versions.get(key):
            self._outbox.add_version(key, version)
        if row := self._state.services.get(key):
            self._outbox.add_service(key, wire.encode([*key, row]))
