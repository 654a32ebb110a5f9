"""Seeds with services that users update, also to versions that fail."""

from random import Random
from typing import Any, NamedTuple

from rota.model.job import JobSpec
from rota.sim.faults.fault import SimFault
from rota.sim.faults.rollouts import ROLLOUT_JOBS, ROLLS
from rota.sim.workloads.model import BAD, VERSION, Arrival, Behaviour

SHARE = 1 / 4  # of seeds
FOR_EVER_MS = 10**9


class RolloutSeed(NamedTuple):
    """Services and updates that a seed adds."""

    arrivals: list[Arrival]
    faults: list[SimFault]


def rollout_seed(seed: int, length_ms: int) -> RolloutSeed:
    """Draw from a generator of its own, which changes nothing else of the seed."""
    rng = Random(f"{seed}/rollouts")
    if rng.random() >= SHARE:
        return RolloutSeed([], [])
    arrivals = [_service(rng, number, length_ms) for number in range(rng.randint(1, 2))]
    times = [rng.randrange(length_ms // 4, length_ms) for _ in range(rng.randint(1, 5))]
    faults = [SimFault(at_ms, ROLLS, rng.randrange(1000), 1, rng.random()) for at_ms in times]
    return RolloutSeed(arrivals, faults)


def _service(rng: Random, number: int, length_ms: int) -> Arrival:
    """A service whose processes never end by themselves."""
    spec: dict[str, Any] = {
        "name": f"{ROLLOUT_JOBS}-{number}",
        "command": ["work"],
        "kind": "service",
        "cpu": 0.05,
    }
    spec |= {"count": rng.randint(2, 6), "priority": 95, "grace": rng.choice(("1s", "10s"))}
    spec["restart"] = {"attempts": rng.choice((0, 1, 3)), "delay": "1s", "delay_max": "2s"}
    spec["rollout"] = {
        "max_parallel": rng.choice((1, 1, 2, 3)),
        "healthy": rng.choice(("4s", "8s")),
        "deadline": rng.choice(("20s", "2m")),
    }
    return Arrival(rng.randrange(length_ms // 4), spec, Behaviour(FOR_EVER_MS, 0.0, 0.0, rng.choice((0, 1))))


def is_bad(spec: JobSpec) -> bool:
    """Whether the version fails soon after each start."""
    return spec.env.get(VERSION) == BAD
