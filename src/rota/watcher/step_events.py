"""Marks of steps before and after a report -> what happened, told once for all tasks of which it is true."""

from typing import NamedTuple

from rota.model.columns import Ranges
from rota.model.ids import JobId, NodeId
from rota.model.plan import EventRecord
from rota.model.steps import Step, StepMark, describe_step

Marks = tuple[StepMark, ...]


class _StepChange(NamedTuple):
    job: JobId
    number: int
    of: int
    said: str
    exit_code: int  # -1: none


class StepEvents:
    def __init__(self) -> None:
        self._happened: dict[_StepChange, list[int]] = {}

    def record(self, job: JobId, index: int, steps: tuple[Step, ...], marks: tuple[Marks, Marks]) -> None:
        before, after = marks
        for place, mark in enumerate(after[: len(steps)]):
            if place < len(before) and before[place] == mark:
                continue
            news = _StepChange(
                job, place + 1, len(steps), describe_step(steps[place].name, mark), mark.exit_code
            )
            self._happened.setdefault(news, []).append(index)

    def events(self, node: NodeId, node_name: str) -> tuple[EventRecord, ...]:
        return tuple(
            _event(news, Ranges(indices), node, node_name) for news, indices in self._happened.items()
        )


def _event(news: _StepChange, ranges: Ranges, node: NodeId, node_name: str) -> EventRecord:
    tasks = f"task {ranges} of job {news.job}"
    return EventRecord(
        "task.step",
        f"{tasks}: step {news.number} of {news.of}, {news.said} on {node_name}",
        job=news.job,
        node=node,
        indices=tuple(ranges.pairs),
        exit_code=news.exit_code if news.exit_code >= 0 else None,
        step=news.number,
    )
