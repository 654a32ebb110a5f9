"""What a mirror derives from its records, computed naively: task by task, without caches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import widened
from rota.model.ids import JobId, Key
from rota.model.job import JobSpec, JobStatus, QueueRank
from rota.model.lifecycle import JobState
from rota.model.node import NodeIntent, NodeSpec, NodeStatus
from rota.model.plan import Record
from rota.model.task import TaskBlock
from rota.rules.phases import NodeHold, Phase
from tests.model.reference import Cell, cells_one_by_one

Disk = Mapping[Key, Record]


@dataclass(frozen=True)
class Task:
    index: int
    cell: Cell


def specs(disk: Disk) -> list[JobSpec]:
    return [record for record in disk.values() if isinstance(record, JobSpec)]


def state_of(disk: Disk, job: JobId) -> JobState | None:
    status = disk.get(Key(f"job/{job}/status"))
    return status.state if isinstance(status, JobStatus) else None


def nodes(disk: Disk) -> list[str]:
    kinds = (NodeSpec, NodeIntent, NodeStatus)
    return sorted({record.id for record in disk.values() if isinstance(record, kinds)})


def tasks(disk: Disk, spec: JobSpec) -> list[Task]:
    found: list[Cell] = []
    for block in range(spec.blocks):
        task = disk.get(TaskBlock.new(spec.id, block, 0).key)
        attempt = disk.get(AttemptBlock.new(spec.id, block, 0).key)
        status = disk.get(StatusBlock.new(spec.id, block, 0).key)
        assert isinstance(task, TaskBlock | None)
        assert isinstance(attempt, AttemptBlock | None)
        assert isinstance(status, StatusBlock | None)
        size = spec.block_size(block)
        found += cells_one_by_one(
            size,
            task and widened(task, size),
            attempt and widened(attempt, size),
            status and widened(status, size),
        )
    return [Task(index, cell._replace(beyond=spec.is_scaled_down(index))) for index, cell in enumerate(found)]


def counted(disk: Disk, now_ms: int) -> dict[str, Any]:
    """The derived values that a mirror of these records must have."""
    jobs: dict[str, Any] = {}
    held: dict[str, Any] = {
        name: {"assigned": {}, "reserved": {}, "queued": 0, "held": 0} for name in nodes(disk)
    }
    lines: dict[Any, list[QueueRank]] = {}
    for spec in specs(disk):
        found = tasks(disk, spec)
        jobs[spec.id] = _job(found, now_ms, active=state_of(disk, spec.id) is JobState.ACTIVE)
        for task in found:
            if task.cell.hold is not NodeHold.NOTHING:
                _hold(held[task.cell.node], spec, task)
        if state_of(disk, spec.id) is JobState.ACTIVE and jobs[spec.id]["ready"]:
            lines[spec.queue_key] = sorted([*lines.get(spec.queue_key, []), spec.queue_rank])
    ended = [record for record in disk.values() if isinstance(record, JobStatus) and record.ended]
    return {"jobs": jobs, "nodes": held, "lines": lines, "unfinished": len(jobs) - len(ended)}


def shown(mirror: Mirror, now_ms: int) -> dict[str, Any]:
    """The same values as the mirror has them."""
    table = mirror.node_table
    jobs: dict[str, Any] = {}
    for job, entry in mirror.jobs.items():
        jobs[job] = {"tally": entry.task_counts.by_phase}
        if entry.status is not None and entry.status.state is JobState.ACTIVE:
            jobs[job]["ready"] = entry.ready(now_ms, entry.spec.count)
            jobs[job]["first ready"] = entry.ready(now_ms, 2)
            jobs[job]["ready_ms"] = entry.ready_ms()
    held = {}
    for node, there in mirror.nodes.items():
        slot = table.slot[node]
        reserved = {resource: int(table.reserved[row, slot]) for resource, row in table.rows.items()}
        held[node] = {
            "assigned": dict(there.assigned),
            "reserved": {resource: amount for resource, amount in reserved.items() if amount},
            "queued": int(table.queued[slot]),
            "held": int(table.held[slot]),
        }
    lines = {shape: list(line) for shape, line in mirror.pending_queues()}
    return {"jobs": jobs, "nodes": held, "lines": lines, "unfinished": mirror.unfinished}


def _job(found: list[Task], now_ms: int, *, active: bool) -> dict[str, Any]:
    phases = [task.cell.phase for task in found]
    pending = [task for task in found if task.cell.phase is Phase.PENDING]
    ready = [task.index for task in pending if not task.cell.number or task.cell.not_before <= now_ms]
    first_ms = min((task.cell.not_before if task.cell.number else 0 for task in pending), default=0)
    picture: dict[str, Any] = {"tally": [phases.count(phase) for phase in Phase]}
    if active:
        picture |= {"ready": ready, "first ready": ready[:2], "ready_ms": first_ms}
    return picture


def _hold(node: dict[str, Any], spec: JobSpec, task: Task) -> None:
    node["assigned"][spec.id, task.index] = task.cell.number
    node["held"] += 1
    if task.cell.hold is NodeHold.LOOKAHEAD:
        node["queued"] += 1
        return
    for resource, amount in spec.needs.items():
        if amount:
            node["reserved"][resource] = node["reserved"].get(resource, 0) + amount
