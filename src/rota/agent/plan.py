"""What was ordered + what this machine is -> what to start, what to stop, what to refuse and why."""

from typing import NamedTuple

from rota.model.ids import JobId
from rota.model.messages import AttemptReport, JobOrders, JobReports, ReportedState, TaskTemplate


class HostFacts(NamedTuple):
    """What the veto looks at."""

    missing_directories: frozenset[str]
    leaving: bool
    outdated_keeper: bool = False  # it is of another release: it finishes its work and takes no more
    has_runtime: bool = True  # for containers
    has_sandbox: bool = True
    holds_leases: bool = True


class PlannedActions(NamedTuple):
    accepted: list[JobOrders]
    refused: list[JobReports]


def plan(orders: list[JobOrders], works: dict[JobId, TaskTemplate], facts: HostFacts) -> PlannedActions:
    """The last veto: the node knows best what it cannot do. Stops are always obeyed."""
    obey: list[JobOrders] = []
    refuse: list[JobReports] = []
    for one in orders:
        reason = veto(works.get(one.job), facts) if one.start else None
        if reason is None:
            obey.append(one)
            continue
        refuse.append(
            JobReports(
                one.job,
                [AttemptReport(s.index, s.attempt, ReportedState.REFUSED, reason=reason) for s in one.start],
            )
        )
        if one.stop:
            obey.append(one._replace(start=[]))
    return PlannedActions(obey, refuse)


def veto(work: TaskTemplate | None, facts: HostFacts) -> str | None:
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
