"""The journal: JSON lines of starts, ends, acknowledgements and specs, from which a keeper recovers.

It is append-only and rewritten when it has grown (`compact_lines`). Starts are written before the process is
spawned. Everything else may wait in memory (`append_later`) until the next start or flush: if it is lost in a
crash, the next keeper reports the attempt as lost, and the server tries the task again. Writes go to the page
cache, which survives the keeper; only `at_most_once` needs `sync`, against a power failure.
"""

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rota.keeper.output import holes
from rota.keeper.parsing import Malformed
from rota.keeper.process import fast_syscalls
from rota.keeper.protocol.steps import StepStart, step_start_from_row
from rota.keeper.protocol.wire import KeeperJobSpec, encode, parse_job_id, parse_spec
from rota.keeper.resources.reservations import AttemptKey

REWRITE_BYTES = 8 << 20  # a shorter journal is not rewritten
RESERVE_BYTES = 1 << 20  # reserved ahead: some thousand results


@dataclass(slots=True)
class JournalState:
    """The replayed content of a journal."""

    boot: str = ""
    specs: dict[str, KeeperJobSpec] = field(default_factory=dict)
    started: dict[AttemptKey, int] = field(default_factory=dict)  # not ended: started when, wall clock ms
    ended: dict[AttemptKey, str] = field(default_factory=dict)  # not acknowledged: the encoded row
    highest: dict[str, dict[int, int]] = field(default_factory=dict)  # job, index -> highest attempt number
    # Details of attempts in `started` or `ended`: steps, spec versions above 1, last states of services.
    steps: dict[AttemptKey, list[StepStart]] = field(default_factory=dict)
    versions: dict[AttemptKey, int] = field(default_factory=dict)
    services: dict[AttemptKey, list[Any]] = field(default_factory=dict)

    def raise_highest(self, key: AttemptKey) -> None:
        by_index = self.highest.setdefault(key[0], {})
        # Never lowered: a late line of an earlier attempt must not weaken the fence.
        by_index[key[1]] = max(key[2], by_index.get(key[1], -1))

    def forget(self, job: str) -> None:
        self.specs.pop(job, None)
        self.highest.pop(job, None)
        tables: tuple[dict[AttemptKey, Any], ...] = (
            self.started,
            self.ended,
            self.steps,
            self.services,
            self.versions,
        )
        for table in tables:
            for key in [key for key in table if key[0] == job]:
                del table[key]


def boot_line(boot: str) -> str:
    return f"{encode(['boot', boot])}\n"


def spec_line(job: str, spec: KeeperJobSpec) -> str:
    return f'["spec","{job}",{spec.text}]\n'


def start_line(key: AttemptKey, started_ms: int) -> str:
    return f'["start","{key[0]}",{key[1]},{key[2]},{started_ms}]\n'


def end_line(row: str) -> str:
    return f'["end",{row}]\n'


def step_line(key: AttemptKey, number: int, mark: StepStart) -> str:
    return f"{encode(['step', *key, number, mark.row()])}\n"


def service_line(key: AttemptKey, row: Sequence[object]) -> str:
    return f"{encode(['life', *key, row])}\n"


def ack_line(keys: Sequence[AttemptKey]) -> str:
    return f"{encode(['ack', keys])}\n"


def forget_line(jobs: Sequence[str]) -> str:
    return f"{encode(['forget', jobs])}\n"


def compact_lines(state: JournalState) -> Iterator[str]:
    """The shortest journal with this content."""
    yield boot_line(state.boot)
    for job, spec in state.specs.items():
        yield spec_line(job, spec)
    for job, marks in state.highest.items():
        yield f"{encode(['highest', job, list(marks.items())])}\n"
    for key, started_ms in state.started.items():
        yield start_line(key, started_ms)
    for row in state.ended.values():
        yield end_line(row)
    for key, steps in state.steps.items():
        yield from (step_line(key, number, mark) for number, mark in enumerate(steps, 1))
    yield from (service_line(key, row) for key, row in state.services.items())


def read_journal(path: str) -> JournalState:
    try:
        with open(path, "rb") as file:
            return replay(file.read())
    except FileNotFoundError:
        return JournalState()


def replay(text: bytes) -> JournalState:
    state = JournalState()
    # What follows the last newline is empty, or was torn by a crash.
    for line in text.split(b"\n")[:-1]:
        try:
            _apply(state, json.loads(line))
        # One bad line must not keep the keeper from starting: all other attempts would be lost.
        except Exception as error:
            print(f"journal: one line cannot be read and is left out: {error!r:.200}", file=sys.stderr)
    return state


