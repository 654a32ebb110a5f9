"""Seeds with a cluster whose machines a provider makes: its size, who is bound to it, what goes wrong."""

from random import Random
from typing import Any, NamedTuple

from rota.model.cluster import DEFAULT
from rota.sim.faults import providers
from rota.sim.faults.fault import SimFault
from rota.sim.workloads.model import Arrival, Elastic

SHARE = 1 / 6  # of seeds
OFTEN = 0.5  # of the jobs there
STREAM = "elastic 104119"  # one in which no seed has a cloud that had found a planted bug without
GIB = 1 << 30


class ElasticSeed(NamedTuple):
    elastic: Elastic | None
    arrivals: list[Arrival]
    faults: list[SimFault]


def elastic_seed(seed: int, arrivals: list[Arrival], length_ms: int) -> ElasticSeed:
    """From a chance of its own: all else of the seed stays as it was drawn."""
    luck = Random(f"{seed}/{STREAM}")
    if luck.random() >= SHARE:
        return ElasticSeed(None, arrivals, [])
    most, make_seconds = luck.choice((1, 2, 3, 5)), luck.choice((2, 8, 20))
    elastic = Elastic(
        {"cpu": luck.choice((1, 2, 4)) * 1000, "memory": 8 * GIB},
        most,
        luck.choice((0, 0, 0, min(most, 2))),
        make_seconds=make_seconds,
        idle_seconds=luck.choice((0, 2, 10, 40)),
        join_seconds=2 * make_seconds + luck.choice((5, 20, 90)),
        name=luck.choice(("cloud", "cloud", "cloud", DEFAULT)),
    )
    bound = [one._replace(spec=one.spec | _home(luck, elastic.name)) for one in arrivals]
    kinds = luck.sample(list(providers.KINDS), luck.randint(0, 5))
    return ElasticSeed(
        elastic, bound, [_fault(luck, kind, length_ms) for kind in kinds for _ in range(luck.randint(1, 3))]
    )


def _home(luck: Random, name: str) -> dict[str, Any]:
    if luck.random() >= OFTEN:
        return {}
    return {"cluster": name} | ({"move_pending": False} if luck.random() < 0.2 else {})


def _fault(luck: Random, kind: str, length_ms: int) -> SimFault:
    at_ms, for_ms = luck.randrange(length_ms), luck.randint(1_000, 90_000)
    return SimFault(at_ms, kind, luck.randrange(1000), for_ms, luck.random())
