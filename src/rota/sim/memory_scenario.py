"""A seed -> a cluster whose store is in memory, its work, and restarts of its server."""

from random import Random
from typing import Any

from rota.model.limits import LOST_MS
from rota.sim.faults.fault import SimFault
from rota.sim.scenario import CPU, GIB, SAFETY_MS, Scenario
from rota.sim.seeds.job_kinds import SYSTEM
from rota.sim.simulation import Size
from rota.sim.workloads.model import Arrival, Behaviour, NodeGroup

# None of these ends work by itself, or has it started elsewhere, as long as no node is lost.
_OTHERS = (
    *("agent killed", "agent killed", "cut off", "cannot speak", "cannot hear", "swizzle"),
    *("slow network", "lossy calls", "server frozen", "keeper killed", "power lost"),
)
_LENGTHS_MS = ((100, 3_000), (1_000, 12_000), (20_000, 80_000))


def memory_store_seed(seed: int) -> Scenario:
    luck = Random(f"{seed}/forgetful")
    groups = [
        NodeGroup(
            luck.randint(1, 3), {"cpu": luck.choice((1, 2, 4)) * CPU, "memory": 8 * GIB}, {"zone": zone}
        )
        for zone in ("a", "b")
    ]
    length_ms = SAFETY_MS * 3 // 4
    arrivals = [_arrival(luck, number, length_ms) for number in range(luck.randint(2, 8))]
    faults = [_fault(luck, "server killed", length_ms) for _ in range(luck.randint(1, 5))]
    kinds = luck.sample(_OTHERS, luck.randint(0, 4))
    faults += [_fault(luck, kind, length_ms) for kind in kinds for _ in range(luck.randint(1, 3))]
    size = Size(tuple(groups), lost_ms=LOST_MS, forgets=True)
    return Scenario(seed, size, sorted(arrivals, key=lambda one: one.at_ms), sorted(faults))


def _arrival(luck: Random, number: int, length_ms: int) -> Arrival:
    spec: dict[str, Any] = {"name": f"job-{number}", "command": ["work"], "cpu": luck.choice((0.5, 1))}
    spec["count"] = luck.choice((1, 1, 2, 5, 20, 300))
    spec["run"] = luck.choice(("at_least_once", "at_least_once", "at_most_once", "one_at_a_time"))
    spec["retries"] = luck.choice((0, 1, 3))
    spec["grace"] = luck.choice(("1s", "10s"))
    if luck.random() < 0.2:
        spec["parallel"] = luck.randint(1, 4)
    if luck.random() < 0.25:
        spec |= {"kind": "service", "count": luck.choice((1, 2, 3)), "cpu": 0.1, "run": "at_least_once"}
        del spec["retries"]
        spec.pop("parallel", None)
    elif luck.random() < 0.1:
        spec |= {"name": f"{SYSTEM}-{number}", "kind": "system", "cpu": 0.1, "run": "at_least_once"}
        del spec["count"], spec["retries"]
        spec.pop("parallel", None)
    median_ms = luck.choice((2_000, 20_000, 60_000, 100_000)) if spec.get("count", 1) <= 20 else 100
    sigma = luck.choice((0.0, 1.0)) if spec.get("kind") != "service" else 0.0
    behaviour = Behaviour(median_ms, sigma, luck.choice((0.0, 0.0, 0.3)), luck.choice((0.0, 1.0)))
    return Arrival(luck.randrange(length_ms), spec, behaviour)


def _fault(luck: Random, kind: str, length_ms: int) -> SimFault:
    for_ms = luck.randint(*luck.choice(_LENGTHS_MS))
    return SimFault(luck.randrange(length_ms), kind, luck.randrange(1000), for_ms, luck.random())
