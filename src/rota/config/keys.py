"""A dataclass -> its keys; file, environment and flags -> a value for each key, with its source. [I/O]"""

import contextlib
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

Config = TypeVar("Config")


class ConfigError(ValueError):
    """An unknown key, or a value that cannot be used: the user's fault."""

    code = "bad_config"
    exit_code = 2

    def __init__(self, key: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.field = key or None
        self.hint = hint

    def at(self, place: str) -> Self:
        self.args = (f"{place}: {self}",)
        return self


@dataclass(frozen=True)
class Sourced:
    """One value and its source: flag, environment, file or default."""

    key: str
    value: Any
    source: str


def sources(
    kind: type[Config], path: str | None, flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> list[Sourced]:
    """Every key with its value and the source of the value."""
    known = schema(kind)
    in_file = _flat(read_toml(path), known) if path else {}
    return [_source(key, known[key], flags, environ, (path, in_file)) for key in known]


def keys_in(kind: type[Any], path: str | None) -> frozenset[str]:
    """The keys that a file sets, whether or not a flag or the environment overrides them."""
    return frozenset(_flat(read_toml(path), schema(kind))) if path else frozenset()


def build(kind: type[Config], values: list[Sourced]) -> Config:
    """Values by key -> the configuration."""
    tree: dict[str, Any] = {}
    for sourced in values:
        section, _, name = sourced.key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = sourced.value
    hints = get_type_hints(kind)
    arguments = {
        name: hints[name](**value) if is_dataclass(hints[name]) else value for name, value in tree.items()
    }
    return kind(**arguments)


def schema(kind: type[Any], prefix: str = "") -> dict[str, "Key"]:
    """Every key a configuration has, as `section.name`."""
    known: dict[str, Key] = {}
    hints = get_type_hints(kind)
    for item in fields(kind):
        hint = hints[item.name]
        if isinstance(hint, type) and is_dataclass(hint):
            known |= schema(hint, f"{item.name}.")
        else:
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            known[prefix + item.name] = Key(prefix + item.name, hint, default)
    return known


@dataclass(frozen=True)
class Key:
    """A key's type and default, and the environment variable that sets it."""

    name: str
    hint: Any
    default: Any

    @property
    def variable(self) -> str:
        return "ROTA_" + self.name.replace(".", "_").upper()

    @property
    def kind(self) -> type:
        """The type that a value must have; None is expressed by leaving the key out."""
        options = get_args(self.hint) if isinstance(self.hint, UnionType) else (self.hint,)
        plain: type = next(option for option in options if option is not type(None))
        return get_origin(plain) or plain


def read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("", f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("", f"{path} is not TOML: {error}") from None


@contextlib.contextmanager
def at_its_line(path: str | None, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[None]:
    """Add the line of the file to a ConfigError, if the value comes from the file."""
    try:
        yield
    except ConfigError as error:
        key = error.field or ""
        variable = Key(key, None, None).variable
        line = None if flags.get(key) is not None or environ.get(variable) else _line_of(path, key)
        raise error if line is None else error.at(f"{path}, line {line}") from None


def _line_of(path: str | None, key: str) -> int | None:
    """The line of a key, or of its section if it lacks the key; None: the file has neither."""
    if path is None or not key:
        return None
    section = ""
    lines: dict[str, int] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if text.startswith("["):
            section = text.partition("]")[0].strip("[ ")
            lines.setdefault(section, number)
        elif not text.startswith("#"):
            name = text.partition("=")[0].strip().strip("\"'")
            lines.setdefault(f"{section}.{name}" if section else name, number)
    name = key.strip("[]")
    return lines.get(name) or lines.get(name.rpartition(".")[0])


def _source(
    key: str,
    known: Key,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: tuple[str | None, dict[str, Any]],
) -> Sourced:
    path, in_file = file
    if flags.get(key) is not None:
        return Sourced(key, _checked(known, flags[key]), "flag")
    if environ.get(known.variable):
        return Sourced(key, _parsed(known, environ[known.variable]), f"environment {known.variable}")
    if key in in_file:
        return Sourced(key, _checked(known, in_file[key]), f"file {path}")
    return Sourced(key, known.default, "default")


def _flat(tree: Mapping[str, Any], known: Mapping[str, Key]) -> dict[str, Any]:
    """`{section: {name: value}}` -> `{section.name: value}`; unknown sections and keys are refused."""
    sections = {key.rpartition(".")[0] for key in known} - {""}
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if name in sections:
            if not isinstance(value, dict):
                raise ConfigError(name, "must be a section", f"write [{name}]")
            flat |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        elif isinstance(value, dict) and name not in known:
            raise ConfigError(f"[{name}]", "there is no such section", _nearest(name, sections))
        else:
            flat[name] = value
    for key in flat:
        if key not in known:
            raise ConfigError(key, "there is no such key", _nearest(key, known))
    return flat


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"


_WORDS = {bool: "true or false", str: 'text, as "…"', float: "a number", dict: "a table of texts"}
_WORDS[int] = "a whole number"
_WORDS[list] = "a list of texts"


def _checked(known: Key, value: Any) -> Any:
    kind = known.kind
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    is_odd = (kind is int and isinstance(value, bool)) or (isinstance(value, list) and not _are_texts(value))
    if not isinstance(value, kind) or is_odd:
        raise ConfigError(known.name, f"{value!r} cannot be used", f"write {_WORDS[kind]}")
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(inner, str):
                raise ConfigError(f"{known.name}.{name}", f"{inner!r} cannot be used", f"write {_WORDS[str]}")
    return value


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _parsed(known: Key, text: str) -> Any:
    """A value from the environment, where everything is text."""
    kind = known.kind
    if kind is bool:
        return _checked(known, {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text))
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(known.variable, f"{text!r} cannot be used", f"write {_WORDS[kind]}") from None
    if kind is list:
        return text.split(",")
    if kind is dict:
        pairs = [pair.partition("=") for pair in text.split(",")]
        if not all(name and sign for name, sign, _ in pairs):
            raise ConfigError(known.variable, f"{text!r} cannot be used", "write name=value,name=value")
        return {name: value for name, _, value in pairs}
    return text
