"""One value of a request -> what it stands for, or an error that names the field and what is accepted."""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from rota.model.errors import BadField, Rejected
from rota.model.job import Constraint, Op
from rota.model.limits import ENV_BYTES_MAX, NAME_LENGTH_MAX, WHERE_MAX

LABELS_MAX = 64  # per job or node: each is shown in lists and sent along
LABEL_VALUE_MAX = 256  # fits a line
TEXT_MAX = 1024  # a reason given by a person

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONDITION = re.compile(
    r"\s*(?P<label>[^\s=!<>,]+)\s*(?P<op>==|!=|<=|>=|=|<|>|\bnot\s+in\b|\bin\b|\bexists\b)\s*(?P<rest>.*?)\s*",
    re.DOTALL,
)
_WHERE_HINT = "write 'region == eu', 'arch in x86_64,arm64', 'gpu_model exists' or 'ram_gb > 8'"

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


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
            near = get_close_matches(str(field), names, 1)
            hint = f"did you mean {near[0]}?" if near else f"known fields: {', '.join(names)}"
            raise BadField(_printable(str(field)), "is not a known field", hint)
    return body


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
        hint = "use letters, digits, '.', '_' and '-', the first a letter or digit"
        raise BadField(field, f"'{_printable(given)}' is not a name", hint)
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
            raise BadField(field, f"'{_printable(key)}' is not a label's name", hint)
        if not isinstance(given, str) or len(given) > LABEL_VALUE_MAX:
            hint = f"write a text of at most {LABEL_VALUE_MAX} characters"
            raise BadField(field, f"the value of {key} is not a short text", hint)
        no_nul(field, given)
    return dict(sorted(pairs.items()))


def environment(field: str, value: object) -> dict[str, str]:
    pairs = _mapping(field, value)
    size = 0
    for key, given in pairs.items():
        if ENV_NAME.fullmatch(key) is None:
            hint = "use letters, digits and '_', the first no digit"
            raise BadField(field, f"'{_printable(key)}' is not a variable's name", hint)
        if not isinstance(given, str):
            raise BadField(field, f"the value of {key} is not a text", 'write it in quotes: "..."')
        size += len(key) + len(no_nul(field, given).encode()) + 2
    if size > ENV_BYTES_MAX:
        raise BadField(field, f"is {size} bytes long", f"write at most {ENV_BYTES_MAX}; pass files for more")
    return dict(sorted(pairs.items()))


def constraints(field: str, value: object) -> tuple[Constraint, ...]:
    if not isinstance(value, list):
        raise BadField(field, "is not a list", _WHERE_HINT)
    if len(value) > WHERE_MAX:
        raise BadField(field, f"has {len(value)} conditions", f"write at most {WHERE_MAX}")
    return tuple(constraint(field, one) for one in value)


def constraint(field: str, value: object) -> Constraint:
    """region == eu"""
    if not isinstance(value, str):
        raise BadField(field, "a condition is not a text", _WHERE_HINT)
    found = _CONDITION.fullmatch(no_nul(field, value))
    if found is None:
        raise BadField(field, f"'{_printable(value)}' is not a condition", _WHERE_HINT)
    label, sign, rest = found["label"], " ".join(found["op"].split()), found["rest"]
    if LABEL.fullmatch(label) is None or len(label) > NAME_LENGTH_MAX:
        raise BadField(field, f"'{_printable(label)}' is not a label's name", _WHERE_HINT)
    if sign not in list(Op):
        instead = {"=": "==", "<=": "<", ">=": ">"}[sign]
        raise BadField(field, f"'{_printable(value)}' uses {sign}", f"write '{label} {instead} {rest}'")
    return Constraint(label, Op(sign), _operands(field, Op(sign), value, rest))


def _operands(field: str, op: Op, condition: str, rest: str) -> tuple[str, ...]:
    shown = _printable(condition)
    values: tuple[str, ...] = (_unquoted(rest),)
    match op:
        case Op.EXISTS:
            if rest:
                raise BadField(field, f"'{shown}' has something after exists", "write 'gpu_model exists'")
            return ()
        case Op.IN | Op.NOT_IN:
            values = tuple(_unquoted(part) for part in rest.split(","))
        case Op.LESS | Op.MORE:
            _check_number(field, shown, values[0])
        case Op.EQUAL | Op.UNEQUAL:
            pass
    if not all(values) or any(len(one) > LABEL_VALUE_MAX for one in values):
        raise BadField(field, f"'{shown}' compares with nothing, or with too much", _WHERE_HINT)
    return values


def _check_number(field: str, shown: str, value: str) -> None:
    try:
        float(value)
    except ValueError:
        raise BadField(field, f"'{shown}' compares with no number", "write 'ram_gb > 8'") from None


def _unquoted(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _mapping(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadField(field, "is not an object", 'write {"name": "value"}')
    return value


def _printable(value: str) -> str:
    """Short and harmless on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in value[:60])
