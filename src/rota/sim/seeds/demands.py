"""Seeds whose jobs have gangs, affinity, quotas, GPUs, constraints, recovery policies or retry rules."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from rota.sim.cluster.recovery_controller import CONTROLLER
from rota.sim.faults.fault import SimFault
from rota.sim.faults.operators import LIMITED, NAMESPACES, TAINTED
from rota.sim.workloads.model import Arrival, NodeGroup

SHARE = 1 / 3  # of seeds, for each demand
OFTEN = 0.5  # share of the jobs of such a seed
FEW, MANY = 12, 100  # tasks; placing them one by one is expensive
APPS = ("web", "db")
RETRIES: tuple[dict[str, Any], ...] = (
    {"retry_on": [1]},
    {"retry_on": ["timeout", 127]},
    {"retry_on": ["signal", "oom"]},
    {"fail_on": [1]},
    {"retry": {"delay": "100ms", "delay_max": "1s", "jitter": 1}},
)

Spec = dict[str, Any]


class DemandSeed(NamedTuple):
    """Node groups, jobs and faults of a seed, with its demands."""

    groups: list[NodeGroup]
    arrivals: list[Arrival]
    faults: list[SimFault]


def demand_seed(seed: int, groups: list[NodeGroup], arrivals: list[Arrival], length_ms: int) -> DemandSeed:
    """Draw from a generator of its own, which changes nothing else of the seed."""
    rng = Random(f"{seed}/demands")
    chosen = {kind: rng.random() < SHARE for kind in (*KINDS, LIMITED, TAINTED)}
    faults: list[SimFault] = []
    for kind in (LIMITED, TAINTED):
        if chosen[kind]:
            faults += [_fault(rng, kind, length_ms, first=n == 0) for n in range(rng.randint(1, 4))]
    demanding = _with_recovery(seed, [_with_demands(rng, arrival, chosen) for arrival in arrivals])
    limits = Random(f"{seed}/patience")
    if limits.random() < SHARE:
        demanding = [_with_limits(limits, arrival) for arrival in demanding]
    faults += _departures(seed, arrivals, length_ms)
    return DemandSeed([_with_hardware(rng, group, chosen) for group in groups], demanding, faults)


def _with_recovery(seed: int, arrivals: list[Arrival]) -> list[Arrival]:
    """Give jobs a recovery policy, drawn from a generator of its own."""
    rng = Random(f"{seed}/owners")
    if rng.random() > SHARE:
        return arrivals
    return [arrival._replace(spec=arrival.spec | _recovery(rng)) for arrival in arrivals]


def _departures(seed: int, arrivals: list[Arrival], length_ms: int) -> list[SimFault]:
    """In seeds with recovery policies, nodes leave or are drained soon after a job arrives."""
    if not arrivals or Random(f"{seed}/owners").random() > SHARE:
        return []
    rng = Random(f"{seed}/departures")
    found = []
    for _ in range(rng.randint(1, 4)):
        at_ms = min(length_ms, rng.choice(arrivals).at_ms + rng.randrange(10_000))
        kind, how = rng.choice((("node leaves", 0.5), ("node leaves", 0.5), ("operator drains", 0.0)))
        found.append(SimFault(at_ms, kind, rng.randrange(1000), rng.randint(5_000, 60_000), how))
    return found


def _recovery(rng: Random) -> Spec:
    policy = rng.choice(("scheduler", "cancel", "none", "controller", "controller", "controller"))
    if policy != "controller":
        return {"recovery": policy}
    absent = rng.choice(("wait", "wait", "scheduler"))
    wait = rng.choice((0, 5, 60))
    return {
        "recovery": policy,
        "controller": CONTROLLER,
        "when_no_controller": absent,
        "controller_wait": wait,
    }


def _fault(rng: Random, kind: str, length_ms: int, *, first: bool) -> SimFault:
    """Draw an operator's action; the first one comes before any job."""
    at_ms, for_ms = 0 if first else rng.randrange(length_ms), rng.randint(20_000, length_ms)
    return SimFault(at_ms, kind, rng.randrange(1000), for_ms, rng.random())


def _with_hardware(rng: Random, group: NodeGroup, chosen: dict[str, bool]) -> NodeGroup:
    if chosen["gpus"]:
        has = {"gpu": rng.choice((1, 2, 4)) * 1000}
        group = replace(group, capacity=group.capacity | has)
    if chosen["conditions"]:
        disk = rng.choice(("ssd", "hdd", None))
        group = replace(group, labels=group.labels if disk is None else group.labels | {"disk": disk})
    return group


def _with_demands(rng: Random, arrival: Arrival, chosen: dict[str, bool]) -> Arrival:
    spec = dict(arrival.spec)
    if chosen[LIMITED]:
        spec["namespace"] = rng.choice(NAMESPACES)
        spec["count"] = min(spec["count"], FEW * 2)
    if chosen[TAINTED] and rng.random() < OFTEN:
        spec["tolerate"] = [rng.choice(("kept", "kept=a", "*"))]
    for kind, ask in KINDS.items():
        if chosen[kind] and rng.random() < OFTEN:
            most = ask(rng, spec)
            spec["count"] = min(spec["count"], most)
    return arrival._replace(spec=spec)


def _with_limits(rng: Random, arrival: Arrival) -> Arrival:
    """Add retry rules, a queue timeout or a deadline."""
    spec = dict(arrival.spec)
    if rng.random() < OFTEN:
        spec |= rng.choice(RETRIES)
    if rng.random() < SHARE:
        spec["queue_timeout"] = rng.choice(("3s", "20s", "60s"))
    if rng.random() < SHARE:
        spec["deadline"] = rng.choice(("40s", "90s"))
    return arrival._replace(spec=spec)


def _gang(rng: Random, spec: Spec) -> int:
    spec["gang"] = True
    spec.pop("parallel", None)
    return rng.choice((2, 2, 3, 5))


def _rules(rng: Random, spec: Spec) -> int:
    app, over = rng.choice(APPS), rng.choice(("node", "zone"))
    spec["labels"] = {"app": app}
    match rng.choice(("near", "near", "apart", "apart", "spread", "named", "named")):
        case "near":
            spec["near"] = [f"app == {rng.choice((app, *APPS))} over {over}"]
        case "apart":
            spec["apart"] = [f"app == {rng.choice(APPS)} over {over}"]
        case "spread":
            spec["spread"] = [rng.choice(("zone", "zone skew 2", "node skew 3"))]
        case _:
            return MANY  # only labelled, for the rules of other jobs
    return FEW


def _gpus(rng: Random, spec: Spec) -> int:
    spec["gpu"] = rng.choice((0.1, 0.3, 0.5, 0.7, 1, 1, 2))
    return FEW


def _conditions(rng: Random, spec: Spec) -> int:
    spec["where"] = [rng.choice(("zone == a", "zone != a", "disk exists", "disk in ssd,nvme", "disk != hdd"))]
    return MANY


KINDS: dict[str, Callable[[Random, Spec], int]] = {  # each returns the largest number of tasks
    "gangs": _gang,
    "rules": _rules,
    "gpus": _gpus,
    "conditions": _conditions,
}
