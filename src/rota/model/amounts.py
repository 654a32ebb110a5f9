"""Amounts of resources, durations and times: parsing and formatting.

Cpu and gpu are in thousandths, memory and disk in bytes, other resources in whole numbers.
"""

import re
from datetime import UTC, datetime, timedelta

from rota.model import limits
from rota.model.errors import BadField

CPU, MEMORY, DISK, GPU = "cpu", "memory", "disk", "gpu"
TASKS = "tasks"  # counted like a resource in quotas: live tasks, whatever they request
WHOLE_GPU = 1000  # thousandths of a device
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_MS = 60_000

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([kmgtp])i?)?b?", re.IGNORECASE)
_PARTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.IGNORECASE)
_WHOLE = re.compile(r"-?[0-9]+")
_INEXACT = 1e-6  # tolerated rounding error, in thousandths
_TEXT_MAX = 40  # characters: no sensible number is longer
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(field: str, value: object) -> int:
    """512m, 4g, 1.5Gi, 1024 or a number of bytes -> bytes."""
    hint = "write 512m, 4g, 1.5Gi or a number of bytes"
    if isinstance(value, str):
        match = _SIZE.fullmatch(_short(field, value, hint))
        if match is None:
            raise BadField(field, f"'{value}' is not a size", hint)
        value = float(match[1]) * _UNITS[(match[2] or "").lower()]
    return round(_bounded(field, value, limits.AMOUNT_MAX, hint))


def parse_cpu(field: str, value: object) -> int:
    """Cores as a number (0.5, 2), "2" or "500m" -> thousandths."""
    hint = "write a number of cores: 0.5, 2, or 500m for half a core"
    if isinstance(value, str):
        text = _short(field, value, hint).lower()
        scale = 0.001 if text.endswith("m") else 1.0
        try:
            value = float(text.removesuffix("m")) * scale
        except ValueError:
            raise BadField(field, f"'{value}' is not a number of cores", hint) from None
    return round(_bounded(field, value, limits.CPU_MILLI_MAX // 1000, hint) * 1000)


def parse_gpu(field: str, value: object, high: int) -> int:
    """Devices as a whole number (2), or a part of one (0.5) -> thousandths."""
    hint = f"write a whole number up to {high}, or a part below 1 with at most three decimals: 0.5"
    if isinstance(value, str):
        try:
            value = float(_short(field, value, hint))
        except ValueError:
            raise BadField(field, f"'{value}' is not a number of GPUs", hint) from None
    amount = _bounded(field, value, high, hint)
    thousandths = round(amount * 1000)
    if amount > 1 and thousandths % 1000:
        raise BadField(field, f"{_brief(amount)} is neither whole devices nor a part of one", hint)
    if abs(amount * 1000 - thousandths) > _INEXACT:
        raise BadField(field, f"{_brief(amount)} has more than three decimals", hint)
    return thousandths


def parse_count(field: str, value: object, low: int, high: int) -> int:
    hint = f"write a whole number from {low} to {high}"
    if isinstance(value, str) and _WHOLE.fullmatch(_short(field, value, hint)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadField(field, "is not a whole number", hint)
    if not low <= value <= high:
        raise BadField(field, f"{_brief(value)} is out of range", hint)
    return value


def parse_seconds(field: str, value: object, high: float) -> float:
    """90s, 15m, 2h30m, or a number of seconds -> seconds."""
    hint = "write 90s, 15m, 2h30m or a number of seconds"
    if isinstance(value, str):
        text = _short(field, value, hint)
        parts = _PARTS.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            value = sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
        else:
            try:
                value = float(text)
            except ValueError:
                raise BadField(field, f"'{value}' is not a duration", hint) from None
    return float(_bounded(field, value, high, hint))


def show_size(size: int) -> str:
    """Bytes with a unit: 7.2 GiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit always returns")


def show_amount(resource: str, amount: int) -> str:
    match resource:
        case "cpu" | "gpu":
            return f"{amount / 1000:g} {resource}"
        case "memory" | "disk":
            return show_size(amount)
        case _:
            return f"{amount} {resource}"


def format_utc(wall_ms: int) -> str:
    """A wall clock time as 2026-11-16T02:00:00Z, with milliseconds unless they are 0."""
    at = EPOCH + timedelta(milliseconds=wall_ms)
    text = at.isoformat(timespec="milliseconds" if at.microsecond else "seconds")
    return text.replace("+00:00", "Z")


def _bounded(field: str, value: object, high: float, hint: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadField(field, "is not a number", hint)
    if not 0 <= value <= high:  # also refuses NaN
        raise BadField(field, f"{_brief(value)} is out of range", hint)
    return value


def _short(field: str, text: str, hint: str) -> str:
    if len(text) > _TEXT_MAX:
        raise BadField(field, f"'{text[:_TEXT_MAX]}...' is too long for a number", hint)
    return text.strip()


def _brief(value: int | float) -> str:
    """A number in a few characters, also one of a million digits."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value.bit_length() <= 64 else "a number of more than 19 digits"
