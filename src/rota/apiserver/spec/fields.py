"""One value of a request -> what it stands for, or an error that names the field and what is accepted."""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from rota.model.cluster import MACHINE
from rota.model.errors import BadField, Rejected
from rota.model.limits import (
    ENV_BYTES_MAX,
    LABEL_VALUE_MAX,
    LABELS_MAX,
    NAME_LENGTH_MAX,
    PATH_BYTES_MAX,
    PATH_PART_BYTES_MAX,
    WHERE_MAX,
)
from rota.model.names import LABEL, NAME, NAME_HINT, RESERVED_RESOURCES
from rota.model.node import DIALLED
from rota.rules.node_labels import PREFIX

TEXT_MAX = 1024  # a reason given by a person
TERM_MAX = 8192  # one condition: a list of values, each of which fits a line

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_RESERVED_LABELS = ("node", "cluster", MACHINE, DIALLED)  # by which Rota itself knows nodes


def decode_json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except UnicodeDecodeError as error:
        raise Rejected(f"the body is not UTF-8: its byte {error.start} is wrong") from None
    except msgspec.DecodeError as error:
        raise Rejected(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Rejected("the body is nested too deeply") from None


def known_fields(body: object, known: Iterable[str]) -> Mapping[str, Any]:
    """A JSON object with no other fields than these."""
    if not isinstance(body, dict):
        raise Rejected(
            "the body is not a JSON object", hint='write {"command": ["echo", "hello"]} or the like'
        )
    names = list(known)
    for field in body:
        if not isinstance(field, str) or field not in names:
            near = get_close_matches(str(field)[:NAME_LENGTH_MAX], names, 1)
            hint = f"did you mean {near[0]}?" if near else f"known fields: {', '.join(names)}"
            raise BadField(printable(str(field)), "is not a known field", hint)
    return body


def known_parameters(said: Iterable[str], known: Iterable[str]) -> None:
    """A query with no other parameters than these."""
    names = list(known)
    for name in said:
        if name not in names:
            near = get_close_matches(name[:NAME_LENGTH_MAX], names, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names) or 'none'}"
            raise BadField(printable(name), "is not a parameter of this address", hint)


def number(field: str, parse: Callable[..., T], value: object, *bounds: float) -> T:
    """What a parser of rota.model.amounts makes of it; numbers too large for any arithmetic among them."""
    try:
        return parse(field, value, *bounds)
    except (OverflowError, ValueError):
        raise BadField(field, "is out of range", "write a smaller number") from None


def text(field: str, value: object, longest: int = TEXT_MAX) -> str:
    if not isinstance(value, str):
        raise BadField(field, "is not a text", 'write it in quotes: "..."')
    if not value:
        raise BadField(field, "is empty", "write at least one character, or leave it out")
    if len(value) > longest:
        raise BadField(field, f"is {len(value)} characters long", f"write at most {longest} characters")
    return no_nul(field, value)


def no_nul(field: str, value: str) -> str:
    """What a process can be given."""
    if "\0" in value:
        raise BadField(field, "holds a NUL byte", "leave it out: no process can be given one")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadField(field, "is not valid Unicode", "write it as UTF-8") from None
    return value


def name(field: str, value: object) -> str:
    given = text(field, value, NAME_LENGTH_MAX)
    if NAME.fullmatch(given) is None:
        raise BadField(field, f"'{printable(given)}' is not a name", NAME_HINT)
    return given


def resource(field: str, value: object) -> str:
    """The name of a resource that nodes may offer."""
    given = name(field, value)
    if given in RESERVED_RESOURCES:
        raise BadField(field, f"'{given}' is a name of Rota's own", "choose another name for the resource")
    return given


def path(field: str, value: object) -> str:
    """An absolute path that a machine can have."""
    given = text(field, value, PATH_BYTES_MAX)
    if not given.startswith("/"):
        raise BadField(field, f"'{printable(given)}' is not an absolute path", "write /path/to/it")
    return check_path_lengths(field, given)