def _apply(state: JournalState, line: list[Any]) -> None:
    match line:
        case ["start", str(job), int(index), int(attempt), int(started_ms)]:
            state.started[job, index, attempt] = started_ms
            state.raise_highest((job, index, attempt))
        case ["end", [str(job), int(index), int(attempt), *fields] as row]:
            _check_end(fields)
            state.started.pop((job, index, attempt), None)
            state.ended[job, index, attempt] = encode(row)
            state.raise_highest((job, index, attempt))
        case ["ack", keys]:
            for job, index, attempt in keys:
                state.ended.pop((job, index, attempt), None)
                # An acknowledged start: the attempt was withdrawn
                # before it was spawned, so it must not count as lost.
                state.started.pop((job, index, attempt), None)
                state.steps.pop((job, index, attempt), None)
                state.services.pop((job, index, attempt), None)
        case ["life", str(job), int(index), int(attempt), [int(), _, _, int(), str(), _] as row]:
            state.services[job, index, attempt] = row
        case ["step", str(job), int(index), int(attempt), int(number), row]:
            marks = state.steps.setdefault((job, index, attempt), [])
            marks[number - 1 :] = [step_start_from_row(row)]
        case _:
            _apply_to_jobs(state, line)


def _check_end(fields: list[Any]) -> None:
    """Reject a malformed end: it is sent to the agent as it is, which could not parse it."""
    state, numbers, texts = fields[:1], fields[1:8], fields[8:]
    are_numbers = [type(value) is int or (value is None and at < 3) for at, value in enumerate(numbers)]
    are_texts = [value is None or isinstance(value, str) for value in texts]
    if len(fields) not in (9, 10) or not (isinstance(state[0], str) and all(are_numbers + are_texts)):
        raise Malformed("not the end of an attempt")


def _apply_to_jobs(state: JournalState, line: list[Any]) -> None:
    match line:
        case ["boot", str(boot)]:
            state.boot = boot
        case ["spec", job, spec]:
            state.specs[parse_job_id(job)] = parse_spec(spec)
        case ["highest", str(job), marks]:
            found = {int(index): int(attempt) for index, attempt in marks}
            state.highest.setdefault(job, {}).update(found)
        case ["forget", jobs]:
            for job in jobs:
                state.forget(job)
        case _:
            raise Malformed("not a line of this journal")


class Journal:
    """The journal file. Call with `Supervisor.lock` held."""

    problem: str | None = None  # why pending lines cannot be written

    def __init__(self, path: str, lines: Iterator[str]) -> None:
        self._path = path
        self._fd = -1
        self._size = self._limit = self._reserved = 0
        self._pending: list[str] = []
        self.rewrite(lines)

    def append_later(self, line: str) -> None:
        """Queue a line that has to be written, but that nothing waits for."""
        self._pending.append(line)

    def write(self, lines: Sequence[str] = ()) -> None:
        """Append pending lines and these, in order: all of them, or OSError and pending ones stay pending."""
        # In one write: pending lines come first, so that their order is that of the events.
        text = "".join([*self._pending, *lines]).encode()
        if not text:
            return
        written = 0
        self._reserve(len(text))
        try:
            written = fast_syscalls.write(self._fd, text)
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.problem = os.strerror(error.errno or 0)
            # A partial line would corrupt the next one.
            if written:
                os.ftruncate(self._fd, self._size)
                self._reserved = self._size
            raise
        self._pending.clear()
        self.problem = None
        self._size += written

    def flush(self) -> bool:
        """Write pending lines if the disk takes them, otherwise leave them pending; True: none is left."""
        if self._pending:
            with contextlib.suppress(OSError):
                self.write()
        return not self._pending

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def _reserve(self, size: int) -> None:
        """Reserve disk space ahead, so that results can be written when the disk is full."""
        if self._size + size + RESERVE_BYTES // 2 > self._reserved:
            with contextlib.suppress(OSError):  # the disk is full, or the file system cannot
                holes.reserve(self._fd, self._size, size + RESERVE_BYTES)
                self._reserved = self._size + size + RESERVE_BYTES

    def is_overgrown(self) -> bool:
        return self._size > self._limit

    def compact_if_overgrown(self, lines: Iterator[str]) -> None:
        """Rewrite the journal if it has grown too long; if that fails, the next call tries again."""
        if self.is_overgrown():
            try:
                self.rewrite(lines)
            except OSError as error:
                print(f"journal: rewrite failed: {error}", file=sys.stderr)

    def rewrite(self, lines: Iterator[str]) -> None:
        """Replace the file atomically by these lines, which include everything that is pending."""
        text = "".join(lines).encode()
        partial = f"{self._path}.new"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, text) < len(text):
                # Short writes are treated as a full disk; the old journal stays in use.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)  # starts of at_most_once are among them, and the rename drops the synced file
            os.rename(partial, self._path)
        except OSError:
            os.close(fd)
            raise
        # A crash before the rename leaves the old journal, which is complete up to the last write.
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, len(text)
        self._reserved = self._size
        # Twice the compact size: the cost of rewriting stays proportional to what is written.
        self._limit = max(REWRITE_BYTES, 2 * self._size)
        self._pending.clear()
