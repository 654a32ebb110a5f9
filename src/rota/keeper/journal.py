"""What was started, ended, acknowledged and forgotten: lines of JSON, appended, that outlive the keeper."""

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rota.keeper import quick
from rota.keeper.output import holes
from rota.keeper.reading import Malformed
from rota.keeper.rules import Key
from rota.keeper.steps import Mark, mark_of
from rota.keeper.wire import Spec, encode, job_id, parse_spec

REWRITE_BYTES = 8 << 20  # below this a rewrite is not worth its time
RESERVE_BYTES = 1 << 20  # some thousand results


@dataclass(slots=True)
class Memory:
    """What a journal says."""

    boot: str = ""
    specs: dict[str, Spec] = field(default_factory=dict)
    started: dict[Key, int] = field(default_factory=dict)  # and not ended: when, in wall clock ms
    ended: dict[Key, str] = field(default_factory=dict)  # and not acknowledged: the encoded row
    highest: dict[str, dict[int, int]] = field(default_factory=dict)  # job, index -> attempt
    steps: dict[Key, list[Mark]] = field(default_factory=dict)  # of what is in one of the books above
    versions: dict[Key, int] = field(default_factory=dict)  # the same, where it is not the first
    lives: dict[Key, list[Any]] = field(default_factory=dict)  # likewise, of services: the last row

    def raise_highest(self, key: Key) -> None:
        marks = self.highest.setdefault(key[0], {})
        marks[key[1]] = max(key[2], marks.get(key[1], -1))

    def forget(self, job: str) -> None:
        self.specs.pop(job, None)
        self.highest.pop(job, None)
        books: tuple[dict[Key, Any], ...] = (self.started, self.ended, self.steps, self.lives, self.versions)
        for book in books:
            for key in [key for key in book if key[0] == job]:
                del book[key]


def boot_line(boot: str) -> str:
    return f"{encode(['boot', boot])}\n"


def spec_line(job: str, spec: Spec) -> str:
    return f'["spec","{job}",{spec.text}]\n'


def start_line(key: Key, started_ms: int) -> str:
    return f'["start","{key[0]}",{key[1]},{key[2]},{started_ms}]\n'


def end_line(row: str) -> str:
    return f'["end",{row}]\n'


def step_line(key: Key, number: int, mark: Mark) -> str:
    return f"{encode(['step', *key, number, mark.row()])}\n"


def life_line(key: Key, row: Sequence[object]) -> str:
    return f"{encode(['life', *key, row])}\n"


def ack_line(keys: Sequence[Key]) -> str:
    return f"{encode(['ack', keys])}\n"


def forget_line(jobs: Sequence[str]) -> str:
    return f"{encode(['forget', jobs])}\n"


def compact(memory: Memory) -> Iterator[str]:
    """The shortest journal that says the same."""
    yield boot_line(memory.boot)
    for job, spec in memory.specs.items():
        yield spec_line(job, spec)
    for job, marks in memory.highest.items():
        yield f"{encode(['highest', job, list(marks.items())])}\n"
    for key, started_ms in memory.started.items():
        yield start_line(key, started_ms)
    for row in memory.ended.values():
        yield end_line(row)
    for key, steps in memory.steps.items():
        yield from (step_line(key, number, mark) for number, mark in enumerate(steps, 1))
    yield from (life_line(key, row) for key, row in memory.lives.items())


def read(path: str) -> Memory:
    try:
        with open(path, "rb") as file:
            return remember(file.read())
    except FileNotFoundError:
        return Memory()


def remember(text: bytes) -> Memory:
    memory = Memory()
    for line in text.split(b"\n")[:-1]:  # what follows the last newline is empty, or torn by a crash
        try:
            _apply(memory, json.loads(line))
        except Exception as error:  # a keeper that does not start over one line would lose all the others
            print(f"journal: one line cannot be read and is left out: {error!r:.200}", file=sys.stderr)
    return memory


