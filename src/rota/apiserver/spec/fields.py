"""One value of a request -> the value in the model, or BadField with the field's name and what is accepted.

Every module that reads requests uses these functions, so that a name, a label or a duration is checked by
the same rule and refused with the same sentence everywhere.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from rota.model.amounts import EPOCH, parse_seconds
from rota.model.cluster import MACHINE
from rota.model.errors import BadField, Rejected
from rota.model.limits import (
    ENV_BYTES_MAX,
    LABEL_VALUE_MAX,
    LABELS_MAX,
    NAME_LENGTH_MAX,
    PATH_BYTES_MAX,
    PATH_PART_BYTES_MAX,
    TIMEOUT_SECONDS_MAX,
    WHERE_MAX,
)
from rota.model.names import LABEL, NAME, NAME_HINT, RESERVED_RESOURCES
from rota.model.node import DIALLED
from rota.rules.node_labels import PREFIX

TEXT_MAX = 1024  # a reason given by a person
TERM_MAX = 8192  # one constraint, which may list many values

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

PAST_HINT = "write 10m, counted back from now, or a time with its zone: 2026-12-01T08:00:00+01:00"
DEADLINE_HINT = "write 2h, counted from now, or a time with its zone: 2026-12-01T08:00:00+01:00"

# The accepted subset of ISO 8601: what fromisoformat() reads beyond it differs between versions of Python.
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):\d\d(:\d\d(\.\d{1,9})?)?(?P<zone>[Zz]|[+-]\d\d:?[0-5]\d)?", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d.*", re.ASCII | re.DOTALL)
SIGKILL = 9
SIGNAL_NUMBERS = {
    "HUP": 1,
    "INT": 2,
    "QUIT": 3,
    "ILL": 4,
    "TRAP": 5,
    "ABRT": 6,
    "BUS": 7,
    "FPE": 8,
    "KILL": SIGKILL,
    "USR1": 10,
    "SEGV": 11,
    "USR2": 12,
    "PIPE": 13,
    "ALRM": 14,
    "TERM": 15,
    "CHLD": 17,
    "CONT": 18,
    "STOP": 19,
    "TSTP": 20,
    "TTIN": 21,
    "TTOU": 22,
    "URG": 23,
    "XCPU": 24,
    "XFSZ": 25,
    "VTALRM": 26,
    "PROF": 27,
    "WINCH": 28,
    "IO": 29,
    "PWR": 30,
    "SYS": 31,
}
SIGNAL_NAMES = {number: name for name, number in SIGNAL_NUMBERS.items()}
_RESERVED_LABELS = ("node", "cluster", MACHINE, DIALLED)  # Rota sets these itself


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
    """The body, if it is a JSON object without unknown fields."""
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


def known_parameters(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a query that has an unknown parameter."""
    names = list(known)
    for name in given:
        if name not in names:
            near = get_close_matches(name[:NAME_LENGTH_MAX], names, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names) or 'none'}"
            raise BadField(printable(name), "is not a parameter of this address", hint)


def number(field: str, parse: Callable[..., T], value: object, *bounds: float) -> T:
    """The result of a parser of rota.model.amounts; numbers that overflow its arithmetic are refused, too."""
    try:
        return parse(field, value, *bounds)
    except (OverflowError, ValueError):
        raise BadField(field, "is out of range", "write a smaller number") from None


def table(field: str, value: object, known: tuple[str, ...], hint: str) -> Mapping[str, Any]:
    """The value, if it is an object without unknown entries; errors name the entry as `field.entry`."""
    if not isinstance(value, dict):
        raise BadField(field, "is not an object", hint)
    for entry in value:
        if entry not in known:
            known_hint = f"known fields: {', '.join(known)}"
            raise BadField(f"{field}.{printable(str(entry))}", "is not a known field", known_hint)
    return value


def positive_seconds(field: str, value: object) -> float:
    """A time limit: a duration that is longer than 0."""
    seconds = number(field, parse_seconds, value, TIMEOUT_SECONDS_MAX)
    if seconds == 0:
        raise BadField(field, "0 s leaves no time to run", "write 90s, 15m or 2h30m, or leave it out")
    return seconds


def text(field: str, value: object, longest: int = TEXT_MAX) -> str:
    if not isinstance(value, str):
        raise BadField(field, "is not a text", 'write it in quotes: "..."')
    if not value:
        raise BadField(field, "is empty", "write at least one character, or leave it out")
    if len(value) > longest:
        raise BadField(field, f"is {len(value)} characters long", f"write at most {longest} characters")
    return no_nul(field, value)


