"""Seeds with jobs whose tasks report results."""

from random import Random
from typing import Any

from rota.sim.cluster.task_results import CHANCE
from rota.sim.workloads.model import Arrival, Behaviour

SHARE = 1 / 20  # of seeds


def result_seed(seed: int, length_ms: int) -> list[Arrival]:
    """Draw from a generator of its own, which changes nothing else of the seed."""
    rng = Random(f"{seed}/{CHANCE}")
    if rng.random() >= SHARE:
        return []
    return [_job(rng, number, length_ms) for number in range(rng.randint(1, 4))]


def _job(rng: Random, number: int, length_ms: int) -> Arrival:
    spec: dict[str, Any] = {"name": f"reporter-{number}", "command": ["work"], "results": True, "grace": "1s"}
    spec |= {"count": rng.choice((1, 2, 5, 20)), "cpu": 0.5, "retries": rng.choice((0, 1, 3))}
    spec["run"] = rng.choice(("at_least_once", "at_least_once", "at_most_once"))
    lasts_ms = rng.choice((50, 3_000, 20_000, 60_000))
    behaviour = Behaviour(lasts_ms, 0.5, rng.choice((0.0, 0.3)), rng.choice((0.0, 1.0)))
    return Arrival(rng.randrange(length_ms), spec, behaviour)
