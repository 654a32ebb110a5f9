"""Print output of tasks unchanged, or line by line with time, task index and attempt as prefix."""

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
    """The prefix of each line."""

    index: bool = False
    attempt: bool = False
    time: bool = False

    def for_chunk(self, chunk: Chunk) -> bytes:
        which = [str(chunk.index)] * self.index + [f"#{chunk.attempt}"] * self.attempt
        parts = [_moment(chunk.at_ms)] * self.time + ([f"[{' '.join(which)}]"] if which else [])
        return " ".join([*parts, ""]).encode()


class Printer:
    """Writes stdout to stdout and stderr to stderr; a `single` requested stream goes to stdout."""

    def __init__(self, prefix: LinePrefix, *, single: bool = False) -> None:
        self._prefix = prefix
        self._is_plain = prefix == LinePrefix()
        self._single = single
        self._partial: dict[Key, tuple[bytes, bytes]] = {}  # prefix and text of a line without its end
        self._on_terminal: dict[Key, HarmlessStream] = {}
        self._line_open = False

    def write(self, chunk: Chunk) -> None:
        if chunk.is_gap:
            what = f"{chunk.missing} bytes of {chunk.stream} are" if chunk.missing else f"{chunk.stream} is"
            print_note(f"task {chunk.index}: {what} missing: {clean(chunk.reason or 'unknown reason')}")
        elif self._is_plain:
            self._line_open = not chunk.data.endswith(b"\n")
            # Flushed per chunk: output of a running job must not wait in a buffer of this process.
            write(self._target(chunk.stream), self._fit(chunk))
        else:
            self._write_lines(chunk, self._fit(chunk))

    def close(self) -> None:
        """Write partial lines, ended by a newline where a message would otherwise follow on the same line."""
        for key, (head, text) in self._partial.items():
            line = text + self._ended(key)
            if line:
                write(self._target(key[2]), head + line + b"\n")
        self._partial.clear()
        for key in list(self._on_terminal):
            write(self._target(key[2]), self._ended(key))
        if self._line_open and sys.stdout.isatty() and sys.stderr.isatty():
            print_note("")

    def _fit(self, chunk: Chunk) -> bytes:
        """The bytes to write: a terminal gets no control sequences, a file or pipe every byte unchanged."""
        if not stream_of(self._target(chunk.stream)).isatty():
            return chunk.data
        return self._on_terminal.setdefault(_key(chunk), HarmlessStream()).feed(chunk.data)

    def _ended(self, key: Key) -> bytes:
        shown = self._on_terminal.pop(key, None)
        return b"" if shown is None else shown.close()

    def _write_lines(self, chunk: Chunk, data: bytes) -> None:
        key, head = _key(chunk), self._prefix.for_chunk(chunk)
        _, before = self._partial.get(key, (b"", b""))
        *lines, partial = (before + data).split(b"\n")
        # Kept until its end arrives: two tasks that write at the same time must not share a line.
        self._partial[key] = (head, partial)
        if lines:
            write(self._target(chunk.stream), b"".join(head + line + b"\n" for line in lines))

    def _target(self, stream: str) -> str:
        return "stdout" if self._single else stream


def _key(chunk: Chunk) -> Key:
    return chunk.index, chunk.attempt, chunk.stream


def _moment(at_ms: int) -> str:
    """A time in the format of `--since`."""
    if not at_ms:
        return "-"
    seconds, thousandths = divmod(at_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{thousandths:03}Z"
