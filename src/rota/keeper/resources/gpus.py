"""What is taken of each GPU, in thousandths + what an attempt asks for -> the devices it gets."""

from collections.abc import Sequence
from typing import NamedTuple

GPU = "gpu"
WHOLE = 1000  # thousandths of a device


class GpuShare(NamedTuple):
    """Some devices, and how much of each."""

    names: tuple[str, ...] = ()
    each: int = 0


NO_GPUS = GpuShare()


class GpuAllocator:
    """Never gives away more of a device than there is of it.

    A mask names devices by their place, one bit each. Without one, whole devices are given that nobody uses.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._allocated: dict[str, int] = {}  # also of devices that the node no longer offers

    def configure(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def infeasible_reason(self, amount: int, mask: int) -> str | None:
        """Why this could not be had even if nobody else had anything."""
        there, count = len(self._names), _device_count(amount)
        if mask >> there:
            return f"was given GPU {mask.bit_length() - 1}, this node has {there} of them"
        if mask and mask.bit_count() != count:
            return f"needs {amount / WHOLE:g} of {GPU}, was given {mask.bit_count()} devices"
        if count > there:
            return f"needs {amount / WHOLE:g} of {GPU}, this node has {there}"
        return None

    def choose(self, amount: int, mask: int) -> GpuShare | None:
        """What it would get now; None: somebody else has it."""
        if not mask:
            unused = [name for name in self._names if not self._allocated.get(name)]
            count = _device_count(amount)
            return GpuShare(tuple(unused[:count]), WHOLE) if count <= len(unused) else None
        share = GpuShare(tuple(self._names_of(mask)), min(amount, WHOLE))
        return share if all(self._free(name) >= share.each for name in share.names) else None

    def busy_reason(self, amount: int, mask: int) -> str:
        """Why the devices of this mask cannot be had now."""
        free, name = min((self._free(name), name) for name in self._names_of(mask))
        return f"GPU {name} has {free / WHOLE:g} free, asked {min(amount, WHOLE) / WHOLE:g}"

    def allocate(self, share: GpuShare) -> None:
        for name in share.names:
            self._allocated[name] = self._allocated.get(name, 0) + share.each

    def release(self, share: GpuShare) -> None:
        for name in share.names:
            self._allocated[name] -= share.each

    def mask_of(self, share: GpuShare) -> int:
        """By their places now; a device that the node no longer offers has none."""
        return sum(1 << place for place, name in enumerate(self._names) if name in share.names)

    def _free(self, name: str) -> int:
        return WHOLE - self._allocated.get(name, 0)

    def _names_of(self, mask: int) -> list[str]:
        return [name for place, name in enumerate(self._names) if mask >> place & 1]


def _device_count(amount: int) -> int:
    """How many devices so many thousandths are taken from: a part of one, or whole ones."""
    return -(-amount // WHOLE)
