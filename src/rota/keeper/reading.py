"""Values of a message -> what they have to be, or Malformed: which of them is wrong, and what is wanted."""

from typing import Any


class Malformed(ValueError):
    """An order that cannot be understood; its text says what would be."""


def of_kind(value: object, field: str, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise Malformed(f"{field}: want {wanted}")
    return value


def number(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise Malformed(f"{field}: want a whole number, 0 or more")
    return value


def number_or_none(value: object, field: str) -> int | None:
    return None if value is None else number(value, field)


def mask(value: object) -> int:
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
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write and no file system can
        return False
    return True


def amounts(value: object, field: str) -> dict[str, int]:
    amounts = of_kind(value, field, dict, "an object of whole numbers")
    return {text(name, field): number(amount, f"{field}.{name}") for name, amount in amounts.items()}