def _apply(memory: Memory, line: list[Any]) -> None:
    match line:
        case ["start", str(job), int(index), int(attempt), int(started_ms)]:
            memory.started[job, index, attempt] = started_ms
            memory.raise_highest((job, index, attempt))
        case ["end", [str(job), int(index), int(attempt), *rest] as row]:
            _check_end(rest)
            memory.started.pop((job, index, attempt), None)
            memory.ended[job, index, attempt] = encode(row)
            memory.raise_highest((job, index, attempt))
        case ["ack", keys]:
            for job, index, attempt in keys:
                memory.ended.pop((job, index, attempt), None)
                memory.started.pop((job, index, attempt), None)
                memory.steps.pop((job, index, attempt), None)
                memory.lives.pop((job, index, attempt), None)
        case ["life", str(job), int(index), int(attempt), [int(), _, _, int(), str(), _] as row]:
            memory.lives[job, index, attempt] = row
        case ["step", str(job), int(index), int(attempt), int(number), row]:
            marks = memory.steps.setdefault((job, index, attempt), [])
            marks[number - 1 :] = [mark_of(row)]
        case _:
            _apply_to_jobs(memory, line)


def _check_end(rest: list[Any]) -> None:
    """An end is told to the agent as it stands here: what that cannot read must not be kept."""
    state, numbers, words = rest[:1], rest[1:8], rest[8:]
    are_numbers = [type(one) is int or (one is None and at < 3) for at, one in enumerate(numbers)]
    are_words = [one is None or isinstance(one, str) for one in words]
    if len(rest) not in (9, 10) or not (isinstance(state[0], str) and all(are_numbers + are_words)):
        raise Malformed("not the end of an attempt")


def _apply_to_jobs(memory: Memory, line: list[Any]) -> None:
    match line:
        case ["boot", str(boot)]:
            memory.boot = boot
        case ["spec", job, spec]:
            memory.specs[job_id(job)] = parse_spec(spec)
        case ["highest", str(job), marks]:
            found = {int(index): int(attempt) for index, attempt in marks}
            memory.highest.setdefault(job, {}).update(found)
        case ["forget", jobs]:
            for job in jobs:
                memory.forget(job)
        case _:
            raise Malformed("not a line of this journal")


class Journal:
    problem: str | None = None  # why what is pending is not written

    def __init__(self, path: str, lines: Iterator[str]) -> None:
        self._path = path
        self._fd = -1
        self._size = self._limit = self._reserved = 0
        self._pending: list[str] = []
        self.rewrite(lines)

    def later(self, line: str) -> None:
        """Take a line that must be written but that nothing has to wait for."""
        self._pending.append(line)

    def write(self, lines: Sequence[str] = ()) -> None:
        """Append what is pending and these lines: all of it, or OSError and what was pending still is."""
        text = "".join([*self._pending, *lines]).encode()
        if not text:
            return
        written = 0
        self._reserve(len(text))
        try:
            written = quick.write(self._fd, text)
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.problem = os.strerror(error.errno or 0)
            if written:  # half a line in the middle would garble the next one
                os.ftruncate(self._fd, self._size)
                self._reserved = self._size
            raise
        self._pending.clear()
        self.problem = None
        self._size += written

    def flush(self) -> bool:
        """Write what is pending if the disk takes it; the next write or flush tries again otherwise."""
        if self._pending:
            with contextlib.suppress(OSError):
                self.write()
        return not self._pending

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def _reserve(self, size: int) -> None:
        """Room ahead, so that results of what runs are still written when the disk is full."""
        if self._size + size + RESERVE_BYTES // 2 > self._reserved:
            with contextlib.suppress(OSError):  # full, or a file system that cannot
                holes.reserve(self._fd, self._size, size + RESERVE_BYTES)
                self._reserved = self._size + size + RESERVE_BYTES

    def is_overgrown(self) -> bool:
        return self._size > self._limit

    def shorten(self, lines: Iterator[str]) -> None:
        """Rewrite it if it has grown too long; another time if the disk does not take it now."""
        if self.is_overgrown():
            try:
                self.rewrite(lines)
            except OSError as error:
                print(f"journal: cannot be rewritten: {error}", file=sys.stderr)

    def rewrite(self, lines: Iterator[str]) -> None:
        """Replace the file by these lines, which say everything, pending lines included."""
        text = "".join(lines).encode()
        beside = f"{self._path}.new"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)  # intents of at_most_once are among them, and the old file goes
            os.rename(beside, self._path)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, len(text)
        self._reserved = self._size
        self._limit = max(REWRITE_BYTES, 2 * self._size)
        self._pending.clear()
