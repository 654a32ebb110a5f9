"""Attempts and their limits -> which were exceeded, by cgroup counters or by measuring processes."""

import os
import signal
from collections.abc import Iterable
from dataclasses import replace

from rota.keeper.attempt import ExitStatus, LimitViolation, RunningAttempt
from rota.keeper.limits.limits import (
    MEMORY,
    OOM,
    PIDS,
    AttemptLimits,
    out_of_memory_reason,
    too_many_processes_reason,
)
from rota.keeper.process.trees import MarkedProcess
from rota.keeper.resources.reservations import AttemptKey

INTERVAL_SECONDS = 0.2
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cgroup_violation(attempt: RunningAttempt) -> LimitViolation | None:
    """The memory limit, if the kernel had to kill in the attempt's cgroup; else None."""
    limit_bytes = attempt.spec.limits.memory_bytes
    if attempt.cgroup is None or limit_bytes is None:
        return None
    peak_bytes = attempt.cgroup.oom_peak_bytes()
    if peak_bytes is None:
        return None
    return LimitViolation(out_of_memory_reason(limit_bytes, peak_bytes), peak_bytes // 1024, OOM)


def apply_violation(attempt: RunningAttempt, outcome: ExitStatus) -> ExitStatus:
    """An attempt that exceeded a limit ended because of that, whatever its leader's exit status says."""
    violation = attempt.violation or cgroup_violation(attempt)
    if violation is None:
        return outcome
    return replace(
        outcome,
        exit_code=None,
        signum=int(signal.SIGKILL),
        peak_kib=violation.peak_kib,
        reason=violation.reason,
        cause=violation.cause,
    )


def unenforced_limits(attempt: RunningAttempt) -> AttemptLimits:
    """The limits that no cgroup enforces, and which are therefore polled."""
    limits, enforced = attempt.spec.limits, attempt.cgroup.enforced if attempt.cgroup else ()
    return AttemptLimits(
        memory_bytes=None if MEMORY in enforced else limits.memory_bytes,
        pids=None if PIDS in enforced else limits.pids,
    )


def measured_violation(limits: AttemptLimits, pids: list[int]) -> LimitViolation | None:
    """The limit that these processes exceed now; memory shared with others is not counted."""
    if not limits:
        return None
    memory_bytes = sum(map(_private_bytes, pids))
    if limits.memory_bytes is not None and memory_bytes > limits.memory_bytes:
        return LimitViolation(
            out_of_memory_reason(limits.memory_bytes, memory_bytes), memory_bytes // 1024, OOM
        )
    threads = sum(map(_threads, pids)) if limits.pids is not None else 0
    if limits.pids is not None and threads > limits.pids:
        return LimitViolation(too_many_processes_reason(limits.pids, threads), memory_bytes // 1024)
    return None


def pids_by_attempt(found: Iterable[MarkedProcess]) -> dict[AttemptKey, list[int]]:
    trees: dict[AttemptKey, list[int]] = {}
    for process in found:
        if process.key is not None:
            trees.setdefault(process.key, []).append(process.pid)
    return trees


def _private_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):  # the process has ended
        return 0
    return (resident - shared) * PAGE_BYTES


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
