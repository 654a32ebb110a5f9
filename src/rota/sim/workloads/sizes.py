"""Lifetimes of nodes and rows of tasks -> node hours, and size and demand of a cluster over time."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rota.sim.workloads.figures import POINTS, Means, TaskRun
from rota.sim.workloads.model import HOUR_MS

Spans = Sequence[tuple[int, int]]


class Sizes(NamedTuple):
    """Columns of equal length: means over equal spans of time from 0 on, each named by its middle."""

    at_ms: list[float]
    nodes: list[float]
    demand: list[float]  # waiting and running tasks, in full nodes
    waiting: list[float]  # tasks


class SizedRun(NamedTuple):
    """Tasks of a run and lifetimes of its nodes."""

    rows: Sequence[TaskRun]
    spans: Spans


def node_hours(spans: Spans) -> float:
    return sum(end_ms - begin_ms for begin_ms, end_ms in spans) / HOUR_MS


def busy_share(run: SizedRun, cpu_milli: int) -> float:
    """Share of the node hours that was used, by cpu; `cpu_milli` is that of one node."""
    busy = sum(row.cpu_milli * (row.ended_ms - row.started_ms) for row in run.rows)
    available = node_hours(run.spans) * HOUR_MS * cpu_milli
    return busy / available if available else 0.0


def sizes(runs: Mapping[str, SizedRun], cpu_milli: int, points: int = POINTS) -> dict[str, Sizes]:
    """Sizes of all runs on one time axis, as long as the longest run."""
    end_ms = max((end_ms for run in runs.values() for _, end_ms in run.spans), default=1)
    return {name: _sizes(run, cpu_milli, end_ms / points, points) for name, run in runs.items()}


def _sizes(run: SizedRun, cpu_milli: int, width_ms: float, points: int) -> Sizes:
    nodes, demand, waiting = (Means(0, width_ms, points) for _ in range(3))
    for begin_ms, end_ms in run.spans:
        nodes.change(begin_ms, 1)
        nodes.change(end_ms, -1)
    for row in run.rows:
        demand.change(row.submitted_ms, row.cpu_milli)
        demand.change(row.ended_ms, -row.cpu_milli)
        waiting.change(row.submitted_ms, 1)
        waiting.change(row.started_ms, -1)
    return Sizes(
        at_ms=[(point + 0.5) * width_ms for point in range(points)],
        nodes=nodes.values(),
        demand=[mean / cpu_milli for mean in demand.values()],
        waiting=waiting.values(),
    )
