"""Seeds with dependencies, system jobs or crons."""

from random import Random
from typing import Any, NamedTuple

from rota.apiserver.admission import crons
from rota.rules.cron_schedule import Offset
from rota.sim.cluster.users import ADMIN
from rota.sim.simulation import SimCluster
from rota.sim.workloads.model import Arrival, Behaviour
from rota.sim.world.virtual_time import Act

SHARE = 1 / 8  # of seeds, for each kind
OFTEN = 0.5  # share of the jobs of such a seed
SYSTEM = "every"  # prefix of the names of system jobs


class JobKindSeed(NamedTuple):
    """Jobs and crons of a seed."""

    arrivals: list[Arrival]
    crons: list[dict[str, Any]]  # request bodies


def job_kind_seed(seed: int, arrivals: list[Arrival], length_ms: int) -> JobKindSeed:
    """Draw from a generator of its own, which changes nothing else of the seed."""
    rng = Random(f"{seed}/kinds")
    depends, everywhere, periodic = (rng.random() < SHARE for _ in range(3))
    if depends:
        arrivals = [_after(rng, arrival, arrivals[:n]) for n, arrival in enumerate(arrivals)]
    if everywhere:
        more = [_everywhere(rng, n, length_ms) for n in range(rng.randint(1, 2))]
        arrivals = sorted([*arrivals, *more], key=lambda arrival: arrival.at_ms)
    return JobKindSeed(arrivals, [_cron(rng, n) for n in range(rng.randint(1, 3))] if periodic else [])


def _after(rng: Random, arrival: Arrival, before: list[Arrival]) -> Arrival:
    if not before or rng.random() > OFTEN:
        return arrival
    others = rng.sample(before, min(len(before), rng.choice((1, 1, 2, 3))))
    ends = ("", "", ":failure", ":any", ":any")
    names = [f"{other.spec['name']}{rng.choice(ends)}" for other in others]
    return arrival._replace(spec={**arrival.spec, "after": names})


def _everywhere(rng: Random, number: int, length_ms: int) -> Arrival:
    """A system job; the processes of some end by themselves now and then."""
    spec = {
        "name": f"{SYSTEM}-{number}",
        "command": ["work"],
        "kind": "system",
        "cpu": 0.1,
        "grace": "1s",
        "priority": rng.choice((50, 90)),
        **({"where": ["zone == a"]} if rng.random() < OFTEN else {}),
    }
    run_ms = rng.choice((5_000, 40_000, 900_000))
    return Arrival(rng.randrange(length_ms), spec, Behaviour(run_ms, 1.0, 0.5, 0.0, 3))


def _cron(rng: Random, number: int) -> dict[str, Any]:
    missed = rng.choice(("skip", "once", "all"))
    return {
        "name": f"cron-{number}",
        "schedule": rng.choice(("* * * * *", "*/2 * * * *")),
        "missed": missed,
        "overlap": "allow" if missed == "all" else rng.choice(("allow", "skip", "replace")),
        "history": rng.choice((0, 2, 1000)),
        "job": {"command": ["work"], "cpu": 0.1, "grace": "1s"},
    }


def utc(name: str) -> Offset:
    del name
    return lambda _: 0


def create(cluster: SimCluster, body: dict[str, Any], rng: Random) -> Act:
    """Return an act that creates the cron; "it exists already" answers a repeated request."""
    users = cluster.users
    users.behaviours[body["name"]] = Behaviour(rng.choice((500, 5_000, 100_000)))

    def act() -> None:
        users.insist(
            lambda view, now: crons.create(view, body, ADMIN, utc, now),
            lambda _: cluster.world.count("user: created a cron"),
        )

    return act


def end_all(cluster: SimCluster) -> None:
    """Cancel system jobs and delete crons, which have no end of their own."""
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
