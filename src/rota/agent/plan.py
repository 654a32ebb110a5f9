"""Orders + facts about this host -> orders to carry out, and refusals with their reasons. Pure."""

from typing import NamedTuple

from rota.model.ids import JobId
from rota.model.messages import AttemptReport, JobOrders, JobReports, ReportedState, TaskTemplate


class HostFacts(NamedTuple):
    """What may keep this host from running a task."""

    missing_directories: frozenset[str]
    leaving: bool
    outdated_keeper: bool = False  # it is of another release: it finishes its work and takes no more
    has_runtime: bool = True  # a container runtime
    has_sandbox: bool = True
    holds_leases: bool = True


class PlannedActions(NamedTuple):
    accepted: list[JobOrders]
    refused: list[JobReports]


def plan(orders: list[JobOrders], templates: dict[JobId, TaskTemplate], facts: HostFacts) -> PlannedActions:
    """Refuse starts that this host cannot run. Stops are always carried out."""
    accepted: list[JobOrders] = []
    refused: list[JobReports] = []
    for job_orders in orders:
        reason = veto(templates.get(job_orders.job), facts) if job_orders.start else None
        if reason is None:
            accepted.append(job_orders)
            continue
        reports = [
            AttemptReport(start.index, start.attempt, ReportedState.REFUSED, reason=reason)
            for start in job_orders.start
        ]
        refused.append(JobReports(job_orders.job, reports))
        if job_orders.stop:
            accepted.append(job_orders._replace(start=[]))
    return PlannedActions(accepted, refused)


def veto(work: TaskTemplate | None, facts: HostFacts) -> str | None:
    """Why this host cannot run the task, as the user sees it; None: it can."""
    if facts.leaving:
        return "this node is leaving"
    if work is None:
        return "the job's spec did not come with its first order"
    if facts.outdated_keeper:
        return "its keeper is of another release of Rota, and is replaced when its work has ended"
    if work.lease_ms is not None and not facts.holds_leases:
        return "this node cannot hold run leases"
    if work.container is not None:
        return None if facts.has_runtime else "this node has no container runtime"
    if work.sandbox is not None and not facts.has_sandbox:
        return "this node has no bubblewrap that works"
    if work.workdir is not None and work.workdir in facts.missing_directories:
        return f"there is no directory {work.workdir}"
    return None
