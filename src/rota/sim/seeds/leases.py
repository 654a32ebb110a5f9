"""Seeds with one-at-a-time jobs, and faults that put their leases at risk."""

from random import Random
from typing import Any, NamedTuple

from rota.sim.faults.fault import SimFault
from rota.sim.workloads.model import Arrival, Behaviour

SHARE = 1 / 4  # of seeds
WRONG_CLOCK = "clock runs wrong"
UNREACHABLE = (
    "cut off",
    "cut off",
    "incoming messages cut",
    "outgoing messages cut",
    "machine frozen",
    "agent frozen",
    "agent killed",
)
DEAD = ("keeper killed", "agent and keeper killed", "power lost", "machine cloned", "zone lost")
SERVERS = ("server killed", "server frozen", "slow network", "store slow")
RIVALS = ("two servers lead", "cut off from the leader", "server cut off from its store")
LENGTHS_MS = ((2_000, 8_000), (4_000, 12_000), (10_000, 45_000), (30_000, 80_000))


class LeaseSeed(NamedTuple):
    """Jobs and faults that a seed adds."""

    arrivals: list[Arrival]
    faults: list[SimFault]


def lease_seed(seed: int, length_ms: int, *, servers: int) -> LeaseSeed:
    """Draw from a generator of its own, which changes nothing else of the seed."""
    rng = Random(f"{seed}/leased")
    if rng.random() >= SHARE:
        return LeaseSeed([], [])
    arrivals = [_arrival(rng, number, length_ms) for number in range(rng.randint(1, 3))]
    kinds = (*UNREACHABLE, *UNREACHABLE, *DEAD, *SERVERS, *(RIVALS * 2 if servers > 1 else ()))
    faults = [_fault(rng, rng.choice(kinds), length_ms) for _ in range(rng.randint(2, 6))]
    clocks = [
        SimFault(0, WRONG_CLOCK, rng.randrange(1000), length_ms, rng.choice((0.0, 1.0)))
        for _ in range(rng.choice((0, 1, 4)))
    ]
    return LeaseSeed(arrivals, faults + clocks)


def _arrival(rng: Random, number: int, length_ms: int) -> Arrival:
    """A job of few tasks that run long enough to meet a fault."""
    spec: dict[str, Any] = {
        "name": f"leased-{number}",
        "command": ["work"],
        "run": "one_at_a_time",
        "count": rng.choice((1, 2, 4)),
        "cpu": 0.5,
        "priority": 90,
        "retries": rng.choice((0, 1)),
        "grace": rng.choice(("1s", "10s")),
    }
    if (lease := rng.choice(("3s", "5s", "40s", None))) is not None:
        spec["lease"] = lease
    behaviour = Behaviour(rng.randint(20_000, 150_000), 0.0, rng.choice((0.0, 0.3)), rng.choice((0.0, 1.0)))
    return Arrival(rng.randrange(length_ms // 2), spec, behaviour)


def _fault(rng: Random, kind: str, length_ms: int) -> SimFault:
    for_ms = rng.randint(*rng.choice(LENGTHS_MS))
    return SimFault(rng.randrange(length_ms), kind, rng.randrange(1000), for_ms, rng.random())
