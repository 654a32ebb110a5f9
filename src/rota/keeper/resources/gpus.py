"""GPU allocation: allocated thousandths of each device + a request -> the devices it gets."""

from collections.abc import Sequence
from typing import NamedTuple

GPU = "gpu"
WHOLE = 1000  # thousandths of a device


class GpuShare(NamedTuple):
    """Devices, and how many thousandths of each."""

    names: tuple[str, ...] = ()
    each: int = 0


NO_GPUS = GpuShare()


class GpuAllocator:
    """Allocates whole devices and fractions of one. Invariant: never more than WHOLE of a device.

    A mask names devices, one bit each in the node's order. Without a mask, unused whole devices are chosen.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._allocated: dict[str, int] = {}  # includes devices that were removed from the node since

    def configure(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def infeasible_reason(self, amount: int, mask: int) -> str | None:
        """Why the request could not be satisfied on an empty node; None: it could."""
        device_count, count = len(self._names), _device_count(amount)
        if mask >> device_count:
            return f"was given GPU {mask.bit_length() - 1}, this node has {device_count} of them"
        if mask and mask.bit_count() != count:
            return f"needs {amount / WHOLE:g} of {GPU}, was given {mask.bit_count()} devices"
        if count > device_count:
            return f"needs {amount / WHOLE:g} of {GPU}, this node has {device_count}"
        return None

    def choose(self, amount: int, mask: int) -> GpuShare | None:
        """The devices for a request; None: they are not free now."""
        if not mask:
            unused = [name for name in self._names if not self._allocated.get(name)]
            count = _device_count(amount)
            return GpuShare(tuple(unused[:count]), WHOLE) if count <= len(unused) else None
        share = GpuShare(tuple(self._names_of(mask)), min(amount, WHOLE))
        return share if all(self._free(name) >= share.each for name in share.names) else None

    def busy_reason(self, amount: int, mask: int) -> str:
        """Why the devices of this mask are not free now."""
        free, name = min((self._free(name), name) for name in self._names_of(mask))
        return f"GPU {name} has {free / WHOLE:g} free, asked {min(amount, WHOLE) / WHOLE:g}"

    def allocate(self, share: GpuShare) -> None:
        for name in share.names:
            self._allocated[name] = self._allocated.get(name, 0) + share.each

    def release(self, share: GpuShare) -> None:
        for name in share.names:
            self._allocated[name] -= share.each

    def mask_of(self, share: GpuShare) -> int:
        """The mask of a share, without devices that were removed from the node since."""
        return sum(1 << place for place, name in enumerate(self._names) if name in share.names)

    def _free(self, name: str) -> int:
        return WHOLE - self._allocated.get(name, 0)

    def _names_of(self, mask: int) -> list[str]:
        return [name for place, name in enumerate(self._names) if mask >> place & 1]


def _device_count(amount: int) -> int:
    """The number of devices for this many thousandths: one for a fraction, else whole ones."""
    return -(-amount // WHOLE)
