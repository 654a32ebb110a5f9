"""Tasks of a service that failed where they were -> other nodes first, those again if there are no others."""

from collections.abc import Iterable

from rota.model.columns import Array, ints
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.view import JobView, View
from rota.scheduler.place import Seated, Seating, barring

_FAILED = int(AttemptState.FAILED)


def seat(view: View, seating: Seating, job: JobView, ready: list[int], refused: list[int]) -> Seated:
    avoided = failed_on(view, job, ready) if job.spec.stays and not job.spec.gang else []
    first = seating.seat(job, len(ready), _barred(view, [*refused, *avoided]))
    left = len(ready) - len(first.seats)
    if not avoided or not left:
        return first
    rest = seating.seat(job, left, _barred(view, refused))
    if not first.seats:
        return rest
    first.seats.extend(rest.seats)
    return first


def failed_on(view: View, job: JobView, indices: Iterable[int]) -> list[int]:
    """Slots of the nodes on which the last attempt of one of these tasks failed."""
    found: dict[int, None] = {}
    for index in indices:
        block, position = divmod(index, BLOCK_TASKS)
        attempt, status = job.attempts.get(block), job.statuses.get(block)
        if attempt is None or status is None or status.state[position] != _FAILED:
            continue
        if ints(status, "number")[position] == ints(attempt, "number")[position]:
            slot = view.room.slot.get(attempt.nodes[ints(attempt, "node")[position]])
            found |= {} if slot is None else {slot: None}
    return list(found)


def _barred(view: View, slots: list[int]) -> Array | None:
    return barring(view, slots) if slots else None
