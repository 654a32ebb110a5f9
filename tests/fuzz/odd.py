"""Odd values: every limit and its neighbours, wrong types, and difficult texts."""

from random import Random
from typing import Any

from rota.model import limits

_BOUNDS = sorted({value for value in vars(limits).values() if isinstance(value, int)})

NUMBERS: tuple[int | float, ...] = (
    *(0, 1, -1, 2, 255, 256, 65_535, 65_536, 10**400, -(10**400)),
    *(
        bound + more
        for power in (15, 16, 31, 32, 53, 63, 64)
        for bound in (2**power, -(2**power))
        for more in (-1, 0, 1)
    ),
    *(bound + more for bound in _BOUNDS for more in (-1, 0, 1)),
    *(0.0, -0.0, 0.001, 0.1, 1.5, 5e-324, 1e-7, 1e15, 1.7e308, float("nan"), float("inf"), float("-inf")),
)
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\n",
        "a\nb",
        "\t",
        "\x1b[31mred",
        "\x7f",
        "\ud800",
        "a\udfffb",
        "\ufeff",
        "\u202egnp",
    ),
    *("é", "e\u0301", "ß", "İ", "𝔘", "👩\u200d👩\u200d👧", "日本", "٣", "²", "\u2028"),
    *(
        "/",
        "//",
        "/.",
        ".",
        "..",
        "../fuzz-escape",
        "/nonexistent/fuzz",
        "/proc/1/root",
        "/dev/null/x",
        "~",
        "C:\\",
    ),
    *(
        "-",
        "--",
        "--help",
        "%s%n",
        "${HOME}",
        "$(true)",
        "`true`",
        "'",
        '"',
        "\\",
        "{}",
        "a=b",
        "=",
        "a,b",
        "a b",
        "*",
    ),
    *(
        "0",
        "-1",
        "1e9",
        "1e400",
        "0x10",
        "1_000",
        "NaN",
        "inf",
        "10" * 200,
        "1.5.5",
        "99999999999h",
        "-5s",
        "5 s",
    ),
    *(
        "true",
        "null",
        "last",
        "tasks",
        "cpu",
        "node",
        "default",
        "system",
        "__class__",
        "0001-01-01T00:00:00Z",
    ),
    *(
        "a" * length
        for length in (127, 128, 129, 255, 256, 257, 300, 1024, 1025, 4095, 4096, 4097, 8193, 70_000)
    ),
    "é" * 200,
    "/" + "a" * 300,
    "/a" * 2048,
)
SHAPES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [{}], [None], {"": ""}, {"a": None}, {"\0": 1}, {"a": {"a": {}}}),
    *(["a"] * 33, ["a"] * 1001, {f"k{n}": n for n in range(65)}, {"a" * 300: "a" * 300}, {"ü": "ü"}),
)


def odd(rng: Random) -> Any:
    """Draw an odd value, sometimes a table or a list of odd entries."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(SHAPES)
    if kind == 1:
        return [scalar(rng) for _ in range(rng.randrange(1, 4))]
    if kind == 2:
        return {rng.choice(TEXTS): scalar(rng) for _ in range(rng.randrange(1, 3))}
    return scalar(rng)


def scalar(rng: Random) -> Any:
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.choice(TEXTS)


def bent(rng: Random, value: Any) -> Any:
    """A plausible value with one part made odd: an entry, a name, a number or a text within it."""
    match value:
        case dict() if value and rng.random() < 0.8:
            name = rng.choice(sorted(value))
            if rng.random() < 0.2:
                return {**value, rng.choice(TEXTS): value[name]}
            return {**value, name: bent(rng, value[name])}
        case list() if value and rng.random() < 0.8:
            at = rng.randrange(len(value))
            if rng.random() < 0.2:
                return value * rng.choice((0, 2, 40, 1001))
            return [*value[:at], bent(rng, value[at]), *value[at + 1 :]]
        case str() if rng.random() < 0.6:
            at = rng.randrange(len(value) + 1)
            return value[:at] + rng.choice(TEXTS) + value[at:]
        case bool():
            return odd(rng)
        case int() | float() if rng.random() < 0.5:
            return rng.choice((-value, value + 0.5, str(value), [value], f"{value}"))
        case _:
            return odd(rng)
