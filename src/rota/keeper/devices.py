"""What is taken of each GPU, in thousandths + what an attempt asks for -> the devices it gets."""

from collections.abc import Sequence
from typing import NamedTuple

GPU = "gpu"
WHOLE = 1000  # thousandths of a device


class Share(NamedTuple):
    """Some devices, and how much of each."""

    names: tuple[str, ...] = ()
    each: int = 0


NOTHING = Share()


class Devices:
    """Never gives away more of a device than there is of it.

    A mask names devices by their place, one bit each. Without one, whole devices are given that nobody uses.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._taken: dict[str, int] = {}  # also of devices that the node no longer offers

    def offer(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def impossible(self, amount: int, mask: int) -> str | None:
        """Why this could not be had even if nobody else had anything."""
        there, count = len(self._names), _count(amount)
        if mask >> there:
            return f"was given GPU {mask.bit_length() - 1}, this node has {there} of them"
        if mask and mask.bit_count() != count:
            return f"needs {amount / WHOLE:g} of {GPU}, was given {mask.bit_count()} devices"
        if count > there:
            return f"needs {amount / WHOLE:g} of {GPU}, this node has {there}"
        return None

    def choose(self, amount: int, mask: int) -> Share | None:
        """What it would get now; None: somebody else has it."""
        if not mask:
            unused = [name for name in self._names if not self._taken.get(name)]
            count = _count(amount)
            return Share(tuple(unused[:count]), WHOLE) if count <= len(unused) else None
        share = Share(tuple(self._named(mask)), min(amount, WHOLE))
        return share if all(self._free(name) >= share.each for name in share.names) else None

    def crowded(self, amount: int, mask: int) -> str:
        """Why the devices of this mask cannot be had now."""
        free, name = min((self._free(name), name) for name in self._named(mask))
        return f"GPU {name} has {free / WHOLE:g} free, asked {min(amount, WHOLE) / WHOLE:g}"

    def take(self, share: Share) -> None:
        for name in share.names:
            self._taken[name] = self._taken.get(name, 0) + share.each

    def give_back(self, share: Share) -> None:
        for name in share.names:
            self._taken[name] -= share.each

    def mask_of(self, share: Share) -> int:
        """By their places now; a device that the node no longer offers has none."""
        return sum(1 << place for place, name in enumerate(self._names) if name in share.names)

    def _free(self, name: str) -> int:
        return WHOLE - self._taken.get(name, 0)

    def _named(self, mask: int) -> list[str]:
        return [name for place, name in enumerate(self._names) if mask >> place & 1]


def _count(amount: int) -> int:
    """How many devices so many thousandths are taken from: a part of one, or whole ones."""
    return -(-amount // WHOLE)
