"""Resource reservations: the node's amounts + queued attempts -> which one starts next, on which GPUs."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rota.keeper.resources.gpus import GPU, NO_GPUS, WHOLE, GpuAllocator, GpuShare

AttemptKey = tuple[str, int, int]  # job, index, attempt
Needs = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Grant:
    key: AttemptKey
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    key: AttemptKey
    reason: str


class ResourceRequest(NamedTuple):
    """What an attempt needs, and the mask of GPUs that the scheduler chose; 0: any."""

    needs: Needs
    mask: int = 0


class ResourceReservation(NamedTuple):
    needs: Needs
    share: GpuShare


class Reservations:
    """Reservations of running attempts, and the queue of those that wait.

    Invariant: never more is reserved than the node has. Firm attempts go before lookahead, each in order of
    arrival. The head of the queue blocks those behind it: freed resources are for the head, so none starves.
    """

    def __init__(self) -> None:
        self._amounts: dict[str, int] | None = None
        self._free: dict[str, int] = {}
        self._gpus = GpuAllocator()
        self._held: dict[AttemptKey, ResourceReservation] = {}
        self._firm: OrderedDict[AttemptKey, ResourceRequest] = OrderedDict()
        self._lookahead: OrderedDict[AttemptKey, ResourceRequest] = OrderedDict()

    def configure(self, amounts: Mapping[str, int], gpus: Sequence[str]) -> list[Refusal]:
        """Set the node's amounts and GPUs; return refusals of queued attempts that can no longer fit."""
        self._amounts = dict(amounts)
        self._gpus.configure(gpus[: amounts.get(GPU, 0) // WHOLE])
        self._free = dict(self._amounts)
        # What runs keeps its reservation, even beyond a
        # smaller capacity: free amounts may be negative then.
        for held in self._held.values():
            for name, amount in held.needs:
                self._free[name] = self._free.get(name, 0) - amount
        return self._refuse_infeasible()

    def enqueue(self, key: AttemptKey, request: ResourceRequest, *, firm: bool) -> str | None:
        """Enqueue an attempt, or return why it can never fit. Offered again as firm, it moves up."""
        if reason := self._infeasible_reason(request):
            return reason
        if firm:
            self._lookahead.pop(key, None)
            self._firm.setdefault(key, request)
        elif key not in self._firm:
            self._lookahead.setdefault(key, request)
        return None

    def admit_next(self) -> Grant | Refusal | None:
        """Reserve resources for the head of the queue, if it fits now.

        The scheduler names GPUs that it counts as free. If they are not, its view is out of date, and the
        attempt is refused instead of waiting.
        """
        # The head of the firm queue blocks the lookahead too:
        # freed resources are for attempts that have a reservation.
        queue = self._firm or self._lookahead
        if self._amounts is None or not queue:
            return None
        key = next(iter(queue))
        needs, mask = queue[key]
        share: GpuShare | None = NO_GPUS
        for name, amount in needs:
            if name == GPU:
                share = self._gpus.choose(amount, mask)
            elif self._free.get(name, 0) < amount:
                return None
        if share is None and not mask:
            return None
        del queue[key]
        if share is None:
            return Refusal(key, self._gpus.busy_reason(dict(needs)[GPU], mask))
        return self._reserve(key, ResourceReservation(needs, share))

    def release(self, key: AttemptKey) -> None:
        held = self._held.pop(key)
        for name, amount in held.needs:
            self._free[name] += amount
        self._gpus.release(held.share)

    def withdraw(self, key: AttemptKey) -> bool:
        """Remove an attempt from the queue; False if it is not queued."""
        return self._firm.pop(key, None) is not None or self._lookahead.pop(key, None) is not None

    def waiting_keys(self) -> list[AttemptKey]:
        return [*self._firm, *self._lookahead]

    def has_waiting(self) -> bool:
        return bool(self._firm or self._lookahead)

    def is_waiting(self, key: AttemptKey) -> bool:
        return key in self._firm or key in self._lookahead

    def gpu_masks(self) -> dict[AttemptKey, int]:
        """The masks of GPUs reserved for attempts that have any."""
        shares = {key: held.share for key, held in self._held.items() if held.share.names}
        return {key: self._gpus.mask_of(share) for key, share in shares.items()}

    def reserved(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for held in self._held.values():
            for name, amount in held.needs:
                total[name] = total.get(name, 0) + amount
        return total

    def _reserve(self, key: AttemptKey, held: ResourceReservation) -> Grant:
        for name, amount in held.needs:
            self._free[name] -= amount
        self._gpus.allocate(held.share)
        self._held[key] = held
        return Grant(key, held.share.names)

    def _refuse_infeasible(self) -> list[Refusal]:
        refused = []
        for queue in (self._firm, self._lookahead):
            for key, request in list(queue.items()):
                if reason := self._infeasible_reason(request):
                    del queue[key]
                    refused.append(Refusal(key, reason))
        return refused

    def _infeasible_reason(self, request: ResourceRequest) -> str | None:
        if self._amounts is None:
            return None
        for name, amount in request.needs:
            total = self._amounts.get(name, 0)
            if name == GPU:
                if reason := self._gpus.infeasible_reason(amount, request.mask):
                    return reason
            elif amount > total:
                return f"needs {amount} of {name}, this node has {total}"
        return None
