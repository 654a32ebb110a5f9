"""Output of tasks, as it is, or line by line with the time, the task's index and its attempt in front."""

import sys
import time
from dataclasses import dataclass

from rota.cli.ui.formats import clean
from rota.cli.ui.output import print_note, stream_of, write
from rota.cli.ui.terminal import HarmlessStream
from rota.client.views import Chunk

Key = tuple[int, int, str]


@dataclass(frozen=True)
class LinePrefix:
    """What stands in front of each line."""

    index: bool = False
    attempt: bool = False
    time: bool = False

    def for_chunk(self, chunk: Chunk) -> bytes:
        which = [str(chunk.index)] * self.index + [f"#{chunk.attempt}"] * self.attempt
        parts = [_moment(chunk.at_ms)] * self.time + ([f"[{' '.join(which)}]"] if which else [])
        return " ".join([*parts, ""]).encode()


class Printer:
    """Writes each stream to its own; a `single` one that was asked for is data, so it goes to stdout."""

    def __init__(self, heads: LinePrefix, *, single: bool = False) -> None:
        self._heads = heads
        self._is_plain = heads == LinePrefix()
        self._single = single
        self._rest: dict[Key, tuple[bytes, bytes]] = {}  # a line without an end, and what stands in front
        self._on_terminal: dict[Key, HarmlessStream] = {}
        self._line_open = False

    def write(self, chunk: Chunk) -> None:
        if chunk.is_gap:
            what = f"{chunk.missing} bytes of {chunk.stream} are" if chunk.missing else f"{chunk.stream} is"
            print_note(f"task {chunk.index}: {what} missing: {clean(chunk.reason or 'nobody knows why')}")
        elif self._is_plain:
            self._line_open = not chunk.data.endswith(b"\n")
            write(self._target(chunk.stream), self._fit(chunk))
        else:
            self._write_lines(chunk, self._fit(chunk))

    def close(self) -> None:
        """Lines without an end get one where Rota's own words would otherwise run into them."""
        for key, (head, rest) in self._rest.items():
            line = rest + self._ended(key)
            if line:
                write(self._target(key[2]), head + line + b"\n")
        self._rest.clear()
        for key in list(self._on_terminal):
            write(self._target(key[2]), self._ended(key))
        if self._line_open and sys.stdout.isatty() and sys.stderr.isatty():
            print_note("")

    def _fit(self, chunk: Chunk) -> bytes:
        """A terminal is not steered by what a job writes; a file or a pipe gets every byte as it is."""
        if not stream_of(self._target(chunk.stream)).isatty():
            return chunk.data
        return self._on_terminal.setdefault(_key(chunk), HarmlessStream()).feed(chunk.data)

    def _ended(self, key: Key) -> bytes:
        shown = self._on_terminal.pop(key, None)
        return b"" if shown is None else shown.close()

    def _write_lines(self, chunk: Chunk, data: bytes) -> None:
        key, head = _key(chunk), self._heads.for_chunk(chunk)
        _, before = self._rest.get(key, (b"", b""))
        *lines, rest = (before + data).split(b"\n")
        self._rest[key] = (head, rest)
        if lines:
            write(self._target(chunk.stream), b"".join(head + line + b"\n" for line in lines))

    def _target(self, stream: str) -> str:
        return "stdout" if self._single else stream


def _key(chunk: Chunk) -> Key:
    return chunk.index, chunk.attempt, chunk.stream


def _moment(at_ms: int) -> str:
    """As `--since` takes it."""
    if not at_ms:
        return "-"
    seconds, thousandths = divmod(at_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{thousandths:03}Z"
