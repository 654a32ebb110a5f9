"""Print data on stdout as table, JSON or ids, and messages on stderr; colour only on terminals."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TextIO, TypeVar

import click

from rota.cli.ui.formats import clean
from rota.cli.ui.terminal import harmless
from rota.client.context import setting

FORMATS = ("table", "wide", "json", "jsonl", "id")
API = "v1"
GAP = "  "
LINES_PER_WRITE = 1000
_UNESCAPED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
STATE_WORD = re.compile(r"[a-z_]+")
COLOURS = {
    "succeeded": "green",
    "ready": "green",
    "running": "cyan",
    "active": "cyan",
    "failed": "red",
    "lost": "red",
    "timed_out": "red",
    "rejected": "red",
    "suspect": "yellow",
    "unavailable": "yellow",
    "canceling": "yellow",
    "canceled": "yellow",
    "draining": "yellow",
    "cordoned": "yellow",
    "drained": "yellow",
}

Row = TypeVar("Row")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class TableColumn(Generic[Row]):
    """One column of a table; `wide` columns are shown by `-o wide`."""

    title: str
    cell: Callable[[Row], object]
    wide: bool = False
    right: bool = False


@dataclass(frozen=True)
class TableListing(Generic[Row]):
    """How one kind of record is printed."""

    name: str
    columns: Sequence[TableColumn[Row]]
    id_of: Callable[[Row], str]


def output_option(function: Function) -> Function:
    """Adds `-o`; its value is one of FORMATS, by flag, ROTA_OUTPUT, config file, or `table`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        callback=_choose,
        help="How to print data. [default: table]",
    )(function)


def emit(output: str, listing: TableListing[Row], rows: Iterable[Row]) -> int:
    """Print records and return their number; JSON formats print `raw`, the answer of the server."""
    if output == "json":
        found = [_raw(row) for row in rows]
        print_json({listing.name: found})
        return len(found)
    if output == "jsonl":
        return print_all(_compact(_raw(row)) for row in rows)
    if output == "id":
        return print_all(listing.id_of(row) for row in rows)
    return print_all(table(listing.columns, rows, wide=output == "wide")) - 1  # without the heading


def emit_one(output: str, record: Any, id_of: str, text: Callable[[], Iterable[str]]) -> None:
    """Print one record; `text` is called only for the text formats."""
    if output == "json":
        print_json(_raw(record))
    elif output == "jsonl":
        print_line(_raw(record))
    elif output == "id":
        print_data(id_of)
    else:
        for line in text():
            print_data(line)


def table(columns: Sequence[TableColumn[Row]], rows: Iterable[Row], *, wide: bool = False) -> list[str]:
    """Aligned lines under a heading."""
    shown = [column for column in columns if wide or not column.wide]
    titles = [column.title for column in shown]
    cells_of = [column.cell for column in shown]
    # Row by row: later rows of a long list are still being read while the first are formatted.
    text = [titles, *([clean(str(cell(row))) for cell in cells_of] for row in rows)]
    padded, widths = [], []
    for column, cells in zip(shown, zip(*text, strict=True), strict=True):
        widths.append(max(map(len, cells)))
        pad = str.rjust if column.right else str.ljust
        padded.append([pad(cell, widths[-1]) for cell in cells])
    heading, *lines = [GAP.join(line).rstrip() for line in zip(*padded, strict=True)]
    if sys.stdout.isatty() and not wide:
        width = shutil.get_terminal_size().columns
        lines = [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
    if "STATE" in titles and colourful(sys.stdout):
        before = sum(width + len(GAP) for width in widths[: titles.index("STATE")])
        lines = [line[:before] + tint(line[before:]) for line in lines]
    return [heading, *lines]


def tint(text: str) -> str:
    """Text that starts with a state, with that word coloured on a terminal."""
    word = STATE_WORD.match(text)
    if word is None or word[0] not in COLOURS or not colourful(sys.stdout):
        return text
    return click.style(word[0], fg=COLOURS[word[0]]) + text[word.end() :]


def colourful(stream: Any) -> bool:
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_data(text: str) -> None:
    """Print a line of data on stdout."""
    click.echo(_fit(text, sys.stdout), color=colourful(sys.stdout))


def print_all(lines: Iterable[str]) -> int:
    """Print lines of data, many per write; returns their number."""
    count = 0
    lines = iter(lines)
    while some := list(islice(lines, LINES_PER_WRITE)):
        # Many lines per write: a long list to a terminal or pipe is dominated by the number of writes.
        print_data("\n".join(some))
        count += len(some)
    return count


def print_note(text: str) -> None:
    """Print a message on stderr."""
    click.echo(_fit(text, sys.stderr), err=True, color=colourful(sys.stderr))


def _fit(text: str, stream: TextIO) -> str:
    return harmless(text) if stream.isatty() else text


def write(stream: str, data: bytes) -> None:
    """Write output of a job unchanged, and flush."""
    out = stream_of(stream).buffer
    out.write(data)
    out.flush()


def stream_of(name: str) -> TextIO:
    return sys.stderr if name == "stderr" else sys.stdout


def print_json(document: Mapping[str, Any]) -> None:
    print_data(_escaped(json.dumps({"api": API, **document}, indent=2, ensure_ascii=False)))


def print_line(document: Mapping[str, Any]) -> None:
    print_data(_compact(document))


def _compact(document: Mapping[str, Any]) -> str:
    return _escaped(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _escaped(document: str) -> str:
    """The same JSON with terminal control characters, which json.dumps leaves unchanged, as escapes."""
    return _UNESCAPED.sub(lambda found: json.dumps(found[0])[1:-1], document)


def _choose(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    chosen = setting("output", value).value or "table"
    if chosen not in FORMATS:
        raise click.BadParameter(f"{chosen!r} is not one of {', '.join(FORMATS)}", param_hint="ROTA_OUTPUT")
    return chosen


def _raw(row: Any) -> Any:
    return row if isinstance(row, Mapping) else row.raw
