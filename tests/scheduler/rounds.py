"""One scheduler, one mirror, and nodes that report what the test sets."""

from typing import Any

from rota.controllers import batch
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId, NodeId
from rota.model.messages import NodeReport, ReportedState
from rota.model.plan import Plan
from rota.rules.reconciler_names import ROUND_KEY
from rota.scheduler.plan import Scheduler
from rota.scheduler.round import SchedulerCache, SchedulerSettings
from rota.testing.builders import apply, at, job_reports
from rota.watcher.node_messages import on_report


class Rounds:
    def __init__(self) -> None:
        self.mirror = Mirror()
        self.scheduler = Scheduler(SchedulerSettings())

    @property
    def cache(self) -> SchedulerCache:
        assert self.scheduler.cache is not None, "no round has been run"
        return self.scheduler.cache

    def go(self, ms: int = 0) -> Plan:
        self.mirror.now_ms = ms
        return apply(self.mirror, self.scheduler.decide(self.mirror, ROUND_KEY, at(ms)))

    def report(
        self, node: str, job: int, state: ReportedState, *pairs: tuple[int, int], ms: int = 0, **fields: Any
    ) -> None:
        """Apply a node's report on attempts, and the decisions of the controllers."""
        self.mirror.now_ms = ms
        message = NodeReport(1, [job_reports(job, state, *pairs, **fields)])
        apply(self.mirror, on_report(self.mirror, NodeId(node), message, at(ms)))
        for block in list(self.mirror.jobs[JobId(str(job))].statuses):
            apply(self.mirror, batch.decide(self.mirror, f"{job}/{block}", at(ms)))
