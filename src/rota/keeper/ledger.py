"""What is on record of each attempt, and told to the agent: its steps, its result, everything at a hello."""

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
    """Used under the lock of the work."""

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
        """Remember a job's spec, the newest there is; why nothing of it can start, if so."""
        if spec and spec.is_newer_than(self._state.specs.get(job)):
            self._state.specs[job] = spec
            self._journal.append_later(
                lines.spec_line(job, spec)
            )  # on disk before the first start, or that fails
        known = self._state.specs.get(job)
        return "unknown job" if known is None else None

    def record_starts(self, keys: Sequence[AttemptKey], started_ms: int) -> None:
        """They are about to start; OSError if that cannot be written down."""
        self._journal.write([lines.start_line(key, started_ms) for key in keys])
        if any(self._state.specs[key[0]].run is RunModeName.AT_MOST_ONCE for key in keys):
            self._journal.sync()

    def record_attempt(self, attempt: RunningAttempt) -> None:
        """It is about to be spawned."""
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
        """True if another is to follow."""
        goes_on = attempt.end_step(self._kernel.now_ms())
        self._record_step(attempt)
        return goes_on

    def record_service(self, attempt: RunningAttempt) -> None:
        """How a service lives; told with the next word of it."""
        assert attempt.service is not None
        row = self._state.services[attempt.key] = attempt.service.row()
        self._journal.append_later(lines.service_line(attempt.key, row))

    def emit_service(self, attempt: RunningAttempt) -> None:
        self.record_service(attempt)
        self.emit_started(attempt)

    def emit_started(self, attempt: RunningAttempt) -> None:
        """The attempt, or one more step of it."""
        self._emit_details(attempt.key)
        self._outbox.add_started(attempt.key, attempt.started_ms)

    def record_end(self, key: AttemptKey, state: str, outcome: ExitStatus, started_ms: int | None) -> None:
        told = result_row(key, state, outcome, started_ms, self._kernel.now_ms())
        self._state.started.pop(key, None)
        self._state.ended[key] = told
        self._journal.append_later(lines.end_line(told))
        self.emit_end(key, told)

    def emit_refusal(self, key: AttemptKey, reason: str) -> None:
        """It never began: there is no record of it."""
        self._outbox.add_refused(key, reason)

    def emit_end(self, key: AttemptKey, row: str) -> None:
        self._emit_details(key)
        self._outbox.add_ended(key, row, is_last=self._is_idle())

    def ack(self, keys: Sequence[AttemptKey]) -> None:
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
        """It is on record as started, and was not."""
        self._state.started.pop(key, None)
        self._drop_details(key)
        self.withdraw_starts([key])

    def withdraw_starts(self, keys: Sequence[AttemptKey]) -> None:
        """That they are about to start may be on record already."""
        self._journal.append_later(lines.ack_line(keys))

    def state_message(self, node_fields: Mapping[str, object], live: list[list[object]]) -> bytes:
        """What is to be said of this node, and everything that lives or waits to be acknowledged."""
        memory = self._state
        head = {"op": "state", "protocol": wire.PROTOCOL, "pid": os.getpid(), "boot": memory.boot}
        steps = [[*key, [mark.row() for mark in marks]] for key, marks in memory.steps.items()]
        versions = [[*key, version] for key, version in memory.versions.items()]
        lives = [[*key, row] for key, row in memory.services.items()]
        jobs = list(memory.specs)
        known = {str(row[0]) for row in live} | {key[0] for key in memory.ended}
        told = {
            "jobs": jobs,
            "reports": self._result_endpoints(known),
            "records": self._records(known),
            "live": live,
            "steps": steps,
            "lives": lives,
            "versions": versions,
        }
        text = wire.encode({**head, **node_fields, **told})
        return f'{text[:-1]},"ended":[{",".join(memory.ended.values())}]}}\n'.encode()

    def _result_endpoints(self, jobs: set[str]) -> dict[str, object]:
        """Where the agent reports the results of these jobs: it may have been restarted, and not know."""
        specs = {job: self._state.specs[job] for job in sorted(jobs) if job in self._state.specs}
        doors = {job: spec.reports for job, spec in specs.items() if spec.reports is not None}
        return {job: asdict(door) for job, door in doors.items() if door.by_agent}

    def _records(self, jobs: set[str]) -> dict[str, str]:
        """What the control plane may ask for again of these jobs."""
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
