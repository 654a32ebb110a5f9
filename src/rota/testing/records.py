"""Builders of records, with defaults for everything that a test does not set."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import Draft
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.lifecycle import AttemptState, NodeState
from rota.model.node import NodeStatus
from rota.model.task import TaskBlock

MEBIBYTE = 2**20
Block = TypeVar("Block", StatusBlock, TaskBlock)


def job(number: int = 1, **fields: Any) -> JobSpec:
    given: dict[str, Any] = {"name": f"job-{number}", "command": ("true",), "submitted_at_ms": 0} | fields
    return JobSpec(JobId(str(number)), **given)


def node(name: str = "n1", *, state: NodeState = NodeState.READY, **fields: Any) -> NodeStatus:
    """The status of a node."""
    capacity = {"cpu": 8000, "memory": 16 * 1024 * MEBIBYTE, "disk": 100 * 1024 * MEBIBYTE}
    given: dict[str, Any] = {
        "machine_id": f"machine-{name}",
        "boot_id": "boot-1",
        "version": "1",
        "capacity": capacity,
    } | fields
    return NodeStatus(NodeId(name), state, **given)


def placed(
    before: AttemptBlock, positions: Iterable[int], on: str, *, tries: int = 0, flags: int = 0, at_ms: int = 0
) -> AttemptBlock:
    """The block after one more attempt of each of these tasks was placed on that node."""
    where = NodeId(on)
    nodes = before.nodes if where in before.nodes else (*before.nodes, where)
    chosen = list(positions)
    draft = Draft(before)
    draft["number"][chosen] += 1
    draft["tries"][chosen] = tries
    draft["node"][chosen] = nodes.index(where)
    draft["flags"][chosen] = flags
    draft["placed_at_ms"][chosen] = at_ms
    return draft.done(nodes=nodes)


def reported(
    before: StatusBlock, positions: Iterable[int], state: AttemptState, *, number: int = 1, **columns: int
) -> StatusBlock:
    """The block after the attempts `number` of these tasks have reached that state."""
    return _filled(before, positions, {"number": number, "state": state} | columns)


def decided(before: TaskBlock, positions: Iterable[int], **columns: int) -> TaskBlock:
    """The block after these columns were set for these tasks."""
    return _filled(before, positions, columns)


def _filled(before: Block, positions: Iterable[int], columns: Mapping[str, int]) -> Block:
    chosen = list(positions)
    draft = Draft(before)
    for name, value in columns.items():
        draft[name][chosen] = value
    return draft.done()
