"""Attempts and their limits -> which of them went beyond: by their groups, or seen by looking at them."""

import os
import signal
from collections.abc import Iterable
from dataclasses import replace

from rota.keeper.attempt import Excess, Outcome, Running
from rota.keeper.limits.words import MEMORY, PIDS, Limits, out_of_memory, too_many
from rota.keeper.process.trees import Marked
from rota.keeper.rules import Key

EVERY_SECONDS = 0.2
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def excess_of(attempt: Running) -> Excess | None:
    """By its group's word."""
    limit_bytes = attempt.spec.limits.memory_bytes
    if attempt.group is None or limit_bytes is None:
        return None
    peak_bytes = attempt.group.memory_peak_if_killed()
    if peak_bytes is None:
        return None
    return Excess(out_of_memory(limit_bytes, peak_bytes), peak_bytes // 1024)


def judged(attempt: Running, outcome: Outcome) -> Outcome:
    """Whoever went beyond a limit died of that, whatever its leader's last word was."""
    excess = attempt.excess or excess_of(attempt)
    if excess is None:
        return outcome
    return replace(
        outcome, exit_code=None, signum=int(signal.SIGKILL), peak_kib=excess.peak_kib, reason=excess.reason
    )


def watched(attempt: Running) -> Limits:
    """What of its limits its group, if it has one, does not keep."""
    limits, kept = attempt.spec.limits, attempt.group.kept if attempt.group else ()
    return Limits(
        memory_bytes=None if MEMORY in kept else limits.memory_bytes,
        pids=None if PIDS in kept else limits.pids,
    )


def seen_excess(limits: Limits, pids: list[int]) -> Excess | None:
    """By what its processes have now: what they share with others is not counted."""
    if not limits:
        return None
    memory_bytes = sum(map(_private_bytes, pids))
    if limits.memory_bytes is not None and memory_bytes > limits.memory_bytes:
        return Excess(out_of_memory(limits.memory_bytes, memory_bytes), memory_bytes // 1024)
    threads = sum(map(_threads, pids)) if limits.pids is not None else 0
    if limits.pids is not None and threads > limits.pids:
        return Excess(too_many(limits.pids, threads), memory_bytes // 1024)
    return None


def trees_of(found: Iterable[Marked]) -> dict[Key, list[int]]:
    trees: dict[Key, list[int]] = {}
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
