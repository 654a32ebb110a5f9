"""Parsers of single values in orders; Malformed names the field and what would be accepted."""

from typing import Any

NUMBER_MAX = (1 << 53) - 1  # of counters
AMOUNT_MAX = 1 << 60  # of resources: as much as a job may request
MILLISECONDS_MAX = 1 << 40  # 34 years; a thread can wait 292 at most
CLOCK_NS_MAX = (1 << 63) - 1  # a reading of a clock


class Malformed(ValueError):
    """An order that cannot be parsed; the text says which field, and what would be accepted."""


def expect(value: object, field: str, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise Malformed(f"{field}: want {expected}")
    return value


def number(value: object, field: str, maximum: int = NUMBER_MAX) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise Malformed(f"{field}: want a whole number from 0 to {maximum}, got {abbreviate(value)}")
    return value


def abbreviate(value: object) -> str:
    """A value in a few characters; Python refuses to print very long numbers."""
    if type(value) is int and value.bit_length() > 64:
        return "a number of more than 19 digits"
    return f"{value!r:.60}"


def milliseconds(value: object, field: str) -> int:
    """A duration, bounded so that it can be added to any clock in nanoseconds without overflow."""
    return number(value, field, MILLISECONDS_MAX)


def milliseconds_or_none(value: object, field: str) -> int | None:
    return None if value is None else milliseconds(value, field)


def amount_or_none(value: object, field: str) -> int | None:
    return None if value is None else number(value, field, AMOUNT_MAX)


def gpu_mask(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise Malformed("gpus: want a whole number of at most 64 bits, one for each device")
    return value


def text(value: object, field: str) -> str:
    if not isinstance(value, str) or "\0" in value or not _encodable(value):
        raise Malformed(f"{field}: want text without NUL")
    return value


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can express and a file system cannot
        return False
    return True


def _variable_name(name: str) -> str:
    if not name or "=" in name:
        raise Malformed("spec.env: want names without '='")
    return text(name, "spec.env")


def argv(fields: dict[str, Any], where: str) -> tuple[str, ...]:
    field = f"{where}.argv"
    argv = tuple(text(part, field) for part in expect(fields.get("argv"), field, list, "a list"))
    if not argv or not argv[0]:
        raise Malformed(f"{field}: want a command and its arguments")
    return argv


def env(fields: dict[str, Any], where: str) -> dict[str, str]:
    env = expect(fields.get("env", {}), f"{where}.env", dict, "an object of strings")
    return {_variable_name(name): text(value, f"{where}.env.{name}") for name, value in env.items()}


def amounts(value: object, field: str) -> dict[str, int]:
    amounts = expect(value, field, dict, "an object of whole numbers")
    return {
        text(name, field): number(amount, f"{field}.{name}", AMOUNT_MAX) for name, amount in amounts.items()
    }
