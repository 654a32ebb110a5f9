"""Quarantine of tasks that may take nodes down: held after enough losses, and not placed while held."""

from collections.abc import Mapping
from typing import Any

from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import TaskState
from rota.model.limits import BLOCK_TASKS, QUARANTINE_KEEPER_DEATHS, QUARANTINE_LOST_NODES
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

Task = tuple[JobId, int]


class QuarantineChecks:
    """Counts the losses of each task, and knows which tasks are held."""

    def __init__(self, known: Mapping[str, Any], world: World) -> None:
        self._known = known
        self._world = world
        self._lost_on: dict[Task, dict[NodeId, int]] = {}  # losses by node since its last release
        self._held: dict[Task, None] = {}

    def jobs(self) -> list[JobId]:
        return list(dict.fromkeys(job for job, _ in self._held if f"job/{job}/spec" in self._known))

    def lost(self, task: Task, node: NodeId) -> None:
        losses = self._lost_on.setdefault(task, {})
        losses[node] = losses.get(node, 0) + 1

    def state_changed(self, task: Task, was: TaskState, state: TaskState, *, is_missing: bool) -> None:
        """`is_missing`: the task is not quarantined but waits for its node to bring it back."""
        name = f"task {task[1]} of job {task[0]}"
        if is_missing:
            return
        if state is TaskState.HELD:
            self._world.count("task: quarantined")
            losses = self._lost_on.get(task, {})
            # A keeper may die on the same node each time, so the losses count, not the nodes.
            if len(losses) < QUARANTINE_LOST_NODES and sum(losses.values()) < QUARANTINE_KEEPER_DEATHS:
                raise InvariantBroken(f"{name} is held, and was lost on {list(losses)} only")
            self._held[task] = None
        elif was is TaskState.HELD:
            self._held.pop(task, None)
            self._lost_on.pop(task, None)

    def placed(self, task: Task, fresh: Mapping[str, Any]) -> None:
        """A task is placed; it may have been released in the same commit."""
        block, at = divmod(task[1], BLOCK_TASKS)
        key = f"task/{task[0]}/{block}"
        record = fresh.get(key) or self._known.get(key)
        if record is not None and record.state[at] == TaskState.HELD:
            raise InvariantBroken(f"task {task[1]} of job {task[0]} is held, and was placed")
