"""Jobs with steps under faults: each step starts once, in order, and every invariant holds."""

from random import Random
from typing import Any

import pytest

from rota.sim.faults.draw import draw
from rota.sim.scenario import CPU, GIB, SAFETY_MS, Scenario, run
from rota.sim.simulation import Size
from rota.sim.workloads.model import Arrival, Behaviour, NodeGroup

NODES = NodeGroup(3, {"cpu": 8 * CPU, "memory": 8 * GIB}, {})


def actions(seed: int) -> Scenario:
    rng = Random(f"{seed}/steps")
    arrivals = sorted((arrival(rng, n) for n in range(40)), key=lambda job: job.at_ms)
    faults = draw(rng, SAFETY_MS * 3 // 4, servers=1)
    return Scenario(seed, Size((NODES,), lost_ms=10_000), arrivals, sorted(faults))


def arrival(rng: Random, number: int) -> Arrival:
    steps: list[dict[str, Any]] = [{"command": ["work"]} for _ in range(rng.choice((1, 2, 5, 9)))]
    if rng.random() < 0.2:
        rng.choice(steps)["command"] = ["missing"]
    if rng.random() < 0.2:
        rng.choice(steps)["timeout"] = "1s"
    spec: dict[str, Any] = {"name": f"job-{number}", "steps": steps, "retries": 1, "cpu": 0.5}
    spec["count"] = rng.choice((1, 2, 5))
    spec["run"] = rng.choice(("at_least_once", "at_least_once", "at_most_once"))
    if rng.random() < 0.2:
        spec["timeout"] = "20s"
    spec["priority"] = rng.choice((50, 50, 90))
    spec["grace"] = "10s"
    behaviour = Behaviour(rng.choice((5, 500, 5_000)), 0.5, rng.choice((0.0, 0.3)), 0.3)
    return Arrival(rng.randrange(SAFETY_MS * 3 // 4), spec, behaviour)


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(12))
def test_jobs_with_steps_keep_every_invariant_under_faults(seed: int) -> None:
    found = run(actions(seed), keep_trace=False)

    assert found.broken is None
    assert found.attempts > 40
