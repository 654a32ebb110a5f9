"""A rollout replaces tasks of a service only while enough of the others are available."""

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

HEALTHY = (Health.UP, Health.HEALTHY)


def check_availability(
    known: Mapping[str, Any], fresh: dict[str, Any], before: TaskBlock, now: TaskBlock
) -> None:
    """Tasks that serve are replaced only if no more than max_parallel are unavailable then.

    `known` are the records before this commit, `fresh` those that it writes. A task counts as unavailable if
    it was before the commit as well as after it: the rollout may have decided on either state.
    """
    after = ChainMap(fresh, dict(known))
    spec, intent = after[f"job/{now.job}/spec"], after.get(f"job/{now.job}/wish")
    chosen = {at: number for at, number in now.renew.items() if before.renew.get(at) != number}
    if not chosen or not spec.is_service or intent is None:
        return
    unavailable_after = set(_unavailable(after, spec, but=chosen))
    unavailable = set(_unavailable(known, spec)) & unavailable_after
    first = now.block * BLOCK_TASKS
    served = {first + at for at in chosen} - unavailable_after
    if served and len(unavailable | served) > intent.max_parallel:
        replaced = f"tasks {sorted(served)} of job {now.job} are replaced while {sorted(unavailable)}"
        raise InvariantBroken(f"{replaced} are unavailable: at most {intent.max_parallel} may be")


def _unavailable(
    records: Mapping[str, Any], spec: JobSpec, but: Mapping[int, int] | None = None
) -> Iterator[int]:
    """Tasks that do not serve; those in `but`, replaced by this commit, still count as serving."""
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
    service = status.lives.get(at)
    return service is None or service.health in HEALTHY
