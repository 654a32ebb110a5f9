"""A node's room and what waits for it -> which attempt starts next, and on which GPUs."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Key = tuple[str, int, int]  # job, index, attempt
Needs = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Grant:
    key: Key
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    key: Key
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    needs: Needs
    gpus: tuple[str, ...]


class Room:
    """Never reserves more than there is; firm attempts go before lookahead, each in order of arrival.

    The head of the line blocks those behind it: what ends leaves room for the head alone, so nothing starves.
    """

    def __init__(self) -> None:
        self._amounts: dict[str, int] | None = None
        self._free: dict[str, int] = {}
        self._free_gpus: list[str] = []
        self._held: dict[Key, Held] = {}
        self._firm: OrderedDict[Key, Needs] = OrderedDict()
        self._lookahead: OrderedDict[Key, Needs] = OrderedDict()

    def configure(self, amounts: Mapping[str, int], gpus: Sequence[str]) -> list[Refusal]:
        """Take over the size of the node; what waits and can never fit any more is refused."""
        self._amounts = {**amounts, "gpu": min(amounts.get("gpu", 0), len(gpus))}
        self._free = dict(self._amounts)
        taken: set[str] = set()
        for held in self._held.values():
            taken.update(held.gpus)
            for name, amount in held.needs:
                self._free[name] = self._free.get(name, 0) - amount
        self._free_gpus = [gpu for gpu in gpus if gpu not in taken]
        return self._refuse_the_impossible()

    def offer(self, key: Key, needs: Needs, *, firm: bool) -> str | None:
        """Put an attempt in line, or say why it can never run here. Offered again as firm, it moves up."""
        if reason := self._impossible(needs):
            return reason
        if firm:
            self._lookahead.pop(key, None)
            self._firm.setdefault(key, needs)
        elif key not in self._firm:
            self._lookahead.setdefault(key, needs)
        return None

    def next(self) -> Grant | None:
        """Reserve room for the attempt whose turn it is, if it fits now."""
        line = self._firm or self._lookahead
        if self._amounts is None or not line:
            return None
        key = next(iter(line))
        needs = line[key]
        free = self._free
        for name, amount in needs:
            if free.get(name, 0) < amount:
                return None
        return self._reserve(key, line.pop(key))

    def release(self, key: Key) -> None:
        held = self._held.pop(key)
        for name, amount in held.needs:
            self._free[name] += amount
        self._free_gpus.extend(held.gpus)

    def withdraw(self, key: Key) -> bool:
        """Take a waiting attempt out of the line; False if it does not wait."""
        return self._firm.pop(key, None) is not None or self._lookahead.pop(key, None) is not None

    def waiting(self) -> list[Key]:
        return [*self._firm, *self._lookahead]

    def has_waiting(self) -> bool:
        return bool(self._firm or self._lookahead)

    def waits(self, key: Key) -> bool:
        return key in self._firm or key in self._lookahead

    def reserved(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for held in self._held.values():
            for name, amount in held.needs:
                total[name] = total.get(name, 0) + amount
        return total

    def _reserve(self, key: Key, needs: Needs) -> Grant:
        gpus: tuple[str, ...] = ()
        for name, amount in needs:
            self._free[name] -= amount
            if name == "gpu":
                gpus = tuple(self._free_gpus[:amount])
                del self._free_gpus[:amount]
        self._held[key] = Held(needs, gpus)
        return Grant(key, gpus)

    def _refuse_the_impossible(self) -> list[Refusal]:
        refused = []
        for line in (self._firm, self._lookahead):
            for key, needs in list(line.items()):
                if reason := self._impossible(needs):
                    del line[key]
                    refused.append(Refusal(key, reason))
        return refused

    def _impossible(self, needs: Needs) -> str | None:
        if self._amounts is None:
            return None
        for name, amount in needs:
            whole = self._amounts.get(name, 0)
            if amount > whole:
                return f"needs {amount} of {name}, this node has {whole}"
        return None
