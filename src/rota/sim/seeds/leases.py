"""In some seeds there is work that runs one at a time, and what is hard on its leases befalls its cluster."""

from random import Random
from typing import Any, NamedTuple

from rota.sim.faults.fault import SimFault
from rota.sim.workloads.model import Arrival, Behaviour

SHARE = 1 / 4  # of seeds in which it is met
WRONG_CLOCK = "clock runs wrong"
AWAY = ("cut off", "cut off", "cannot hear", "cannot speak", "machine frozen", "agent frozen", "agent killed")
DEAD = ("keeper killed", "agent and keeper killed", "power lost", "machine cloned", "zone gone")
SERVERS = ("server killed", "server frozen", "slow network", "store slow")
RIVALS = ("two servers lead", "cut off from the leader", "server cut off from its store")
LENGTHS_MS = ((2_000, 8_000), (4_000, 12_000), (10_000, 45_000), (30_000, 80_000))


class LeaseSeed(NamedTuple):
    arrivals: list[Arrival]
    faults: list[SimFault]


def lease_seed(seed: int, length_ms: int, *, servers: int) -> LeaseSeed:
    """From a chance of its own: in other seeds nothing is changed by it."""
    luck = Random(f"{seed}/leased")
    if luck.random() >= SHARE:
        return LeaseSeed([], [])
    arrivals = [_arrival(luck, number, length_ms) for number in range(luck.randint(1, 3))]
    kinds = (*AWAY, *AWAY, *DEAD, *SERVERS, *(RIVALS * 2 if servers > 1 else ()))
    faults = [_fault(luck, luck.choice(kinds), length_ms) for _ in range(luck.randint(2, 6))]
    clocks = [
        SimFault(0, WRONG_CLOCK, luck.randrange(1000), length_ms, luck.choice((0.0, 1.0)))
        for _ in range(luck.choice((0, 1, 4)))
    ]
    return LeaseSeed(arrivals, faults + clocks)


def _arrival(luck: Random, number: int, length_ms: int) -> Arrival:
    """Few tasks that run for so long that something befalls them."""
    spec: dict[str, Any] = {
        "name": f"leased-{number}",
        "command": ["work"],
        "run": "one_at_a_time",
        "count": luck.choice((1, 2, 4)),
        "cpu": 0.5,
        "priority": 90,
        "retries": luck.choice((0, 1)),
        "grace": luck.choice(("1s", "10s")),
    }
    if (lease := luck.choice(("3s", "5s", "40s", None))) is not None:
        spec["lease"] = lease
    behaviour = Behaviour(
        luck.randint(20_000, 150_000), 0.0, luck.choice((0.0, 0.3)), luck.choice((0.0, 1.0))
    )
    return Arrival(luck.randrange(length_ms // 2), spec, behaviour)


def _fault(luck: Random, kind: str, length_ms: int) -> SimFault:
    for_ms = luck.randint(*luck.choice(LENGTHS_MS))
    return SimFault(luck.randrange(length_ms), kind, luck.randrange(1000), for_ms, luck.random())
