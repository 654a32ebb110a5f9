"""What some seeds' users ask for besides: jobs after others, jobs on every node, and crons."""

from random import Random
from typing import Any, NamedTuple

from rota.apiserver.admission import crons
from rota.rules.cron_schedule import Offset
from rota.sim.cluster import SimCluster
from rota.sim.load import Arrival, Behaviour
from rota.sim.users import ADMIN
from rota.sim.world import Act

SHARE = 1 / 8  # of seeds in which each of them is met
OFTEN = 0.5  # of the jobs there
SYSTEM = "every"  # how the names of jobs on every node begin


class JobKindSeed(NamedTuple):
    arrivals: list[Arrival]
    crons: list[dict[str, Any]]  # bodies


def job_kind_seed(seed: int, arrivals: list[Arrival], length_ms: int) -> JobKindSeed:
    """From a chance of its own: all else of the seed stays as it was drawn."""
    luck = Random(f"{seed}/kinds")
    follow, everywhere, again = (luck.random() < SHARE for _ in range(3))
    if follow:
        arrivals = [_after(luck, arrival, arrivals[:n]) for n, arrival in enumerate(arrivals)]
    if everywhere:
        more = [_everywhere(luck, n, length_ms) for n in range(luck.randint(1, 2))]
        arrivals = sorted([*arrivals, *more], key=lambda one: one.at_ms)
    return JobKindSeed(arrivals, [_cron(luck, n) for n in range(luck.randint(1, 3))] if again else [])


def _after(luck: Random, arrival: Arrival, before: list[Arrival]) -> Arrival:
    if not before or luck.random() > OFTEN:
        return arrival
    others = luck.sample(before, min(len(before), luck.choice((1, 1, 2, 3))))
    ends = ("", "", ":failure", ":any", ":any")
    names = [f"{other.spec['name']}{luck.choice(ends)}" for other in others]
    return arrival._replace(spec={**arrival.spec, "after": names})


def _everywhere(luck: Random, number: int, length_ms: int) -> Arrival:
    """Some end by themselves now and then, well or not."""
    spec = {
        "name": f"{SYSTEM}-{number}",
        "command": ["work"],
        "kind": "system",
        "cpu": 0.1,
        "grace": "1s",
        "priority": luck.choice((50, 90)),
        **({"where": ["zone == a"]} if luck.random() < OFTEN else {}),
    }
    run_ms = luck.choice((5_000, 40_000, 900_000))
    return Arrival(luck.randrange(length_ms), spec, Behaviour(run_ms, 1.0, 0.5, 0.0, 3))


def _cron(luck: Random, number: int) -> dict[str, Any]:
    missed = luck.choice(("skip", "once", "all"))
    return {
        "name": f"cron-{number}",
        "schedule": luck.choice(("* * * * *", "*/2 * * * *")),
        "missed": missed,
        "overlap": "allow" if missed == "all" else luck.choice(("allow", "skip", "replace")),
        "history": luck.choice((0, 2, 1000)),
        "job": {"command": ["work"], "cpu": 0.1, "grace": "1s"},
    }


def utc(name: str) -> Offset:
    del name
    return lambda _: 0


def create(cluster: SimCluster, body: dict[str, Any], luck: Random) -> Act:
    """Until it is there: the answer that it is there already means that it was heard."""
    users = cluster.users
    users.behaviours[body["name"]] = Behaviour(luck.choice((500, 5_000, 100_000)))

    def act() -> None:
        users.insist(
            lambda view, now: crons.create(view, body, ADMIN, utc, now),
            lambda _: cluster.world.count("user: created a cron"),
        )

    return act


def end_all(cluster: SimCluster) -> None:
    """Nobody needs what has no end of its own any more."""
    users, known = cluster.users, cluster.checks.known
    for job in cluster.jobs:
        spec = known.get(f"job/{job}/spec")
        if spec is not None and spec.name.startswith(SYSTEM) and job not in users.canceled:
            users.cancel(job)
    for key in [key for key in known if key.startswith("cron/")]:
        _, namespace, name = key.split("/")
        users.insist(
            lambda view, now, ref=(namespace, name): crons.delete(view, ref, ADMIN),  # type: ignore[misc]  # noqa: ARG005
            lambda _: None,
        )
