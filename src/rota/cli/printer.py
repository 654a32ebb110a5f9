"""Output of tasks, as it is, or line by line with the task's index in front."""

import sys

from rota.cli.output import tell, write
from rota.cli.words import clean
from rota.client.views import Chunk


class Printer:
    """Writes each stream to its own; a `single` one that was asked for is data, so it goes to stdout."""

    def __init__(self, *, prefix: bool, single: bool = False) -> None:
        self._prefix = prefix
        self._single = single
        self._rest: dict[tuple[int, int, str], bytes] = {}
        self._line_open = False

    def write(self, chunk: Chunk) -> None:
        if chunk.is_gap:
            what = f"{chunk.missing} bytes of {chunk.stream} are" if chunk.missing else f"{chunk.stream} is"
            tell(f"task {chunk.index}: {what} missing: {clean(chunk.reason or 'nobody knows why')}")
        elif not self._prefix:
            self._line_open = not chunk.data.endswith(b"\n")
            write(self._target(chunk.stream), chunk.data)
        else:
            key = (chunk.index, chunk.attempt, chunk.stream)
            *lines, self._rest[key] = (self._rest.get(key, b"") + chunk.data).split(b"\n")
            data = b"".join(b"[%d] %s\n" % (chunk.index, line) for line in lines)
            if data:
                write(self._target(chunk.stream), data)

    def close(self) -> None:
        """Lines without an end get one where Rota's own words would otherwise run into them."""
        for (index, _, stream), line in self._rest.items():
            if line:
                write(self._target(stream), b"[%d] %s\n" % (index, line))
        self._rest.clear()
        if self._line_open and sys.stdout.isatty() and sys.stderr.isatty():
            tell("")

    def _target(self, stream: str) -> str:
        return "stdout" if self._single else stream
