"""What some seeds' users ask for beyond room: gangs, neighbours, quotas, GPUs, conditions, owners."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from rota.sim.cluster.recovery_controller import CONTROLLER
from rota.sim.faults.fault import SimFault
from rota.sim.faults.operators import LIMITED, NAMESPACES, TAINTED
from rota.sim.workloads.model import Arrival, NodeGroup

SHARE = 1 / 3  # of seeds in which each of them is met
OFTEN = 0.5  # of the jobs there
FEW, MANY = 12, 100  # tasks: what has to be placed one by one costs much
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
    groups: list[NodeGroup]
    arrivals: list[Arrival]
    faults: list[SimFault]


def demand(seed: int, groups: list[NodeGroup], arrivals: list[Arrival], length_ms: int) -> DemandSeed:
    """From a chance of its own: all else of the seed stays as it was drawn."""
    luck = Random(f"{seed}/demands")
    chosen = {kind: luck.random() < SHARE for kind in (*KINDS, LIMITED, TAINTED)}
    faults: list[SimFault] = []
    for kind in (LIMITED, TAINTED):
        if chosen[kind]:
            faults += [_fault(luck, kind, length_ms, first=n == 0) for n in range(luck.randint(1, 4))]
    asked = _owned(seed, [_asks(luck, arrival, chosen) for arrival in arrivals])
    patience = Random(f"{seed}/patience")
    if patience.random() < SHARE:
        asked = [_has_patience(patience, arrival) for arrival in asked]
    faults += _departures(seed, arrivals, length_ms)
    return DemandSeed([_has(luck, group, chosen) for group in groups], asked, faults)


def _owned(seed: int, arrivals: list[Arrival]) -> list[Arrival]:
    """Somebody else than the scheduler deals with what they lose; again from a chance of its own."""
    luck = Random(f"{seed}/owners")
    if luck.random() > SHARE:
        return arrivals
    return [arrival._replace(spec=arrival.spec | _owner(luck)) for arrival in arrivals]


def _departures(seed: int, arrivals: list[Arrival], length_ms: int) -> list[SimFault]:
    """Where jobs have owners, nodes leave or are drained in a hurry soon after a job has come."""
    if not arrivals or Random(f"{seed}/owners").random() > SHARE:
        return []
    luck = Random(f"{seed}/departures")
    found = []
    for _ in range(luck.randint(1, 4)):
        at_ms = min(length_ms, luck.choice(arrivals).at_ms + luck.randrange(10_000))
        kind, how = luck.choice((("node leaves", 0.5), ("node leaves", 0.5), ("operator drains", 0.0)))
        found.append(SimFault(at_ms, kind, luck.randrange(1000), luck.randint(5_000, 60_000), how))
    return found


def _owner(luck: Random) -> Spec:
    owner = luck.choice(("scheduler", "cancel", "none", "controller", "controller", "controller"))
    if owner != "controller":
        return {"recovery": owner}
    away = luck.choice(("wait", "wait", "scheduler"))
    wait = luck.choice((0, 5, 60))
    return {
        "recovery": owner,
        "controller": CONTROLLER,
        "when_no_controller": away,
        "controller_wait": wait,
    }


def _fault(luck: Random, kind: str, length_ms: int, *, first: bool) -> SimFault:
    """The first one before any job comes."""
    at_ms, for_ms = 0 if first else luck.randrange(length_ms), luck.randint(20_000, length_ms)
    return SimFault(at_ms, kind, luck.randrange(1000), for_ms, luck.random())


def _has(luck: Random, group: NodeGroup, chosen: dict[str, bool]) -> NodeGroup:
    if chosen["gpus"]:
        has = {"gpu": luck.choice((1, 2, 4)) * 1000}
        group = replace(group, capacity=group.capacity | has)
    if chosen["conditions"]:
        disk = luck.choice(("ssd", "hdd", None))
        group = replace(group, labels=group.labels if disk is None else group.labels | {"disk": disk})
    return group


def _asks(luck: Random, arrival: Arrival, chosen: dict[str, bool]) -> Arrival:
    spec = dict(arrival.spec)
    if chosen[LIMITED]:
        spec["namespace"] = luck.choice(NAMESPACES)
        spec["count"] = min(spec["count"], FEW * 2)
    if chosen[TAINTED] and luck.random() < OFTEN:
        spec["tolerate"] = [luck.choice(("kept", "kept=a", "*"))]
    for kind, ask in KINDS.items():
        if chosen[kind] and luck.random() < OFTEN:
            most = ask(luck, spec)
            spec["count"] = min(spec["count"], most)
    return arrival._replace(spec=spec)


def _has_patience(luck: Random, arrival: Arrival) -> Arrival:
    """For how long, and for which failures."""
    spec = dict(arrival.spec)
    if luck.random() < OFTEN:
        spec |= luck.choice(RETRIES)
    if luck.random() < SHARE:
        spec["queue_timeout"] = luck.choice(("3s", "20s", "60s"))
    if luck.random() < SHARE:
        spec["deadline"] = luck.choice(("40s", "90s"))
    return arrival._replace(spec=spec)


def _gang(luck: Random, spec: Spec) -> int:
    spec["gang"] = True
    spec.pop("parallel", None)
    return luck.choice((2, 2, 3, 5))


def _rules(luck: Random, spec: Spec) -> int:
    app, over = luck.choice(APPS), luck.choice(("node", "zone"))
    spec["labels"] = {"app": app}
    match luck.choice(("near", "near", "apart", "apart", "spread", "named", "named")):
        case "near":
            spec["near"] = [f"app == {luck.choice((app, *APPS))} over {over}"]
        case "apart":
            spec["apart"] = [f"app == {luck.choice(APPS)} over {over}"]
        case "spread":
            spec["spread"] = [luck.choice(("zone", "zone skew 2", "node skew 3"))]
        case _:
            return MANY  # others want to be near to it, or apart from it
    return FEW


def _gpus(luck: Random, spec: Spec) -> int:
    spec["gpu"] = luck.choice((0.1, 0.3, 0.5, 0.7, 1, 1, 2))
    return FEW


def _conditions(luck: Random, spec: Spec) -> int:
    spec["where"] = [
        luck.choice(("zone == a", "zone != a", "disk exists", "disk in ssd,nvme", "disk != hdd"))
    ]
    return MANY


KINDS: dict[str, Callable[[Random, Spec], int]] = {  # how many tasks it may have at the most
    "gangs": _gang,
    "rules": _rules,
    "gpus": _gpus,
    "conditions": _conditions,
}
