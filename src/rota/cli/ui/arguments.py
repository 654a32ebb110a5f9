"""Parse the values of flags; an error names the flag and what would be accepted."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from rota.cli.ui.formats import parse_array, parse_duration, parse_ids, parse_ranges

Value = TypeVar("Value")


def job_refs(texts: Sequence[str]) -> list[str]:
    """`1,3,5-8 last train` -> one reference per job."""
    return [ref for text in texts for ref in _parsed(parse_ids, text, "JOBS")]


def indices(text: str, flag: str = "--index") -> list[int]:
    return _parsed(parse_ranges, text, flag)


def seconds(text: str | None, flag: str) -> float | None:
    return None if text is None else _parsed(parse_duration, text, flag)


def array(text: str) -> tuple[int, int | None]:
    return _parsed(parse_array, text, "--array")


def codes(text: str, flag: str) -> list[int | str]:
    """`75,64-78,oom` -> exit codes, and names that the server knows."""
    found: list[int | str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found += _parsed(parse_ranges, part, flag) if part[0].isdecimal() else [part]
    return found


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """A mapping from texts of the form `K=V`."""
    split = [text.partition("=") for text in texts]
    for text, (name, sign, _) in zip(texts, split, strict=True):
        if not name or not sign:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=flag)
    return {name: value for name, _, value in split}


def _parsed(parse: Callable[[str], Value], text: str, flag: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=flag) from None
