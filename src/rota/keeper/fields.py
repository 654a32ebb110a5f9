"""What the agent says in JSON -> values of the kind that is wanted, or what is wrong and would be right."""

from typing import Any


class Malformed(ValueError):
    """An order that cannot be understood; its text says what would be."""


def is_kind(value: object, field: str, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise Malformed(f"{field}: want {wanted}")
    return value


def number(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise Malformed(f"{field}: want a whole number, 0 or more")
    return value


def maybe(value: object, field: str) -> int | None:
    return None if value is None else number(value, field)


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
    said = is_kind(value, field, dict, "an object of whole numbers")
    return {text(name, field): number(amount, f"{field}.{name}") for name, amount in said.items()}
