"""A mirror with tasks placed on nodes, and reports of those nodes."""

from typing import Any

from rota.engine.state.mirror import Mirror
from rota.model.attempt import StatusBlock
from rota.model.columns import column
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptState
from rota.model.messages import JobReports, NodeReport, ReportedState
from rota.model.plan import Plan
from rota.rules.reconciler_names import ROUND_KEY
from rota.scheduler.plan import Scheduler
from rota.scheduler.round import SchedulerSettings
from rota.testing.builders import add_job, add_node, apply, at, job_reports, job_spec
from rota.watcher.node_messages import on_report

ONE = JobId("1")
A, B = NodeId("a"), NodeId("b")


def placed(count: int = 1, **fields: Any) -> Mirror:
    """Job 1, all of its tasks offered to node a; node b has joined after that."""
    mirror = Mirror()
    add_node(mirror, "a", {"cpu": 1000 * count})
    add_job(mirror, job_spec(count=count, **fields))
    place(mirror)
    add_node(mirror, "b", {"cpu": 1000 * count})
    return mirror


def place(mirror: Mirror, ms: int = 0) -> None:
    apply(mirror, Scheduler(SchedulerSettings()).decide(mirror, ROUND_KEY, at(ms)))


def report(mirror: Mirror, node: str, *reports: JobReports, ms: int = 0) -> Plan:
    return apply(mirror, on_report(mirror, NodeId(node), NodeReport(1, list(reports)), at(ms)))


def report_state(
    mirror: Mirror, state: ReportedState, *pairs: tuple[int, int], node: str = "a", **fields: Any
) -> Plan:
    """Report attempts of job 1 in this state."""
    return report(mirror, node, job_reports(1, state, *pairs, **fields))


def status(mirror: Mirror, block: int = 0) -> StatusBlock:
    return mirror.jobs[ONE].statuses[block]


def states(mirror: Mirror, block: int = 0) -> list[AttemptState]:
    return [AttemptState(state) for state in column(status(mirror, block), "state").tolist()]
