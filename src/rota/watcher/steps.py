"""Marks of steps before and after a report -> what happened, told once for all tasks of which it is true."""

from typing import NamedTuple

from rota.model.columns import Ranges
from rota.model.ids import JobId, NodeId
from rota.model.plan import Event
from rota.model.steps import Step, StepMark, said_of

Marks = tuple[StepMark, ...]


class _News(NamedTuple):
    job: JobId
    number: int
    of: int
    said: str
    exit_code: int  # -1: none


class StepNews:
    def __init__(self) -> None:
        self._happened: dict[_News, list[int]] = {}

    def note(self, job: JobId, index: int, steps: tuple[Step, ...], marks: tuple[Marks, Marks]) -> None:
        before, after = marks
        for place, mark in enumerate(after[: len(steps)]):
            if place < len(before) and before[place] == mark:
                continue
            news = _News(job, place + 1, len(steps), said_of(steps[place].name, mark), mark.exit_code)
            self._happened.setdefault(news, []).append(index)

    def events(self, node: NodeId, node_name: str) -> tuple[Event, ...]:
        return tuple(
            _event(news, Ranges(indices), node, node_name) for news, indices in self._happened.items()
        )


def _event(news: _News, ranges: Ranges, node: NodeId, node_name: str) -> Event:
    tasks = f"task {ranges} of job {news.job}"
    return Event(
        "task.step",
        f"{tasks}: step {news.number} of {news.of}, {news.said} on {node_name}",
        job=news.job,
        node=node,
        indices=tuple(ranges.pairs),
        exit_code=news.exit_code if news.exit_code >= 0 else None,
        step=news.number,
    )
