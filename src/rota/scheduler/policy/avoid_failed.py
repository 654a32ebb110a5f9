"""Placement that avoids nodes where a task of the service failed last; those are used if no other node fits.

Every placement of batch and service jobs goes through here; for batch jobs and gangs no node is avoided.
"""

from collections.abc import Iterable

from rota.model.columns import Array, ints
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.view import JobView, View
from rota.scheduler.placement.place import Assignments, Placer, slot_mask

_FAILED = int(AttemptState.FAILED)


def place_avoiding_failed(
    view: View, placer: Placer, job: JobView, ready: list[int], refused: list[int]
) -> Assignments:
    # A service restarts for ever: without this a bad node could get it again each time.
    avoided = failed_slots(view, job, ready) if job.spec.is_service and not job.spec.gang else []
    first = placer.place(job, len(ready), _mask_or_none(view, [*refused, *avoided]))
    left = len(ready) - len(first.assigned)
    if not avoided or not left:
        return first
    # Avoided, not excluded: on the only fitting node a service has to start again where it failed.
    others = placer.place(job, left, _mask_or_none(view, refused))
    if not first.assigned:
        return others
    first.assigned.extend(others.assigned)
    return first


def failed_slots(view: View, job: JobView, indices: Iterable[int]) -> list[int]:
    """Slots of the nodes on which the last attempt of one of these tasks failed."""
    found: dict[int, None] = {}
    for index in indices:
        block, position = divmod(index, BLOCK_TASKS)
        attempt, status = job.attempts.get(block), job.statuses.get(block)
        if attempt is None or status is None or status.state[position] != _FAILED:
            continue
        # The status of an older attempt says nothing about the node of the current one.
        if ints(status, "number")[position] == ints(attempt, "number")[position]:
            slot = view.node_table.slot.get(attempt.nodes[ints(attempt, "node")[position]])
            found |= {} if slot is None else {slot: None}
    return list(found)


def _mask_or_none(view: View, slots: list[int]) -> Array | None:
    return slot_mask(view, slots) if slots else None
