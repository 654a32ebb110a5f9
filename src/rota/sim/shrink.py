"""A scenario that breaks a promise -> the smallest part of it that still does, and its story."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from rota.sim.scenario import Finding, Scenario, run

RUNS_MAX = 300
T = TypeVar("T")


def shrink(found: Finding) -> Finding:
    """Leaves out faults, then jobs, then copies of tasks, for as long as something stays broken."""
    left = RUNS_MAX
    best = found

    def breaks(case: Scenario) -> bool:
        nonlocal best, left
        if left <= 0:
            return False
        left -= 1
        again = run(case)
        if again.broken is not None:
            best = again
        return again.broken is not None

    for _ in range(2):
        _fewer(best.scenario.faults, lambda faults: breaks(best.scenario._replace(faults=faults)))
        _fewer(best.scenario.arrivals, lambda arrivals: breaks(best.scenario._replace(arrivals=arrivals)))
    return best


def _fewer(items: Sequence[T], breaks: Callable[[list[T]], bool]) -> None:
    """Leave out halves, then quarters, and so on down to single ones."""
    kept = list(items)
    size = max(1, len(kept) // 2)
    while kept:
        at = 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if breaks(fewer):
                kept = fewer
            else:
                at += size
        if size == 1:
            return
        size //= 2


def story(found: Finding) -> list[str]:
    """The lines of the trace that have to do with what broke: its jobs, its nodes, the faults, who led."""
    broken = found.broken or ""
    jobs = re.findall(r"job (\d+)", broken)
    nodes = re.findall(r"\bn\d+\b", broken)
    words = [rf"job {job}\b" for job in jobs] + [rf"\b{node}\b" for node in nodes]
    pattern = re.compile("|".join([*words, "BROKEN", "fault:", "leads epoch", "deposed", "steps down"]))
    return [line for line in found.trace if pattern.search(line)] if words else found.trace
