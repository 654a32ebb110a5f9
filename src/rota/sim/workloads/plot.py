"""Figures -> a self-contained SVG plot, as text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import NamedTuple

from rota.sim.workloads.figures import Timeline
from rota.sim.workloads.sizes import Sizes

WIDTH = 760
LEFT, RIGHT = 72, 36  # margins of a panel, for its numbers
COLOURS = ("#3e7cb1", "#c8553d", "#4c956c", "#8e6c8a", "#b8860b", "#52606d")
INK, FAINT, GRID, PAPER = "#1f2933", "#616e7c", "#e4e7eb", "#fbfcfd"
TICKS_MAX = 8  # of the time axis; more would overlap
UNITS = (("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400))
STEPS = {
    "seconds": (1, 2, 5, 10, 15, 30),
    "minutes": (1, 2, 5, 10, 15, 30),
    "hours": (1, 2, 3, 6, 12),
    "days": (1, 2, 5, 7, 14, 30, 60, 90, 180, 365),
}

Point = tuple[float, float]


class Tick(NamedTuple):
    """Position and label of a grid line; an empty label makes it fainter."""

    value: float
    label: str


class Axis(NamedTuple):
    """Values from low to high -> pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[Tick, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            math.log10(number) if self.log else number for number in (self.low, self.high, value)
        )
        share = (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def over_time(title: str, runs: Mapping[str, Timeline]) -> str:
    """Utilisation above, waiting tasks below, on one time axis; a line for each run."""
    end_ms = max((_end_ms(run) for run in runs.values()), default=1000.0)
    most = max((value for run in runs.values() for value in run.waiting), default=0.0)
    unit, ticks = _time_ticks(end_ms)
    x = Axis(0.0, end_ms, LEFT, WIDTH - RIGHT, ticks)
    share = Axis(0.0, 1.0, 226, 96, tuple(Tick(part / 4, f"{part * 25} %") for part in range(5)))
    length = _from_zero(most, 400, 270)
    parts = [
        _legend(runs, 56),
        _panel("utilisation", x, share, below=False),
        *_lines({name: _points(run, run.utilisation) for name, run in runs.items()}, x, share, filled=True),
        _panel("tasks waiting", x, length, below=True),
        *_lines({name: _points(run, run.waiting) for name, run in runs.items()}, x, length, filled=True),
        _text((LEFT + WIDTH - RIGHT) / 2, 438, unit, anchor="middle", fill=FAINT),
    ]
    return _document(title, 456, parts)


def sizes_over_time(title: str, runs: Mapping[str, Sizes]) -> str:
    """Nodes beside what waits and runs, above; waiting tasks below; a line for each run."""
    demand = next(iter(runs.values()))
    end_ms = max(2 * run.at_ms[-1] - run.at_ms[-2] for run in runs.values())
    unit, ticks = _time_ticks(end_ms)
    x = Axis(0.0, end_ms, LEFT, WIDTH - RIGHT, ticks)
    many = max(value for run in runs.values() for value in (*run.nodes, *run.demand))
    nodes, length = (
        _from_zero(many, 246, 96),
        _from_zero(max(max(run.waiting) for run in runs.values()), 400, 290),
    )
    lines = {"asked for": demand.demand} | {name: run.nodes for name, run in runs.items()}
    below: dict[str, Sequence[float]] = {"asked for": ()}  # keeps the colours of the runs
    below |= {name: run.waiting for name, run in runs.items()}
    parts = [
        _legend(lines, 56),
        _panel("nodes, and what waits and runs as full nodes", x, nodes, below=False),
        *_lines(_against(demand.at_ms, lines), x, nodes, filled=False),
        _panel("tasks waiting", x, length, below=True),
        *_lines(_against(demand.at_ms, below), x, length, filled=False),
        _text((LEFT + WIDTH - RIGHT) / 2, 438, unit, anchor="middle", fill=FAINT),
    ]
    return _document(title, 456, parts)


def _against(at_ms: Sequence[float], lines: Mapping[str, Sequence[float]]) -> dict[str, list[Point]]:
    return {name: list(zip(at_ms, values, strict=False)) for name, values in lines.items()}


def log_log(title: str, labels: tuple[str, str], lines: Mapping[str, Sequence[Point]]) -> str:
    """Both axes logarithmic, so that proportion is a straight line; points at 0 or below are not shown."""
    shown = {name: [point for point in points if min(point) > 0] for name, points in lines.items()}
    x = _logarithmic((point[0] for points in shown.values() for point in points), LEFT, WIDTH - RIGHT)
    y = _logarithmic((point[1] for points in shown.values() for point in points), 380, 110)
    parts = [
        _legend(lines, 56),
        _panel(labels[1], x, y, below=True),
        *_lines(shown, x, y, filled=False),
        *_dots(shown, x, y),
        _text((LEFT + WIDTH - RIGHT) / 2, 418, labels[0], anchor="middle", fill=FAINT),
    ]
    return _document(title, 436, parts)


def _end_ms(run: Timeline) -> float:
    """Length of a run; points are in the middle of their spans."""
    return 2 * _half_ms(run) * len(run.at_ms) or 1000.0


def _half_ms(run: Timeline) -> float:
    return (run.at_ms[1] - run.at_ms[0]) / 2 if len(run.at_ms) > 1 else 0.0


def _points(run: Timeline, values: Sequence[float]) -> list[Point]:
    """Points relative to the start of the run."""
    begin_ms = run.at_ms[0] - _half_ms(run) if run.at_ms else 0.0
    return [(at_ms - begin_ms, value) for at_ms, value in zip(run.at_ms, values, strict=True)]


def _time_ticks(end_ms: float) -> tuple[str, tuple[Tick, ...]]:
    for unit, seconds in UNITS:
        for step in STEPS[unit]:
            if end_ms / (step * seconds * 1000) <= TICKS_MAX:
                return unit, _every(step, seconds * 1000, end_ms)
    step = math.ceil(end_ms / (TICKS_MAX * 86_400_000))
    return "days", _every(step, 86_400_000, end_ms)


def _every(step: int, unit_ms: int, end_ms: float) -> tuple[Tick, ...]:
    numbers = range(0, math.floor(end_ms / unit_ms + 1e-6) + 1, step)
    return tuple(Tick(number * unit_ms, f"{number:,}") for number in numbers)


def _from_zero(most: float, start: float, end: float) -> Axis:
    """An axis from 0 to a round number that is at least `most`."""
    rough = max(most, 1.0) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(1.0, next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= rough))
    count = max(1, math.ceil(most / step))
    ticks = tuple(Tick(number * step, f"{number * step:,.10g}") for number in range(count + 1))
    return Axis(0.0, count * step, start, end, ticks)


