"""Services that users of some seeds update, also to versions that fail."""

from random import Random
from typing import Any, NamedTuple

from rota.model.job import JobSpec
from rota.sim.faults.fault import SimFault
from rota.sim.faults.rollouts import ROLLOUT_JOBS, ROLLS
from rota.sim.workloads.model import BAD, VERSION, Arrival, Behaviour

SHARE = 1 / 4  # of seeds
FOR_EVER_MS = 10**9


class RolloutSeed(NamedTuple):
    arrivals: list[Arrival]
    faults: list[SimFault]


def roll_out(seed: int, length_ms: int) -> RolloutSeed:
    """From a chance of its own: all else of the seed stays as it was drawn."""
    luck = Random(f"{seed}/rollouts")
    if luck.random() >= SHARE:
        return RolloutSeed([], [])
    arrivals = [_service(luck, number, length_ms) for number in range(luck.randint(1, 2))]
    times = [luck.randrange(length_ms // 4, length_ms) for _ in range(luck.randint(1, 5))]
    faults = [SimFault(at_ms, ROLLS, luck.randrange(1000), 1, luck.random()) for at_ms in times]
    return RolloutSeed(arrivals, faults)


def _service(luck: Random, number: int, length_ms: int) -> Arrival:
    """It would never end by itself."""
    spec: dict[str, Any] = {
        "name": f"{ROLLOUT_JOBS}-{number}",
        "command": ["work"],
        "kind": "service",
        "cpu": 0.05,
    }
    spec |= {"count": luck.randint(2, 6), "priority": 95, "grace": luck.choice(("1s", "10s"))}
    spec["restart"] = {"attempts": luck.choice((0, 1, 3)), "delay": "1s", "delay_max": "2s"}
    spec["rollout"] = {
        "max_parallel": luck.choice((1, 1, 2, 3)),
        "healthy": luck.choice(("4s", "8s")),
        "deadline": luck.choice(("20s", "2m")),
    }
    return Arrival(
        luck.randrange(length_ms // 4), spec, Behaviour(FOR_EVER_MS, 0.0, 0.0, luck.choice((0, 1)))
    )


def is_bad(spec: JobSpec) -> bool:
    return spec.env.get(VERSION) == BAD