def no_nul(field: str, value: str) -> str:
    """The text, if a process can be given it as an argument or in its environment."""
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
    """The name of a custom resource."""
    given = name(field, value)
    if given in RESERVED_RESOURCES:
        raise BadField(field, f"'{given}' is a name of Rota's own", "choose another name for the resource")
    return given


def path(field: str, value: object) -> str:
    """An absolute path within the limits of the kernel."""
    given = text(field, value, PATH_BYTES_MAX)
    if not given.startswith("/"):
        raise BadField(field, f"'{printable(given)}' is not an absolute path", "write /path/to/it")
    return check_path_lengths(field, given)


def check_path_lengths(field: str, given: str) -> str:
    """The path, if the kernel accepts its length and those of its parts."""
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
        return kind(value)  # type: ignore[arg-type]  # any value may be requested
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
    """Labels that an operator may grant to nodes: none that Rota sets itself."""
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
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise BadField(field, "is neither a text nor a list of texts", hint)
    if len(given) > WHERE_MAX:
        raise BadField(field, f"has {len(given)} entries", f"write at most {WHERE_MAX}")
    for entry in given:
        if len(no_nul(field, entry)) > TERM_MAX:
            raise BadField(
                field, f"'{printable(entry)}...' is too long", f"write at most {TERM_MAX} characters"
            )
    return given


def label_name(field: str, value: str, hint: str) -> str:
    if LABEL.fullmatch(value) is None or len(value) > NAME_LENGTH_MAX:
        raise BadField(field, f"'{printable(value)}' is not a label's name", hint)
    return value


def label_value(field: str, value: object) -> str:
    """The value of a node label, for fields that stand for one."""
    return text(field, value, LABEL_VALUE_MAX).strip() or text(field, "")


def _mapping(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadField(field, "is not an object", 'write {"name": "value"}')
    return value


def printable(value: str) -> str:
    """The text shortened, without control characters: it is echoed in errors and shown on terminals."""
    return "".join(letter if letter.isprintable() else "?" for letter in value[:60])


def parse_deadline(field: str, value: object, wall_ms: int) -> int:
    """A duration from now, or a timestamp in the future -> wall clock in milliseconds."""
    if isinstance(value, str) and _DATE.fullmatch(value.strip()[:40]):
        at_ms = _parse_timestamp(field, value.strip()[:40])
        if at_ms <= wall_ms:
            raise BadField(field, f"{value.strip()} is over", DEADLINE_HINT)
        return at_ms
    seconds = number(field, _parse_time_left, value)
    if seconds == 0:
        raise BadField(field, "0 s leaves no time to run", DEADLINE_HINT)
    return wall_ms + round(seconds * 1000)


def parse_past_time(field: str, value: str, wall_ms: int) -> int:
    """A duration before now, or a timestamp -> wall clock in milliseconds, at least 1."""
    text = value.strip()[:40]
    if _DATE.fullmatch(text):
        return max(1, _parse_timestamp(field, text, PAST_HINT))
    try:
        seconds = number(field, parse_seconds, text, TIMEOUT_SECONDS_MAX)
    except BadField as problem:
        raise BadField(field, problem.detail.partition(": ")[2], PAST_HINT) from None
    return max(1, wall_ms - round(seconds * 1000))


def _parse_time_left(field: str, value: object) -> float:
    try:
        return parse_seconds(field, value, TIMEOUT_SECONDS_MAX)
    except BadField as problem:
        raise BadField(field, problem.detail.partition(": ")[2], DEADLINE_HINT) from None


def _parse_timestamp(field: str, text: str, hint: str = DEADLINE_HINT) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise BadField(field, f"'{printable(text)}' is not a time", hint)
    if found["zone"] is None:
        raise BadField(field, f"'{text}' has no time zone", hint)
    try:
        at = datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadField(field, f"'{text}' is not in the calendar", hint) from None
    if int(text[:4]) < 1970:
        raise BadField(field, f"'{text}' is before 1970", hint)
    return (at - EPOCH) // timedelta(milliseconds=1)


def parse_signal(field: str, value: object) -> int:
    """`USR1`, `SIGUSR1` or 10 -> the number of the signal on Linux."""
    name = str(value).upper().removeprefix("SIG")
    if name in SIGNAL_NUMBERS:
        return SIGNAL_NUMBERS[name]
    if name.isascii() and name.isdecimal() and len(name) < 3 and int(name) in SIGNAL_NAMES:
        return int(name)
    near = get_close_matches(name[:20], SIGNAL_NUMBERS, 1)
    hint = f"did you mean {near[0]}?" if near else f"write one of: {', '.join(SIGNAL_NUMBERS)}"
    raise BadField(field, f"'{printable(str(value))[:20]}' is not a signal", hint)
