"""Read a job file in TOML, YAML or JSON."""

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def read_job_file(path: str) -> dict[str, Any]:
    """The fields of a job file; its format is known by the suffix, that of stdin and pipes by the content."""
    text = sys.stdin.read() if path == "-" else _read(path)
    kind = Path(path).suffix.lower() or _guess_format(text)
    try:
        spec = _PARSERS[kind](text)
    except KeyError:
        raise click.BadParameter(f"{path}: write a .toml, .yaml or .json file", param_hint="--file") from None
    except ValueError as error:
        raise click.BadParameter(f"{path}: not {kind[1:].upper()}: {error}", param_hint="--file") from None
    if not isinstance(spec, dict):
        raise click.BadParameter(f"{path}: a job is a table of fields", param_hint="--file")
    return spec


def _guess_format(text: str) -> str:
    if text.lstrip().startswith("{"):
        return ".json"
    return ".toml" if re.search(r"^\s*[\w.\"-]+\s*=", text, re.MULTILINE) else ".yaml"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--file") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path}: not UTF-8 text", param_hint="--file") from None


def _yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415  takes 60 ms, and most jobs have no file

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".json": json.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}
