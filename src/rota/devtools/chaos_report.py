"""Events of a commit -> sentences about lost and recovered nodes, and where their tasks went."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rota.model.ids import JobId, NodeId
from rota.model.plan import EventRecord

_OF_NODES = ("node.suspect", "node.lost", "node.recovered", "node.left")
_LEFT_THEIR_NODE = {"lost": "lost with", "withdrawn": "withdrawn from"}
_DELETED = "a node that was deleted"


class ChaosReport:
    """Remembers tasks that lost their node until they are placed again."""

    def __init__(self) -> None:
        self._from: dict[tuple[JobId, int], str] = {}
        self._arrived: Counter[tuple[str, JobId]] = Counter()

    def sentences(self, events: Sequence[EventRecord], names: Mapping[NodeId, str]) -> list[str]:
        """Sentences to print immediately: changes of nodes, and tasks that lost theirs."""
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
        """Where tasks were placed since the last call: they arrive one by one and are reported together."""
        arrived, self._arrived = self._arrived, Counter()
        return _counted(arrived)

    def _follow(self, job: JobId, event: EventRecord, node: str, left: Counter[tuple[str, JobId]]) -> None:
        ending = _LEFT_THEIR_NODE.get(event.state or "") if event.kind == "task.ended" else None
        for index in (index for first, last in event.indices for index in range(first, last + 1)):
            if ending is not None:
                self._from[job, index] = node
                left[f"{ending} {node}", job] += 1
            elif (job, index) in self._from and event.state != "refused":
                before = self._from.pop((job, index))
                outcome = f"moved from {before} to {node}" if before != node else f"restarted on {node}"
                self._arrived[outcome, job] += 1

    def _forget(self, job: JobId) -> None:
        for task in [task for task in self._from if task[0] == job]:
            del self._from[task]


def _counted(outcomes: Counter[tuple[str, JobId]]) -> list[str]:
    """`3 tasks of job 7 lost with node-1`, `12 tasks of 5 jobs lost with node-1`"""
    by_outcome: dict[str, dict[JobId, int]] = {}
    for (outcome, job), count in outcomes.items():
        by_outcome.setdefault(outcome, {})[job] = count
    return [
        f"{_plural(sum(jobs.values()), 'task')} of {_jobs_text(list(jobs))} {outcome}"
        for outcome, jobs in by_outcome.items()
    ]


def _jobs_text(jobs: list[JobId]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
