"""Fractions of GPUs, whole ones and several at once under faults: no GPU is ever given away twice."""

from random import Random
from typing import Any

import pytest

from rota.sim.faults.draw import draw
from rota.sim.faults.fault import SimFault
from rota.sim.scenario import CPU, GIB, SAFETY_MS, Scenario, run
from rota.sim.simulation import Size
from rota.sim.workloads.model import Arrival, Behaviour, NodeGroup

NODES = NodeGroup(2, {"cpu": 16 * CPU, "memory": 8 * GIB, "gpu": 4000}, {})


def devices(seed: int) -> Scenario:
    """Too few GPUs, on nodes that return with attempts that were declared lost."""
    rng = Random(f"{seed}/gpus")
    arrivals = sorted((arrival(rng, n) for n in range(30)), key=lambda job: job.at_ms)
    length_ms = SAFETY_MS * 3 // 4
    cut = [SimFault(rng.randrange(length_ms), "cut off", rng.randrange(1000), 15_000, 0.5) for _ in range(6)]
    faults = sorted([*draw(rng, length_ms, servers=1), *cut])
    return Scenario(seed, Size((NODES,), lost_ms=10_000), arrivals, faults)


def arrival(rng: Random, number: int) -> Arrival:
    spec: dict[str, Any] = {"name": f"job-{number}", "command": ["work"], "retries": 1, "cpu": 0.5}
    spec["gpu"] = rng.choice((0.1, 0.3, 0.5, 0.5, 0.7, 1, 2, 4))
    spec["count"] = rng.choice((1, 2, 5))
    spec["priority"] = rng.choice((50, 50, 90))
    spec["grace"] = "10s"
    behaviour = Behaviour(rng.choice((3_000, 30_000, 60_000)), 0.5, rng.choice((0.0, 0.3)), 0.5)
    return Arrival(rng.randrange(SAFETY_MS * 3 // 4), spec, behaviour)


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(12))
def test_no_gpu_is_given_away_twice_under_faults(seed: int) -> None:
    found = run(devices(seed), keep_trace=False)

    assert found.broken is None
    assert found.attempts > 30