def _logarithmic(values: Iterable[float], start: float, end: float) -> Axis:
    """An axis of whole decades around all values, with fainter lines at 2 and 5 of each."""
    found = list(values) or [1.0]
    first, last = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    last = max(last, first + 1)
    decades = [Tick(10.0**power, f"{10.0**power:,.10g}") for power in range(first, last + 1)]
    between = [Tick(times * decade.value, "") for decade in decades[:-1] for times in (2, 5)]
    return Axis(10.0**first, 10.0**last, start, end, (*decades, *between), log=True)


def _panel(label: str, x: Axis, y: Axis, *, below: bool) -> str:
    """Grid, numbers and label of a panel; `below`: with the numbers of the x axis."""
    rows = [f'<path d="M{x.start:g} {y(tick.value):.1f}H{x.end:g}"{_dashes(tick)}/>' for tick in y.ticks]
    columns = [f'<path d="M{x(tick.value):.1f} {y.start:g}V{y.end:g}"{_dashes(tick)}/>' for tick in x.ticks]
    numbers = [_text(x.start - 8, y(tick.value) + 4, tick.label, anchor="end") for tick in y.ticks]
    if below:
        numbers += [_text(x(tick.value), y.start + 18, tick.label, anchor="middle") for tick in x.ticks]
    return "\n".join(
        [
            f'<g stroke="{GRID}" fill="none">',
            *rows,
            *columns,
            f'<path d="M{x.start:g} {y.start:g}H{x.end:g}" stroke="{FAINT}"/>',
            "</g>",
            f'<g font-size="12" fill="{FAINT}">',
            *filter(None, numbers),
            "</g>",
            _text(x.start, y.end - 10, label, fill=INK, weight=600),
        ]
    )


def _dashes(tick: Tick) -> str:
    return "" if tick.label else ' stroke-dasharray="2 3"'


def _lines(lines: Mapping[str, Sequence[Point]], x: Axis, y: Axis, *, filled: bool) -> Iterable[str]:
    """Lines; a single one is filled below, several would hide each other."""
    for colour, points in zip(cycle(COLOURS), lines.values(), strict=False):
        if not points:
            continue
        pixels = [(x(across), y(up)) for across, up in points]
        path = "M" + "L".join(f"{across:.1f} {up:.1f}" for across, up in pixels)
        if filled and len(lines) == 1:
            area = f"{path}L{pixels[-1][0]:.1f} {y.start:g}L{pixels[0][0]:.1f} {y.start:g}Z"
            yield f'<path d="{area}" fill="{colour}" fill-opacity="0.15"/>'
        yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>'


def _dots(lines: Mapping[str, Sequence[Point]], x: Axis, y: Axis) -> Iterable[str]:
    for colour, points in zip(cycle(COLOURS), lines.values(), strict=False):
        for across, up in points:
            yield f'<circle cx="{x(across):.1f}" cy="{y(up):.1f}" r="3.5" fill="{colour}"/>'


def _legend(names: Iterable[str], y: float) -> str:
    parts, x = [], float(LEFT)
    for colour, name in zip(cycle(COLOURS), names, strict=False):
        parts.append(f'<path d="M{x:g} {y - 4:g}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(x + 24, y, name))
        x += 24 + 7 * len(name) + 20
    return "\n".join(parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = "", weight: int = 0) -> str:
    if not text:
        return ""
    more = (f' fill="{fill}"' if fill else "") + (f' font-weight="{weight}"' if weight else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _document(title: str, height: int, parts: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"',
            f'     width="{WIDTH}" height="{height}" fill="{INK}"',
            '     font-family="system-ui, sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{PAPER}"/>',
            f'<text x="{LEFT}" y="32" font-size="17" font-weight="600">{escape(title)}</text>',
            *filter(None, parts),
            "</svg>",
            "",
        ]
    )
