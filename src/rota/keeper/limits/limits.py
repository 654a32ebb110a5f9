"""Limits of an attempt, and the reasons shown when one is exceeded."""

from collections.abc import Mapping
from dataclasses import dataclass

from rota.keeper.resources.reservations import Needs

MEMORY, CPU, PIDS = "memory", "cpu", "pids"
PIDS_MAX = 1 << 22  # the kernel accepts no larger limit
MEMORY_MIN = 1 << 20  # with less no program could be executed
LIMITS = (MEMORY, CPU, PIDS)
OOM = "oom"  # cause of an end, by which a retry policy may decide


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    memory_bytes: int | None = None
    cpu_milli: int | None = None  # quota
    pids: int | None = None
    cpu_weight_milli: int = 1000  # its share of a busy machine: the CPUs that it requested

    def __bool__(self) -> bool:
        return self.memory_bytes is not None or self.cpu_milli is not None or self.pids is not None


NO_LIMITS = AttemptLimits()


def effective_limits(requested: Mapping[str, int], needs: Needs) -> AttemptLimits:
    """Explicit limits, or else the requested memory as the memory limit."""
    by_name = dict(needs)
    memory = requested.get(MEMORY, by_name.get(MEMORY))
    return AttemptLimits(
        None if not memory else max(memory, MEMORY_MIN),
        requested.get(CPU) or None,
        requested.get(PIDS) or None,
        by_name.get(CPU) or 1000,
    )


def out_of_memory_reason(limit_bytes: int, peak_bytes: int) -> str:
    return f"out of memory: limit {format_bytes(limit_bytes)}, peak {format_bytes(peak_bytes)}"


def too_many_processes_reason(limit: int, seen: int) -> str:
    return f"too many processes: limit {limit}, seen {seen}"


def format_bytes(count: float) -> str:
    """Bytes with a unit: 64 MiB, 7.2 GiB."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.1f}".removesuffix(".0") + f" {units[0]}"
