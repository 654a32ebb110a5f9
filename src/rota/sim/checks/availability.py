"""A service of which something makes way -> that enough of it stays."""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

from rota.model.columns import ints
from rota.model.job import JobSpec
from rota.model.lifecycle import TASK_ENDS, AttemptState, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.service import Health
from rota.model.task import TaskBlock
from rota.sim.world.invariant import InvariantBroken

WELL = (Health.UP, Health.HEALTHY)


def check_availability(
    known: Mapping[str, Any], fresh: dict[str, Any], before: TaskBlock, now: TaskBlock
) -> None:
    """Whoever serves makes way only if no more are away then than may be; `known`: before this commit.

    A task is away for sure if it was before the commit as well as after it.
    """
    after = ChainMap(fresh, dict(known))
    spec, wish = after[f"job/{now.job}/spec"], after.get(f"job/{now.job}/wish")
    chosen = {at: number for at, number in now.renew.items() if before.renew.get(at) != number}
    if not chosen or not spec.is_service or wish is None:
        return
    down = set(_away(after, spec, but=chosen))
    away = set(_away(known, spec)) & down
    first = now.block * BLOCK_TASKS
    served = {first + at for at in chosen} - down
    if served and len(away | served) > wish.max_parallel:
        named = f"tasks {sorted(served)} of job {now.job} make way while {sorted(away)} are away"
        raise InvariantBroken(f"{named}: at most {wish.max_parallel} may be")


def _away(records: Mapping[str, Any], spec: JobSpec, but: Mapping[int, int] | None = None) -> Iterator[int]:
    """Tasks that do not serve; `but`: those that are to make way only now still do."""
    for block in range(spec.blocks):
        attempts, status, tasks = (
            records.get(f"{kind}/{spec.id}/{block}") for kind in ("attempt", "status", "task")
        )
        for at in range(spec.block_size(block)):
            has_ended = tasks is not None and at < tasks.size and TaskState(tasks.state[at]) in TASK_ENDS
            if has_ended or spec.is_scaled_down(block * BLOCK_TASKS + at):
                continue
            number = 0 if attempts is None else ints(attempts, "number")[at]
            leaves = tasks is not None and tasks.renew.get(at) == number and (but or {}).get(at) != number
            if leaves or not number or not _serves(status, at, number):
                yield block * BLOCK_TASKS + at


def _serves(status: Any, at: int, number: int) -> bool:
    if status is None or ints(status, "number")[at] != number or status.state[at] != AttemptState.RUNNING:
        return False
    life = status.lives.get(at)
    return life is None or life.health in WELL
