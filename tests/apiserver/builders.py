"""Builders of records: blocks whose columns are given as lists."""

from typing import Any, TypeVar

from rota.apiserver.access import Caller
from rota.identity.tokens import Role
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import Draft
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.lifecycle import AttemptState, NodeState
from rota.model.node import NodeSpec, NodeStatus
from rota.model.plan import Instant
from rota.model.task import TaskBlock

NOW = Instant(1_000, 1_700_000_000_000)
ADA = Caller("ada", Role.ADMIN, ("*",))
B = TypeVar("B", TaskBlock, AttemptBlock, StatusBlock)


def spec(number: int, **changes: Any) -> JobSpec:
    given: dict[str, Any] = {
        "name": "sleep",
        "command": ("sleep", "1"),
        "submitted_at_ms": 5,
        "needs": {"cpu": 1000},
    }
    return JobSpec(id=JobId(str(number)), **{**given, **changes})


def filled(block: B, **columns: Any) -> B:
    """The block with these columns and other fields set."""
    others = {name: value for name, value in columns.items() if name not in block.COLUMNS}
    draft = Draft(block)
    for name, values in columns.items():
        if name in block.COLUMNS:
            draft[name][: len(values)] = values
    return draft.done(**others)


def attempts(job: str, size: int, block: int = 0, **columns: Any) -> AttemptBlock:
    given = {"nodes": (NodeId("n1"),), **columns}
    return filled(AttemptBlock.new(JobId(job), block, size), **given)


def statuses(job: str, size: int, block: int = 0, **columns: Any) -> StatusBlock:
    return filled(StatusBlock.new(JobId(job), block, size), **columns)


def tasks(job: str, size: int, block: int = 0, **columns: Any) -> TaskBlock:
    return filled(TaskBlock.new(JobId(job), block, size), **columns)


def node(number: int, name: str = "laptop") -> NodeSpec:
    return NodeSpec(NodeId(f"n{number}"), name)


def node_status(number: int, state: NodeState = NodeState.READY) -> NodeStatus:
    capacity = {"cpu": 8000, "memory": 2**33, "licence": 2}
    return NodeStatus(NodeId(f"n{number}"), state, "machine", "boot", "0.1.0", capacity, {"arch": "x86_64"})


RUNNING = AttemptState.RUNNING
SUCCEEDED = AttemptState.SUCCEEDED
FAILED = AttemptState.FAILED
