"""Generate the parts of reference pages that describe states, limits, settings, commands and the client.

Run `python docs/generate.py` to update them; a test fails when they are out of date. A generated part is
enclosed by the comments `<!-- made from … -->` and `<!-- until here -->`; the text around it is hand-written.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import click

from rota.cli.main import COMMANDS, SECTIONS
from rota.config import AgentConfig, Key, ServerConfig, schema
from rota.config.watcher import WatcherConfig
from rota.model import lifecycle, limits

REFERENCE = Path(__file__).parent / "reference"
PART = re.compile(r"(<!-- made from ([\w:]+) -->\n).*?(<!-- until here -->)", re.DOTALL)


def main() -> int:
    for page in sorted(REFERENCE.glob("*.md")):
        page.write_text(renewed(page.read_text()))
    return 0


def renewed(page: str) -> str:
    """The page with every generated part updated."""
    return PART.sub(lambda part: f"{part[1]}\n{made(part[2])}\n\n{part[3]}", page)


def made(name: str) -> str:
    kind, _, argument = name.partition(":")
    return "\n".join(MAKERS[kind](argument)).rstrip()


# ---- states


def states(name: str) -> Iterator[str]:
    """A state diagram, followed by the transition table."""
    table: dict[tuple[Enum, Enum], Enum] = dict(getattr(lifecycle, name))
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in table.items():
        arrows.setdefault((_state_name(before), _state_name(after)), []).append(str(event.value))
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    direction LR"
    first = _state_name(next(iter(table))[0])
    yield f"    [*] --> {first}"
    yield from (f"    {before} --> {after}: {', '.join(why)}" for (before, after), why in arrows.items())
    yield "```"
    yield ""
    yield "| in | when | it becomes |"
    yield "|---|---|---|"
    yield from (
        f"| {_state_name(before)} | {event.value} | {_state_name(after)} |"
        for (before, event), after in table.items()
    )


def _state_name(state: Enum) -> str:
    return state.name.lower()


# ---- limits


def limits_table(_: str) -> Iterator[str]:
    """Names, values and the reason of each limit, read from the source."""
    source = Path(str(limits.__file__)).read_text()
    lines = source.splitlines()
    yield "| limit | value | why |"
    yield "|---|--:|---|"
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            reason = _reason(lines[node.lineno - 1 : node.end_lineno])
            yield f"| `{name}` | {getattr(limits, name):,} | {reason} |"


def _reason(lines: list[str]) -> str:
    """The comment beside a value, on whichever line the formatter has put it."""
    return " ".join(line.partition("#")[2].strip() for line in lines).strip()


# ---- settings


def settings(name: str) -> Iterator[str]:
    known = schema({"server": ServerConfig, "agent": AgentConfig, "watcher": WatcherConfig}[name])
    yield "| key | type | default | variable |"
    yield "|---|---|---|---|"
    for key in known.values():
        yield f"| `{key.name}` | {_type(key)} | {_default(key)} | `{key.variable}` |"


def _type(key: Key) -> str:
    return {bool: "true or false", str: "text", float: "number", dict: "table"}.get(
        key.kind, key.kind.__name__
    )


def _default(key: Key) -> str:
    return "–" if key.default in (None, {}) else f"`{key.default}`"


# ---- commands


def commands(_: str) -> Iterator[str]:
    for title, names in SECTIONS.items():
        yield f"## {title}"
        yield ""
        for name in names:
            yield from _command(f"rota {name}", importlib.import_module(f"rota.cli.{name}").command)
    assert set(COMMANDS) == {name for names in SECTIONS.values() for name in names}


def _command(path: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _command(f"{path} {name}", inner)
        return
    arguments = [
        _argument(parameter) for parameter in command.params if isinstance(parameter, click.Argument)
    ]
    yield f"### `{' '.join([path, *arguments])}`"
    yield ""
    yield from _prose(command.help or "")
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if options:
        yield "| flag | |"
        yield "|---|---|"
        yield from (f"| {_flags(option)} | {_cell(_help(option))} |" for option in options)
        yield ""


def _argument(argument: click.Argument) -> str:
    name = (argument.metavar or argument.human_readable_name).upper()
    many = f"{name}…" if argument.nargs == -1 else name
    return many if argument.required else f"[{many}]"


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a help text; what click prints verbatim becomes a block."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        verbatim = paragraph.removeprefix("\b\n")
        yield verbatim if verbatim == paragraph else f"```\n{verbatim}\n```"
        yield ""


def _flags(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {_metavar(option)}"


def _metavar(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return " ".join(str(choice) for choice in option.type.choices)
    return option.metavar or ("N" if isinstance(option.type, click.IntRange | type(click.INT)) else "TEXT")


def _help(option: click.Option) -> str:
    text = option.help or ""
    shown = option.show_default and option.default is not None
    return f"{text} [default: {option.default}]" if shown else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# ---- the client


def methods(name: str) -> Iterator[str]:
    """One row for each public method of a class, in the order of the source."""
    module, _, kind = name.partition(":")
    client_class = getattr(importlib.import_module(f"rota.client.{module}"), kind)
    yield "| method | gives | |"
    yield "|---|---|---|"
    for method in vars(client_class).values():
        if inspect.isfunction(method) and not method.__name__.startswith("_"):
            description = _cell(" ".join((inspect.getdoc(method) or "").split()))
            yield f"| `{method.__name__}({_parameters(method)})` | {_given(method)} | {description} |"


def _parameters(method: Callable[..., Any]) -> str:
    """The parameters with defaults, without types."""
    known = [
        parameter.replace(annotation=parameter.empty)
        for parameter in inspect.signature(method).parameters.values()
        if parameter.name != "self"
    ]
    return str(inspect.Signature(known))[1:-1]


def _given(method: Callable[..., Any]) -> str:
    returns = inspect.signature(method).return_annotation
    if returns is None:
        return ""
    shown = re.sub(r"[\w.]*\.(\w+)", r"\1", inspect.formatannotation(returns)).strip("'")
    each = re.fullmatch(r"Iterator\[(.*)\]", shown)
    return f"yields `{each[1]}`" if each else f"`{shown}`"


MAKERS: dict[str, Callable[[Any], Iterator[str]]] = {
    "lifecycle": states,
    "limits": limits_table,
    "settings": settings,
    "commands": commands,
    "client": methods,
}

if __name__ == "__main__":
    sys.exit(main())
