"""A scenario that violates an invariant -> the smallest part that still does, and the relevant trace."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from rota.sim.scenario import Finding, Scenario, run

RUNS_MAX = 300
T = TypeVar("T")


def shrink(found: Finding) -> Finding:
    """Leave out faults, then jobs, as long as some invariant stays violated; at most RUNS_MAX runs."""
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

    # Twice: with fewer jobs some faults that were needed before can be left out.
    for _ in range(2):
        _fewer(best.scenario.faults, lambda faults: breaks(best.scenario._replace(faults=faults)))
        _fewer(best.scenario.arrivals, lambda arrivals: breaks(best.scenario._replace(arrivals=arrivals)))
    return best


def _fewer(items: Sequence[T], breaks: Callable[[list[T]], bool]) -> None:
    """Leave out halves, then quarters, and so on down to single items."""
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


def relevant_trace(found: Finding) -> list[str]:
    """Lines of the trace about the jobs and nodes of the violation, the faults and the leaders."""
    broken = found.broken or ""
    jobs = re.findall(r"job (\d+)", broken)
    nodes = re.findall(r"\bn\d+\b", broken)
    patterns = [rf"job {job}\b" for job in jobs] + [rf"\b{node}\b" for node in nodes]
    pattern = re.compile("|".join([*patterns, "BROKEN", "fault:", "leads epoch", "deposed", "steps down"]))
    return [line for line in found.trace if pattern.search(line)] if patterns else found.trace
