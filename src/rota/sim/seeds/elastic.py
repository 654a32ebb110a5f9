"""Seeds with an elastic cluster: its size, the jobs bound to it, and faults of its provider."""

from random import Random
from typing import Any, NamedTuple

from rota.model.cluster import DEFAULT
from rota.sim.faults import providers
from rota.sim.faults.fault import SimFault
from rota.sim.workloads.model import Arrival, Elastic

SHARE = 1 / 6  # of seeds
OFTEN = 0.5  # share of jobs bound to it
STREAM = "elastic 104119"  # a name under which no seed that finds a planted bug gets an elastic cluster
GIB = 1 << 30


class ElasticSeed(NamedTuple):
    """The elastic cluster of a seed, if any; all its jobs; and faults of the provider."""

    elastic: Elastic | None
    arrivals: list[Arrival]
    faults: list[SimFault]


def elastic_seed(seed: int, arrivals: list[Arrival], length_ms: int) -> ElasticSeed:
    """Draw from a generator of its own, which changes nothing else of the seed."""
    rng = Random(f"{seed}/{STREAM}")
    if rng.random() >= SHARE:
        return ElasticSeed(None, arrivals, [])
    most, make_seconds = rng.choice((1, 2, 3, 5)), rng.choice((2, 8, 20))
    elastic = Elastic(
        {"cpu": rng.choice((1, 2, 4)) * 1000, "memory": 8 * GIB},
        most,
        rng.choice((0, 0, 0, min(most, 2))),
        make_seconds=make_seconds,
        idle_seconds=rng.choice((0, 2, 10, 40)),
        join_seconds=2 * make_seconds + rng.choice((5, 20, 90)),
        name=rng.choice(("cloud", "cloud", "cloud", DEFAULT)),
    )
    bound = [arrival._replace(spec=arrival.spec | _home(rng, elastic.name)) for arrival in arrivals]
    kinds = rng.sample(list(providers.KINDS), rng.randint(0, 5))
    return ElasticSeed(
        elastic, bound, [_fault(rng, kind, length_ms) for kind in kinds for _ in range(rng.randint(1, 3))]
    )


def _home(rng: Random, name: str) -> dict[str, Any]:
    if rng.random() >= OFTEN:
        return {}
    return {"cluster": name} | ({"move_pending": False} if rng.random() < 0.2 else {})


def _fault(rng: Random, kind: str, length_ms: int) -> SimFault:
    at_ms, for_ms = rng.randrange(length_ms), rng.randint(1_000, 90_000)
    return SimFault(at_ms, kind, rng.randrange(1000), for_ms, rng.random())
