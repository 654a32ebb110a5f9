"""What is on record of each attempt, and told to the agent: its steps, its result, everything at a hello."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from rota.keeper import journal as lines
from rota.keeper import wire
from rota.keeper.attempt import Kernel, Outcome, Running, row
from rota.keeper.journal import Journal, Memory
from rota.keeper.outbox import Outbox
from rota.keeper.output.index import Extent
from rota.keeper.rules import Key
from rota.keeper.wire import Run, Spec


class Book:
    """Used under the lock of the work."""

    def __init__(
        self, memory: Memory, journal: Journal, outbox: Outbox, is_idle: Callable[[], bool], kernel: Kernel
    ) -> None:
        self._memory = memory
        self._journal = journal
        self._outbox = outbox
        self._is_idle = is_idle
        self._kernel = kernel

    def learn(self, job: str, spec: Spec | None) -> str | None:
        """Remember a job's spec, the newest there is; why nothing of it can start, if so."""
        if spec and spec.is_newer_than(self._memory.specs.get(job)):
            self._memory.specs[job] = spec
            self._journal.later(lines.spec_line(job, spec))  # on disk before the first start, or that fails
        known = self._memory.specs.get(job)
        return "unknown job" if known is None else None

    def begin(self, keys: Sequence[Key], started_ms: int) -> None:
        """They are about to start; OSError if that cannot be written down."""
        self._journal.write([lines.start_line(key, started_ms) for key in keys])
        if any(self._memory.specs[key[0]].run is Run.AT_MOST_ONCE for key in keys):
            self._journal.sync()

    def open(self, attempt: Running) -> None:
        """It is about to be spawned."""
        spec = attempt.spec
        if spec.steps and not spec.restart:
            self.begin_step(attempt, attempt.segment.at)
        self._memory.started[attempt.key] = attempt.started_ms
        if spec.version > 1:
            self._memory.versions[attempt.key] = spec.version

    def begin_step(self, attempt: Running, written: Extent) -> None:
        attempt.begin_step(self._kernel.now_ms(), self._kernel.now_ns(), written)
        self._mark(attempt)

    def end_step(self, attempt: Running) -> bool:
        """True if another is to follow."""
        goes_on = attempt.end_step(self._kernel.now_ms())
        self._mark(attempt)
        return goes_on

    def note_life(self, attempt: Running) -> None:
        """How a service lives; told with the next word of it."""
        assert attempt.life is not None
        row = self._memory.lives[attempt.key] = attempt.life.row()
        self._journal.later(lines.life_line(attempt.key, row))

    def tell_life(self, attempt: Running) -> None:
        self.note_life(attempt)
        self.started(attempt)

    def started(self, attempt: Running) -> None:
        """The attempt, or one more step of it."""
        self._tell_more(attempt.key)
        self._outbox.started(attempt.key, attempt.started_ms)

    def close(self, key: Key, state: str, outcome: Outcome, started_ms: int | None) -> None:
        told = row(key, state, outcome, started_ms, self._kernel.now_ms())
        self._memory.started.pop(key, None)
        self._memory.ended[key] = told
        self._journal.later(lines.end_line(told))
        self.tell(key, told)

    def refuse(self, key: Key, reason: str) -> None:
        """It never began: there is no record of it."""
        self._outbox.refused(key, reason)

    def tell(self, key: Key, told: str) -> None:
        self._tell_more(key)
        self._outbox.ended(key, told, is_last=self._is_idle())

    def ack(self, keys: Sequence[Key]) -> None:
        known = [key for key in keys if self._memory.ended.pop(key, None)]
        for key in known:
            self._drop(key)
        if known:
            self._journal.later(lines.ack_line(known))
            self._journal.flush()

    def forget(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._memory.forget(job)
        if jobs:
            self._journal.later(lines.forget_line(jobs))
            self._journal.flush()

    def strike(self, key: Key) -> None:
        """It is on record as started, and was not."""
        self._memory.started.pop(key, None)
        self._drop(key)
        self.take_back([key])

    def take_back(self, keys: Sequence[Key]) -> None:
        """That they are about to start may be on record already."""
        self._journal.later(lines.ack_line(keys))

    def state(self, here: Mapping[str, object], live: list[list[object]]) -> bytes:
        """What is to be said of this node, and everything that lives or waits to be acknowledged."""
        memory = self._memory
        head = {"op": "state", "protocol": wire.PROTOCOL, "pid": os.getpid(), "boot": memory.boot}
        steps = [[*key, [mark.row() for mark in marks]] for key, marks in memory.steps.items()]
        versions = [[*key, version] for key, version in memory.versions.items()]
        lives = [[*key, row] for key, row in memory.lives.items()]
        jobs = list(memory.specs)
        known = {str(row[0]) for row in live} | {key[0] for key in memory.ended}
        told = {
            "jobs": jobs,
            "reports": self._reports(known),
            "records": self._records(known),
            "live": live,
            "steps": steps,
            "lives": lives,
            "versions": versions,
        }
        text = wire.encode({**head, **here, **told})
        return f'{text[:-1]},"ended":[{",".join(memory.ended.values())}]}}\n'.encode()

    def _reports(self, jobs: set[str]) -> dict[str, object]:
        """Where the agent reports the results of these jobs: it may have been restarted, and not know."""
        specs = {job: self._memory.specs[job] for job in sorted(jobs) if job in self._memory.specs}
        doors = {job: spec.reports for job, spec in specs.items() if spec.reports is not None}
        return {job: asdict(door) for job, door in doors.items() if door.by_agent}

    def _records(self, jobs: set[str]) -> dict[str, str]:
        """What the control plane may ask for again of these jobs."""
        specs = self._memory.specs
        return {job: specs[job].record for job in sorted(jobs) if job in specs and specs[job].record}

    def _drop(self, key: Key) -> None:
        self._memory.steps.pop(key, None)
        self._memory.versions.pop(key, None)
        self._memory.lives.pop(key, None)

    def _mark(self, attempt: Running) -> None:
        self._memory.steps[attempt.key] = attempt.marks
        self._journal.later(lines.step_line(attempt.key, len(attempt.marks), attempt.marks[-1]))

    def _tell_more(self, key: Key) -> None:
        if marks := self._memory.steps.get(key):
            self._outbox.stepped(key, wire.steps_row(key, (mark.row() for mark in marks)))
        if version := self._memory.versions.get(key):
            self._outbox.versioned(key, version)
        if row := self._memory.lives.get(key):
            self._outbox.lived(key, wire.encode([*key, row]))
