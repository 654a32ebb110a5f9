"""A seed -> a scenario with a memory store whose server restarts."""

from random import Random
from typing import Any

from rota.model.limits import LOST_MS
from rota.sim.faults.fault import SimFault
from rota.sim.scenario import CPU, GIB, SAFETY_MS, Scenario
from rota.sim.seeds.job_kinds import SYSTEM
from rota.sim.simulation import Size
from rota.sim.workloads.model import Arrival, Behaviour, NodeGroup

# As long as no node is lost, none of these ends a process or has it started elsewhere.
_OTHERS = (
    *("agent killed", "agent killed", "cut off", "outgoing messages cut", "incoming messages cut", "swizzle"),
    *("slow network", "lossy calls", "server frozen", "keeper killed", "power lost"),
)
_LENGTHS_MS = ((100, 3_000), (1_000, 12_000), (20_000, 80_000))


def memory_store_seed(seed: int) -> Scenario:
    rng = Random(f"{seed}/forgetful")
    groups = [
        NodeGroup(rng.randint(1, 3), {"cpu": rng.choice((1, 2, 4)) * CPU, "memory": 8 * GIB}, {"zone": zone})
        for zone in ("a", "b")
    ]
    length_ms = SAFETY_MS * 3 // 4
    arrivals = [_arrival(rng, number, length_ms) for number in range(rng.randint(2, 8))]
    faults = [_fault(rng, "server killed", length_ms) for _ in range(rng.randint(1, 5))]
    kinds = rng.sample(_OTHERS, rng.randint(0, 4))
    faults += [_fault(rng, kind, length_ms) for kind in kinds for _ in range(rng.randint(1, 3))]
    size = Size(tuple(groups), lost_ms=LOST_MS, forgets=True)
    return Scenario(seed, size, sorted(arrivals, key=lambda arrival: arrival.at_ms), sorted(faults))


def _arrival(rng: Random, number: int, length_ms: int) -> Arrival:
    spec: dict[str, Any] = {"name": f"job-{number}", "command": ["work"], "cpu": rng.choice((0.5, 1))}
    spec["count"] = rng.choice((1, 1, 2, 5, 20, 300))
    spec["run"] = rng.choice(("at_least_once", "at_least_once", "at_most_once", "one_at_a_time"))
    spec["retries"] = rng.choice((0, 1, 3))
    spec["grace"] = rng.choice(("1s", "10s"))
    if rng.random() < 0.2:
        spec["parallel"] = rng.randint(1, 4)
    if rng.random() < 0.25:
        spec |= {"kind": "service", "count": rng.choice((1, 2, 3)), "cpu": 0.1, "run": "at_least_once"}
        del spec["retries"]
        spec.pop("parallel", None)
    elif rng.random() < 0.1:
        spec |= {"name": f"{SYSTEM}-{number}", "kind": "system", "cpu": 0.1, "run": "at_least_once"}
        del spec["count"], spec["retries"]
        spec.pop("parallel", None)
    median_ms = rng.choice((2_000, 20_000, 60_000, 100_000)) if spec.get("count", 1) <= 20 else 100
    sigma = rng.choice((0.0, 1.0)) if spec.get("kind") != "service" else 0.0
    behaviour = Behaviour(median_ms, sigma, rng.choice((0.0, 0.0, 0.3)), rng.choice((0.0, 1.0)))
    return Arrival(rng.randrange(length_ms), spec, behaviour)


def _fault(rng: Random, kind: str, length_ms: int) -> SimFault:
    for_ms = rng.randint(*rng.choice(_LENGTHS_MS))
    return SimFault(rng.randrange(length_ms), kind, rng.randrange(1000), for_ms, rng.random())
