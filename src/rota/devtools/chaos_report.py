"""What happened in a commit -> sentences on what Rota does about its nodes, and where their tasks went."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rota.model.ids import JobId, NodeId
from rota.model.plan import EventRecord

_OF_NODES = ("node.suspect", "node.lost", "node.recovered", "node.left")
_LEFT_THEIR_NODE = {"lost": "lost with", "withdrawn": "taken back from"}
_DELETED = "a node that was deleted"


class ChaosReport:
    """Remembers which tasks lost their node until they get another."""

    def __init__(self) -> None:
        self._from: dict[tuple[JobId, int], str] = {}
        self._arrived: Counter[tuple[str, JobId]] = Counter()

    def sentences(self, events: Sequence[EventRecord], names: Mapping[NodeId, str]) -> list[str]:
        """What is to be said at once."""
        left: Counter[tuple[str, JobId]] = Counter()
        for event in events:
            if event.job is None:
                continue
            if event.node is not None:
                self._follow(event.job, event, names.get(event.node, _DELETED), left)
            if event.kind == "job.ended":
                self._forget(event.job)
        return [*(event.why for event in events if event.kind in _OF_NODES), *_counted(left)]

    def moved(self) -> list[str]:
        """Where tasks went since this was last asked: they come one by one, and are told together."""
        arrived, self._arrived = self._arrived, Counter()
        return _counted(arrived)

    def _follow(self, job: JobId, event: EventRecord, node: str, left: Counter[tuple[str, JobId]]) -> None:
        ended_so = _LEFT_THEIR_NODE.get(event.state or "") if event.kind == "task.ended" else None
        for index in (index for first, last in event.indices for index in range(first, last + 1)):
            if ended_so is not None:
                self._from[job, index] = node
                left[f"{ended_so} {node}", job] += 1
            elif (job, index) in self._from and event.state != "refused":
                before = self._from.pop((job, index))
                fate = f"moved from {before} to {node}" if before != node else f"started again on {node}"
                self._arrived[fate, job] += 1

    def _forget(self, job: JobId) -> None:
        for task in [task for task in self._from if task[0] == job]:
            del self._from[task]


def _counted(fates: Counter[tuple[str, JobId]]) -> list[str]:
    """`3 tasks of job 7 lost with node-1`, `12 tasks of 5 jobs lost with node-1`"""
    by_fate: dict[str, dict[JobId, int]] = {}
    for (fate, job), count in fates.items():
        by_fate.setdefault(fate, {})[job] = count
    return [
        f"{_plural(sum(jobs.values()), 'task')} of {_whose(list(jobs))} {fate}"
        for fate, jobs in by_fate.items()
    ]


def _whose(jobs: list[JobId]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _plural(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
