"""How services lived before and after a report -> what happened, told once for all tasks alike."""

from typing import NamedTuple

from rota.model.columns import Ranges
from rota.model.ids import JobId, NodeId
from rota.model.plan import EventRecord
from rota.model.service import Health, ServiceStatus

_TOLD = (Health.HEALTHY, Health.UNHEALTHY)


class _ServiceChange(NamedTuple):
    kind: str
    job: JobId
    said: str
    exit_code: int | None = None
    state: str | None = None


class ServiceEvents:
    def __init__(self) -> None:
        self._happened: dict[_ServiceChange, list[int]] = {}

    def record(self, job: JobId, index: int, before: ServiceStatus | None, now: ServiceStatus) -> None:
        then = before or ServiceStatus()
        if now.restarts > then.restarts:
            cause = now.why or now.last_end
            code = None if now.signal or now.exit_code < 0 else now.exit_code
            said = f"ended ({cause}) and is started again, {_times(now.restarts)}"
            self._enter(_ServiceChange("task.restarted", job, said, code), index)
        if now.health in _TOLD and (now.health, now.restarts) != (then.health, then.restarts):
            said = f"is {now.why if now.health == Health.UNHEALTHY and now.why else now.health}"
            self._enter(_ServiceChange("task.health", job, said, state=now.health), index)

    def events(self, node: NodeId, node_name: str) -> tuple[EventRecord, ...]:
        return tuple(
            EventRecord(
                news.kind,
                f"task {ranges} of job {news.job} on {node_name} {news.said}",
                job=news.job,
                node=node,
                indices=tuple(ranges.pairs),
                exit_code=news.exit_code,
                state=news.state,
            )
            for news, ranges in ((news, Ranges(indices)) for news, indices in self._happened.items())
        )

    def _enter(self, news: _ServiceChange, index: int) -> None:
        self._happened.setdefault(news, []).append(index)


def _times(count: int) -> str:
    return "for the first time" if count == 1 else f"{count} times so far"
