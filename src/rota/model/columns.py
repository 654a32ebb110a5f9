"""Packed columns: many small numbers of equal meaning, one `bytes` each, inside a frozen record."""

from collections.abc import Iterable, Mapping
from functools import cache, reduce
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_CODES: Mapping[str, Any] = {"u1": "B", "u2": "H", "u4": "I", "i2": "h", "i8": "q"}
_DTYPES = {name: np.dtype(name) for name in _CODES}  # NumPy takes long to read a name
FEW = 16  # tasks: up to here a plain loop beats NumPy's cost per call


class Columned(Protocol):
    """A record whose columns are named, with their NumPy type, in COLUMNS."""

    COLUMNS: ClassVar[Mapping[str, str]]


B = TypeVar("B", bound=msgspec.Struct)


def zeros(kind: type[Columned], size: int) -> dict[str, Any]:
    """Empty columns for a new record of that kind."""
    return {name: bytes(size * width) for name, width in _widths(kind).items()}


@cache
def _widths(kind: type[Columned]) -> dict[str, int]:
    return {name: np.dtype(dtype).itemsize for name, dtype in kind.COLUMNS.items()}


def widened(record: B, size: int) -> B:
    """The record with columns for `size` tasks; those that were added since it was written are zero."""
    widths = _widths(type(record))
    first, width = next(iter(widths.items()))
    if len(getattr(record, first)) >= size * width:
        return record
    # A job may grow after the record was written; the zero of every column means "nothing happened yet".
    longer = {name: getattr(record, name).ljust(size * widths[name], b"\0") for name in widths}
    return msgspec.structs.replace(record, **longer)


def column(record: Any, name: str) -> Array:
    """One column as a read-only array, without a copy."""
    return np.frombuffer(getattr(record, name), _dtype(record, name))


def _dtype(record: Any, name: str) -> np.dtype[Any]:
    return _DTYPES[record.COLUMNS[name]]


def _code(record: Any, name: str) -> Any:
    return _CODES[record.COLUMNS[name]]


def ints(record: Any, name: str) -> "memoryview[int] | bytes":
    """One column for reading number by number, which is faster than an array where few are read."""
    data: bytes = getattr(record, name)
    code = _code(record, name)
    return data if code == "B" else memoryview(data).cast(code)


def count_filled(record: Any, name: str, size: int) -> int:
    """The number of non-zero entries among the first `size` of a column."""
    return int(np.count_nonzero(column(record, name)[:size]))


def changes(before: bytes, now: bytes) -> list[int]:
    """Positions at which two columns of one byte per task differ."""
    if before == now:
        return []
    if len(now) > FEW:
        return where(small(before) != small(now))
    return [position for position, byte in enumerate(now) if byte != before[position]]


def differing(before: B | None, now: B, names: Iterable[str]) -> list[int] | None:
    """Positions at which two records differ in these columns; None: there is no previous record."""
    if before is None:
        return None
    unequal = [name for name in names if getattr(before, name) != getattr(now, name)]
    if not unequal:
        return []
    pairs = [(ints(before, name), ints(now, name)) for name in unequal]
    size = len(pairs[0][0])
    if size <= FEW:
        return [at for at in range(size) if any(old[at] != new[at] for old, new in pairs)]
    return where(reduce(np.logical_or, [column(before, name) != column(now, name) for name in unequal]))


def small(data: bytes) -> Array:
    """A column of one byte per task that is not part of a record, as an array."""
    return np.frombuffer(data, np.uint8)


def where(mask: Array) -> list[int]:
    """Positions at which a mask is true."""
    found: list[int] = np.nonzero(mask)[0].tolist()
    return found


def indexer(positions: list[int]) -> slice | Array:
    """An index for ascending positions: a slice if they are contiguous, which is fastest."""
    first, last = positions[0], positions[-1]
    if last - first == len(positions) - 1:
        return slice(first, last + 1)
    return np.array(positions, np.intp)


class Draft(Generic[B]):
    """A record being changed: columns are copied on first access, and packed again by done()."""

    def __init__(self, record: B) -> None:
        self.record = record
        self._open: dict[str, bytearray] = {}

    def __getitem__(self, name: str) -> Array:
        """One column as a writable array."""
        return np.frombuffer(self._data(name), _dtype(self.record, name))

    def fill(self, name: str, positions: list[int], values: list[int]) -> None:
        """Set values from outside at ascending positions; a value out of range becomes the nearest one."""
        if len(positions) <= FEW and self._fill_few(name, positions, values):
            return
        array, at = self[name], indexer(positions)
        try:
            array[at] = values
        # Values come from nodes and may be anything. Clamped rather than refused: one absurd number
        # must not cost a node all its reports.
        except OverflowError:
            bounds = np.iinfo(array.dtype)
            array[at] = [min(max(value, int(bounds.min)), int(bounds.max)) for value in values]

    def done(self, **changes: Any) -> B:
        packed = {name: bytes(data) for name, data in self._open.items()}
        return msgspec.structs.replace(self.record, **packed, **changes)

    def _data(self, name: str) -> bytearray:
        data = self._open.get(name)
        if data is None:
            data = self._open[name] = bytearray(getattr(self.record, name))
        return data

    def _fill_few(self, name: str, positions: list[int], values: list[int]) -> bool:
        """Set values one by one; False: one of them is out of range."""
        numbers = memoryview(self._data(name)).cast(_code(self.record, name))
        try:
            for at, value in zip(positions, values, strict=True):
                numbers[at] = value
        except (OverflowError, ValueError):
            return False
        return True


class Ranges:
    """Task indices as ranges, as users read them: 0-99, 103."""

    def __init__(self, indices: list[int]) -> None:
        self.pairs: list[tuple[int, int]] = []
        for index in sorted(indices):
            if self.pairs and self.pairs[-1][1] == index - 1:
                self.pairs[-1] = (self.pairs[-1][0], index)
            else:
                self.pairs.append((index, index))

    @classmethod
    def of(cls, array: Array) -> Self:
        return cls(array.tolist())

    def __str__(self) -> str:
        return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in self.pairs)
