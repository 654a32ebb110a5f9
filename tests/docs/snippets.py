"""Extract the command blocks of a document, and compare their output with what it shows."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

ELLIPSIS = "…"
PROMPT = re.compile(r"([a-z]?)\$ ", re.MULTILINE)  # a letter before it says on which of several machines


class Kind(StrEnum):
    """How a block is handled, by its language."""

    CONSOLE = "console"  # commands after `$ `, each with what it prints
    SH = "sh"  # a script
    PYTHON = "python"  # a program


@dataclass(frozen=True)
class Block:
    """A fenced block; `note` is the comment right above it."""

    line: int
    language: str
    text: str
    note: str = ""

    @property
    def runs(self) -> bool:
        """Those that cannot say so, with the reason: `<!-- not run: … -->`."""
        return self.language in set(Kind) and not self.note.startswith("not run: ")

    @property
    def file(self) -> str | None:
        """`<!-- file: job.toml -->`: what follows is that file, for the commands below."""
        return self.note.removeprefix("file: ") if self.note.startswith("file: ") else None

    @property
    def exit_code(self) -> int:
        """`<!-- exit 3 -->`: how the block's last command ends."""
        return int(self.note.removeprefix("exit ")) if self.note.startswith("exit ") else 0


@dataclass(frozen=True)
class Command:
    """One command of a console block and the lines shown below it."""

    line: int
    text: str
    shown: str
    machine: str = ""  # where it is typed: `a$ `


def blocks(document: str) -> Iterator[Block]:
    """Every fenced block, in order."""
    lines = document.splitlines()
    at = 0
    while at < len(lines):
        opening = re.fullmatch(r"```(\w*)", lines[at])
        if opening is None:
            at += 1
            continue
        end = lines.index("```", at + 1)
        yield Block(at + 1, opening[1], "\n".join(lines[at + 1 : end]) + "\n", _note(lines, at))
        at = end + 1


def commands(block: Block) -> Iterator[Command]:
    """`$ ` starts a command, `> ` continues it, everything else is its output."""
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if PROMPT.match(line)]
    assert starts[:1] == [0], f"line {block.line}: a console block begins with `$ `"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        more = [line[2:] for line in lines[start + 1 : end] if line.startswith("> ")]
        shown = lines[start + 1 + len(more) : end]
        machine, _, first = lines[start].partition("$ ")
        yield Command(block.line + 1 + start, "\n".join([first, *more]), "\n".join(shown), machine)


def matches(shown: str, printed: str) -> bool:
    """Whether the output matches the document, apart from varying parts."""
    return re.fullmatch("".join(_line(line) for line in shown.splitlines()), _ended(printed)) is not None


def _note(lines: list[str], at: int) -> str:
    comment = re.fullmatch(r"<!-- (.*) -->", lines[at - 1]) if at else None
    return comment[1] if comment else ""


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"


def _line(line: str) -> str:
    if line.strip() == ELLIPSIS:
        return r"(?:.*\n)*?"
    pattern, at = "", 0
    for found in _DIFFERS.finditer(line.rstrip()):
        pattern += re.escape(line[at : found.start()]) + _PATTERNS[str(found.lastgroup)]
        at = found.end()
    return pattern + re.escape(line[at:].rstrip()) + r" *\n"


# What differs from one time to the next and from one machine to the other; the rest is compared as it is.
_SHAPES = {
    "any": (ELLIPSIS, r".*?"),
    "space": (r" +", r" +"),  # columns are as wide as what stands in them
    "address": (r"127\.0\.0\.1:\d+", r"127\.0\.0\.1:\d+"),
    "job": (r"\bjob \d+\b", r"job \d+"),
    "node": (r"\bnode-\d+\b", r"node-\d+"),
    "hint": (
        r"\brota (?:logs|wait|show|cancel|why)(?: -f)? \d+\b",
        r"rota (?:logs|wait|show|cancel|why)(?: -f)? \d+",
    ),
    "size": (r"\b[\d.]+ [KMGTP]?i?B\b", r"[\d.]+ [KMGTP]?i?B"),
    "amount": (r"\b[\d.]+(?= (?:s|cpu)\b)", r"[\d.]+"),
    "rate": (r"\b[\d.]+/s\b", r"[\d.]+/s"),
    "share": (r"\b[\d.]+/[\d.]+", r"[\d.]+/[\d.]+"),
    "age": (r"\b\d+[smhdw]\b", r"\d+[smhdw]"),
    "time": (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"),
    "first": (r"^\d+(?= |$)", r"\d+"),  # a job's number, alone or in the first column
}
_DIFFERS = re.compile("|".join(f"(?P<{name}>{shape})" for name, (shape, _) in _SHAPES.items()))
_PATTERNS = {name: pattern for name, (_, pattern) in _SHAPES.items()}
