"""Output of tasks, as it is, or line by line with the time, the task's index and its attempt in front."""

import sys
import time
from dataclasses import dataclass

from rota.cli.output import tell, write
from rota.cli.words import clean
from rota.client.views import Chunk

Key = tuple[int, int, str]


@dataclass(frozen=True)
class Heads:
    """What stands in front of each line."""

    index: bool = False
    attempt: bool = False
    time: bool = False

    def of(self, chunk: Chunk) -> bytes:
        which = [str(chunk.index)] * self.index + [f"#{chunk.attempt}"] * self.attempt
        parts = [_moment(chunk.at_ms)] * self.time + ([f"[{' '.join(which)}]"] if which else [])
        return " ".join([*parts, ""]).encode()


class Printer:
    """Writes each stream to its own; a `single` one that was asked for is data, so it goes to stdout."""

    def __init__(self, heads: Heads, *, single: bool = False) -> None:
        self._heads = heads
        self._is_plain = heads == Heads()
        self._single = single
        self._rest: dict[Key, tuple[bytes, bytes]] = {}  # a line without an end, and what stands in front
        self._line_open = False

    def write(self, chunk: Chunk) -> None:
        if chunk.is_gap:
            what = f"{chunk.missing} bytes of {chunk.stream} are" if chunk.missing else f"{chunk.stream} is"
            tell(f"task {chunk.index}: {what} missing: {clean(chunk.reason or 'nobody knows why')}")
        elif self._is_plain:
            self._line_open = not chunk.data.endswith(b"\n")
            write(self._target(chunk.stream), chunk.data)
        else:
            self._write_lines(chunk)

    def close(self) -> None:
        """Lines without an end get one where Rota's own words would otherwise run into them."""
        for (_, _, stream), (head, line) in self._rest.items():
            if line:
                write(self._target(stream), head + line + b"\n")
        self._rest.clear()
        if self._line_open and sys.stdout.isatty() and sys.stderr.isatty():
            tell("")

    def _write_lines(self, chunk: Chunk) -> None:
        key, head = (chunk.index, chunk.attempt, chunk.stream), self._heads.of(chunk)
        _, before = self._rest.get(key, (b"", b""))
        *lines, rest = (before + chunk.data).split(b"\n")
        self._rest[key] = (head, rest)
        if lines:
            write(self._target(chunk.stream), b"".join(head + line + b"\n" for line in lines))

    def _target(self, stream: str) -> str:
        return "stdout" if self._single else stream


def _moment(at_ms: int) -> str:
    """As `--since` takes it."""
    if not at_ms:
        return "-"
    seconds, thousandths = divmod(at_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{thousandths:03}Z"
