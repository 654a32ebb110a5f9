"""Format and parse sizes, durations, ages, ids and ranges."""

import re
import signal
import time

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
# A range such as 1-1000000 sends one request per job; more than this is a typing error.
IDS_MAX = 10_000


def format_size(amount: float) -> str:
    """`1610612736` -> `1.5 GiB`."""
    unit = 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{amount:.1f}".removesuffix(".0") + f" {UNITS[unit]}"


def format_duration(seconds: float) -> str:
    """`0.0432` -> `0.04 s`, `9000` -> `2h30m`."""
    if seconds < 0.995:
        return f"{max(seconds, 0):.2f} s"
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{seconds_left:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02}m"
    return f"{hours // 24}d{hours % 24:02}h"


def format_age(at_ms: float | None, now_ms: float | None = None) -> str:
    """How long ago a time was, in one unit."""
    if at_ms is None:
        return "-"
    now = time.time_ns() / 1e6 if now_ms is None else now_ms
    seconds = max(0.0, (now - at_ms) / 1000)
    for unit in ("w", "d", "h", "m"):
        if seconds >= 2 * SECONDS[unit]:
            return f"{int(seconds / SECONDS[unit])}{unit}"
    return f"{int(seconds)}s"


def format_number(value: float) -> str:
    """`8.0` -> `8`."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def plural(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def signal_name(code: int) -> str:
    try:
        return f"signal {code} ({signal.Signals(code).name})"
    except ValueError:
        return f"signal {code}"


def about_job(job_id: str, sentence: str) -> str:
    """`job 12 waits: …`, or `job 12: 3 tasks wait: …`."""
    return f"job {job_id}{' ' if sentence.startswith('wait') else ': '}{clean(sentence)}"


def clean(text: str) -> str:
    """Text of other users, without characters that could control the terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def parse_duration(text: str) -> float:
    """`90s`, `15m`, `2h30m`, `1.5h` or plain seconds -> seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdw])", text)
    if not parts or "".join(amount + unit for amount, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write 90s, 15m or 2h30m")
    return sum(float(amount) * SECONDS[unit] for amount, unit in parts)


def parse_ids(text: str) -> list[str]:
    """`1,3,5-8` -> each id; anything else (a name, `last`) stays as it is."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return [text]
    return [str(number) for number in parse_ranges(text)]


def parse_ranges(text: str) -> list[int]:
    """`1,3,5-8` -> 1, 3, 5, 6, 7, 8."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise ValueError(f"{part!r} is not a number or a range; write 1,3,5-8")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{part!r} goes backwards; write {last}-{first}")
        if last - first + len(found) >= IDS_MAX:
            raise ValueError(f"{text!r} has more than {IDS_MAX}")
        found |= dict.fromkeys(range(first, last + 1))
    return list(found)


def parse_array(text: str) -> tuple[int, int | None]:
    """`0-99%8` -> 100 tasks, at most 8 at once."""
    match = re.fullmatch(r"(\d+)-(\d+)(?:%(\d+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not an array; write 0-99, or 0-99%8 for at most 8 at once")
    first, last = int(match[1]), int(match[2])
    if first != 0:
        raise ValueError(
            f"{text!r} starts at {first}; an array starts at 0, so write 0-{max(0, last - first)}"
        )
    parallel = int(match[3]) if match[3] else None
    if parallel == 0:
        raise ValueError(f"{text!r} lets no task run; write at least %1")
    return last + 1, parallel


def split_ref(text: str) -> tuple[str, int | None]:
    """`12.3` or `last.3` -> job and index; a name keeps its dots (`train.py`, `python3.11`)."""
    match = re.fullmatch(r"(last|[0-9a-f]*\d[0-9a-f]*)\.(\d+)", text)
    return (match[1], int(match[2])) if match else (text, None)