def check_path_lengths(field: str, given: str) -> str:
    """The path, if the kernel takes names of these lengths."""
    if len(given.encode()) > PATH_BYTES_MAX:
        problem = f"is {len(given.encode())} bytes long"
        raise BadField(field, problem, f"write at most {PATH_BYTES_MAX} bytes")
    for part in given.split("/"):
        if len(part.encode()) > PATH_PART_BYTES_MAX:
            problem = f"'{printable(part)}...' is too long for a file or directory"
            raise BadField(field, problem, f"write at most {PATH_PART_BYTES_MAX} bytes between two slashes")
    return given


def one_of(field: str, value: object, kind: type[E]) -> E:
    try:
        return kind(value)  # type: ignore[arg-type]  # anything may be asked for
    except ValueError:
        raise BadField(field, "is not one of them", f"write one of: {', '.join(kind)}") from None


def labels(field: str, value: object) -> dict[str, str]:
    pairs = _mapping(field, value)
    if len(pairs) > LABELS_MAX:
        raise BadField(field, f"has {len(pairs)} entries", f"write at most {LABELS_MAX}")
    for key, given in pairs.items():
        if LABEL.fullmatch(key) is None or len(key) > NAME_LENGTH_MAX:
            hint = "use letters, digits, '.', '_', '-' and '/'"
            raise BadField(field, f"'{printable(key)}' is not a label's name", hint)
        if not isinstance(given, str) or len(given) > LABEL_VALUE_MAX:
            hint = f"write a text of at most {LABEL_VALUE_MAX} characters"
            raise BadField(field, f"the value of {key} is not a short text", hint)
        no_nul(field, given)
    return dict(sorted(pairs.items()))


def granted_labels(field: str, value: object) -> dict[str, str]:
    """Labels of nodes, by an operator's word: not those that say which node it is, nor marked ones."""
    found = labels(field, value)
    for key in found:
        require_grantable(field, key)
    return found


def require_grantable(field: str, key: str) -> None:
    if key in _RESERVED_LABELS or key.startswith(PREFIX):
        hint = f"write another than {', '.join(_RESERVED_LABELS)}, and no {PREFIX!r}, which Rota adds itself"
        raise BadField(field, f"'{printable(key)}' cannot be granted", hint)


def environment(field: str, value: object) -> dict[str, str]:
    pairs = _mapping(field, value)
    size = 0
    for key, given in pairs.items():
        if ENV_NAME.fullmatch(key) is None:
            hint = "use letters, digits and '_', the first no digit"
            raise BadField(field, f"'{printable(key)}' is not a variable's name", hint)
        if not isinstance(given, str):
            raise BadField(field, f"the value of {key} is not a text", 'write it in quotes: "..."')
        size += len(key) + len(no_nul(field, given).encode()) + 2
    if size > ENV_BYTES_MAX:
        raise BadField(field, f"is {size} bytes long", f"write at most {ENV_BYTES_MAX}; pass files for more")
    return dict(sorted(pairs.items()))


def flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadField(field, "is neither true nor false", "write true or false, without quotes")
    return value


def texts(field: str, value: object, hint: str) -> list[str]:
    """A text, or a list of texts."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise BadField(field, "is neither a text nor a list of texts", hint)
    if len(given) > WHERE_MAX:
        raise BadField(field, f"has {len(given)} entries", f"write at most {WHERE_MAX}")
    for one in given:
        if len(no_nul(field, one)) > TERM_MAX:
            raise BadField(
                field, f"'{printable(one)}...' is too long", f"write at most {TERM_MAX} characters"
            )
    return given


def label_name(field: str, value: str, hint: str) -> str:
    if LABEL.fullmatch(value) is None or len(value) > NAME_LENGTH_MAX:
        raise BadField(field, f"'{printable(value)}' is not a label's name", hint)
    return value


def label_value(field: str, value: object) -> str:
    """What a node's label may be, for fields that name one."""
    return text(field, value, LABEL_VALUE_MAX).strip() or text(field, "")


def _mapping(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadField(field, "is not an object", 'write {"name": "value"}')
    return value


def printable(value: str) -> str:
    """Short and harmless on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in value[:60])
