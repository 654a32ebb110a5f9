"""Builders of specs, nodes and mirrors, with defaults for everything that a test does not set."""

from collections.abc import Mapping
from typing import Any

from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobSpec, JobStatus
from rota.model.lifecycle import JobState, NodeState
from rota.model.messages import AttemptReport, Hello, JobReports, ReportedState
from rota.model.node import Connection, NodeSpec, NodeStatus
from rota.model.plan import Answer, Instant, Plan
from rota.model.shape import Constraint, Op

GIB = 2**30
WALL_MS = 1_700_000_000_000  # the wall clock at cluster time 0


def at(ms: int) -> Instant:
    return Instant(ms, WALL_MS + ms)


def job_spec(number: int = 1, **fields: Any) -> JobSpec:
    """A job of one task that asks for one cpu."""
    plain: dict[str, Any] = {
        "name": f"job-{number}",
        "command": ("true",),
        "submitted_at_ms": WALL_MS,
        "needs": {"cpu": 1000},
    }
    return JobSpec(JobId(str(number)), **(plain | fields))


def where(label: str, op: str, *values: str) -> Constraint:
    return Constraint(label, Op(op), values)


def node_status(node: str, capacity: Mapping[str, int] | None = None, **fields: Any) -> NodeStatus:
    """A ready node of 4 cpu and 8 GiB."""
    plain: dict[str, Any] = {
        "state": NodeState.READY,
        "machine_id": f"m-{node}",
        "boot_id": "boot-1",
        "version": "1",
    }
    amounts = {"cpu": 4000, "memory": 8 * GIB} if capacity is None else dict(capacity)
    return NodeStatus(NodeId(node), **(plain | {"capacity": amounts} | fields))


def hello(node: str, inventory: list[JobReports] | None = None, **fields: Any) -> Hello:
    status = node_status(node)
    plain: dict[str, Any] = {
        "machine_id": status.machine_id,
        "boot_id": status.boot_id,
        "version": status.version,
        "capacity": status.capacity,
        "labels": {},
        "epoch_seen": 0,
    }
    return Hello(**(plain | {"inventory": inventory or []} | fields))


def job_reports(job: int, state: ReportedState, *pairs: tuple[int, int], **fields: Any) -> JobReports:
    """Reports with the same state on several attempts of a job, each given as (index, attempt)."""
    return JobReports(
        JobId(str(job)), [AttemptReport(index, attempt, state, **fields) for index, attempt in pairs]
    )


def add_node(
    mirror: Mirror,
    node: str,
    capacity: Mapping[str, int] | None = None,
    link: Connection = Connection.UP,
    **fields: Any,
) -> NodeId:
    """Add a node that has joined and connected; its name equals its id."""
    mirror.apply(NodeSpec(NodeId(node), node))
    mirror.apply(node_status(node, capacity, **fields))
    mirror.connect(NodeId(node), link)
    return NodeId(node)


def add_job(mirror: Mirror, spec: JobSpec) -> JobId:
    """Add an active job whose tasks are desired and not placed."""
    mirror.apply(spec)
    mirror.apply(JobCluster(spec.id, "default"))
    mirror.apply(JobStatus(spec.id, JobState.ACTIVE))
    return spec.id


def apply(mirror: Mirror, plan: Plan[Answer]) -> Plan[Answer]:
    """Apply the records of a plan, without deciding further."""
    for record in plan.puts:
        mirror.apply(record)
    return plan


def placements(mirror: Mirror, job: JobId) -> dict[int, str]:
    """The node of the live attempt of each task of a job."""
    found = {
        index: str(node)
        for node, entry in mirror.nodes.items()
        for (owner, index) in entry.assigned
        if owner == job
    }
    return dict(sorted(found.items()))
