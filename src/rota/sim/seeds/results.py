"""Seeds with jobs whose tasks report results."""

from random import Random
from typing import Any

from rota.sim.cluster.task_results import CHANCE
from rota.sim.workloads.model import Arrival, Behaviour

SHARE = 1 / 20  # of seeds


def reporting(seed: int, length_ms: int) -> list[Arrival]:
    """From a chance of its own: all else of the seed stays as it was drawn."""
    luck = Random(f"{seed}/{CHANCE}")
    if luck.random() >= SHARE:
        return []
    return [_job(luck, number, length_ms) for number in range(luck.randint(1, 4))]


def _job(luck: Random, number: int, length_ms: int) -> Arrival:
    spec: dict[str, Any] = {"name": f"reporter-{number}", "command": ["work"], "results": True, "grace": "1s"}
    spec |= {"count": luck.choice((1, 2, 5, 20)), "cpu": 0.5, "retries": luck.choice((0, 1, 3))}
    spec["run"] = luck.choice(("at_least_once", "at_least_once", "at_most_once"))
    lasts_ms = luck.choice((50, 3_000, 20_000, 60_000))
    behaviour = Behaviour(lasts_ms, 0.5, luck.choice((0.0, 0.3)), luck.choice((0.0, 1.0)))
    return Arrival(luck.randrange(length_ms), spec, behaviour)
