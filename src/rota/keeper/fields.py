"""What a line of JSON holds -> the same, if it is what was wanted there."""

from typing import Any


class Malformed(ValueError):
    """An order that cannot be understood; its text says what would be."""


def checked(value: object, field: str, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise Malformed(f"{field}: want {wanted}")
    return value


def number(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise Malformed(f"{field}: want a whole number, 0 or more")
    return value


def maybe(value: object, field: str) -> int | None:
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


def variable(name: str) -> str:
    if not name or "=" in name:
        raise Malformed("spec.env: want names without '='")
    return text(name, "spec.env")


def amounts(value: object, field: str) -> dict[str, int]:
    amounts = checked(value, field, dict, "an object of whole numbers")
    return {text(name, field): number(amount, f"{field}.{name}") for name, amount in amounts.items()}
