"""Rows of tasks that ran -> utilisation of the nodes and waiting times of the tasks."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rota.model.errors import Rejected
from rota.sim.workloads.files import BadWorkload
from rota.sim.workloads.model import LeftOut
from rota.sim.workloads.traces import SwfJob, read_log

TAU_MS = 10_000  # bounded slowdown counts shorter runs as this long, or any wait of theirs would dominate
POINTS = 240  # of a timeline: one for every three pixels of a plot


class TaskRun(NamedTuple):
    """A task that has ended: started and ended are those of its last attempt."""

    job: str
    task: int
    cpu_milli: int
    submitted_ms: int
    started_ms: int
    ended_ms: int
    attempts: int = 1


class Timeline(NamedTuple):
    """Columns of equal length: means over equal spans of time, each named by its middle."""

    at_ms: list[float]
    utilisation: list[float]  # share of all cpu
    waiting: list[float]  # tasks submitted and not started


class Figures(NamedTuple):
    """Figures of a run, simulated or logged."""

    tasks: int
    span_ms: int  # from the first submission to the last end
    utilisation: float
    wait_mean_ms: float
    wait_p50_ms: int
    wait_p95_ms: int
    wait_max_ms: int
    slowdown_mean: float  # bounded, by TAU_MS
    restarts: int
    tasks_per_second: float


def figures(rows: Sequence[TaskRun], cpu_milli: int) -> Figures:
    if not rows:
        return Figures(0, 0, 0.0, 0.0, 0, 0, 0, 0.0, 0, 0.0)
    span_ms = max(row.ended_ms for row in rows) - min(row.submitted_ms for row in rows)
    waits = sorted(row.started_ms - row.submitted_ms for row in rows)
    busy = sum(row.cpu_milli * (row.ended_ms - row.started_ms) for row in rows)
    return Figures(
        tasks=len(rows),
        span_ms=span_ms,
        utilisation=busy / (cpu_milli * span_ms) if cpu_milli and span_ms else 0.0,
        wait_mean_ms=sum(waits) / len(waits),
        wait_p50_ms=_percentile(waits, 50),
        wait_p95_ms=_percentile(waits, 95),
        wait_max_ms=waits[-1],
        slowdown_mean=sum(map(_slowdown, rows)) / len(rows),
        restarts=sum(row.attempts - 1 for row in rows),
        tasks_per_second=len(rows) / span_ms * 1000 if span_ms else 0.0,
    )


def _slowdown(row: TaskRun) -> float:
    run_ms = row.ended_ms - row.started_ms
    return max(1.0, (row.ended_ms - row.submitted_ms) / max(run_ms, TAU_MS))


def _percentile(ordered: Sequence[int], share: int) -> int:
    """The smallest value that `share` percent of the values do not exceed."""
    return ordered[math.ceil(len(ordered) * share / 100) - 1]


def timeline(rows: Sequence[TaskRun], cpu_milli: int, points: int = POINTS) -> Timeline:
    """Means of utilisation and of waiting tasks over `points` equal spans, in one pass without sorting."""
    if not rows:
        return Timeline([], [], [])
    begin_ms = min(row.submitted_ms for row in rows)
    width_ms = max(1, max(row.ended_ms for row in rows) - begin_ms) / points
    busy, waiting = Means(begin_ms, width_ms, points), Means(begin_ms, width_ms, points)
    for row in rows:
        waiting.change(row.submitted_ms, 1)
        waiting.change(row.started_ms, -1)
        busy.change(row.started_ms, row.cpu_milli)
        busy.change(row.ended_ms, -row.cpu_milli)
    return Timeline(
        at_ms=[begin_ms + (point + 0.5) * width_ms for point in range(points)],
        utilisation=[mean / cpu_milli if cpu_milli else 0.0 for mean in busy.values()],
        waiting=waiting.values(),
    )


class Means:
    """Changes of an amount, in any order -> its exact mean over each span."""

    def __init__(self, begin_ms: int, width_ms: float, points: int) -> None:
        self._begin_ms = begin_ms
        self._width_ms = width_ms
        self._within = [0.0] * points  # share of each change within its own span
        self._after = [0] * (points + 1)  # changes that apply from this span on

    def change(self, at_ms: int, amount: int) -> None:
        passed = (at_ms - self._begin_ms) / self._width_ms
        point = min(int(passed), len(self._within) - 1)
        self._within[point] += amount * (point + 1 - passed)
        self._after[point + 1] += amount

    def values(self) -> list[float]:
        level, means = 0, []
        for within, after in zip(self._within, self._after, strict=False):
            level += after
            means.append(max(0.0, level + within))
        return means


class SwfFigures(NamedTuple):
    """What an SWF log itself says of its jobs, by the wait and run times it recorded."""

    rows: list[TaskRun]
    cpu_milli: int
    left_out: tuple[LeftOut, ...]


def ran_in_log(path: str | Path) -> SwfFigures:
    """`figures(log.rows, log.cpu_milli)` compares with those of a simulated run."""
    try:
        log = read_log(Path(path))
    except Rejected as error:
        raise BadWorkload(Path(path), error) from None
    rows = [_ran(job) for job in log.jobs if job.wait_seconds >= 0]
    unknown = len(log.jobs) - len(rows)
    no_wait = (LeftOut(unknown, "no wait time"),) if unknown else ()
    return SwfFigures(rows, log.processors * 1000, log.left_out + no_wait)


def _ran(job: SwfJob) -> TaskRun:
    submitted_ms = round(job.submit_seconds * 1000)
    started_ms = submitted_ms + round(job.wait_seconds * 1000)
    ended_ms = started_ms + round(job.run_seconds * 1000)
    return TaskRun(str(job.number), 0, job.processors * 1000, submitted_ms, started_ms, ended_ms)


def table(runs: Mapping[str, Figures], more: Mapping[str, Sequence[str]] | None = None) -> str:
    """A table with one column per run; `more` adds rows of text."""
    lines = [["", *runs], *([label, *map(show, runs.values())] for label, show in _ROWS)]
    lines += [[label, *texts] for label, texts in (more or {}).items()]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() + "\n"
        for line in lines
    )


def show_duration(milliseconds: float) -> str:
    """850 ms, 12.5 s, 4 m 10 s, 3 h 20 m or 12 d 5 h."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        return "{} m {} s".format(*divmod(round(seconds), 60))
    if seconds < 48 * 3600:
        return "{} h {} m".format(*divmod(round(seconds / 60), 60))
    return "{} d {} h".format(*divmod(round(seconds / 3600), 24))


_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("tasks", lambda run: f"{run.tasks:,}"),
    ("time", lambda run: show_duration(run.span_ms)),
    ("utilisation", lambda run: f"{run.utilisation:.1%}"),
    ("wait, mean", lambda run: show_duration(run.wait_mean_ms)),
    ("wait, median", lambda run: show_duration(run.wait_p50_ms)),
    ("wait, p95", lambda run: show_duration(run.wait_p95_ms)),
    ("wait, longest", lambda run: show_duration(run.wait_max_ms)),
    ("bounded slowdown, mean", lambda run: f"{run.slowdown_mean:.2f}"),
    ("restarts", lambda run: f"{run.restarts:,}"),
    ("tasks per second", lambda run: f"{run.tasks_per_second:,.3f}"),
)
