"""Attempts and their limits -> which of them went beyond: by their groups, or seen by looking at them."""

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
    """By its group's word."""
    limit_bytes = attempt.spec.limits.memory_bytes
    if attempt.cgroup is None or limit_bytes is None:
        return None
    peak_bytes = attempt.cgroup.oom_peak_bytes()
    if peak_bytes is None:
        return None
    return LimitViolation(out_of_memory_reason(limit_bytes, peak_bytes), peak_bytes // 1024, OOM)


def apply_violation(attempt: RunningAttempt, outcome: ExitStatus) -> ExitStatus:
    """Whoever went beyond a limit died of that, whatever its leader's last word was."""
    excess = attempt.violation or cgroup_violation(attempt)
    if excess is None:
        return outcome
    return replace(
        outcome,
        exit_code=None,
        signum=int(signal.SIGKILL),
        peak_kib=excess.peak_kib,
        reason=excess.reason,
        cause=excess.cause,
    )


def unenforced_limits(attempt: RunningAttempt) -> AttemptLimits:
    """What of its limits its group, if it has one, does not keep."""
    limits, kept = attempt.spec.limits, attempt.cgroup.enforced if attempt.cgroup else ()
    return AttemptLimits(
        memory_bytes=None if MEMORY in kept else limits.memory_bytes,
        pids=None if PIDS in kept else limits.pids,
    )


def measured_violation(limits: AttemptLimits, pids: list[int]) -> LimitViolation | None:
    """By what its processes have now: what they share with others is not counted."""
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
    except (OSError, ValueError):  # gone
        return 0
    return (resident - shared) * PAGE_BYTES


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
