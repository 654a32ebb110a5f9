"""What some seeds' users wish of jobs that run: that they pause, change, lose a task, move, end at once."""

from collections.abc import Callable
from random import Random
from typing import Any

from rota.model.ids import JobId
from rota.model.job import JobKind, JobSpec
from rota.sim.faults.fault import Befall, SimFault, nothing
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act

SHARE = 1 / 3  # of seeds in which each of them is met
TASKS_ADDED = 300  # at most: beyond the last block
SHORT_MS = 100  # tasks of which many can be added


def draw_wishes(seed: int, length_ms: int) -> list[SimFault]:
    """From a chance of its own: all else of the seed stays as it was drawn."""
    luck = Random(f"{seed}/wishes")
    faults = []
    for kind in KINDS:
        if luck.random() < SHARE:
            for _ in range(luck.randint(1, 4)):
                at_ms, for_ms = luck.randrange(length_ms), luck.randint(100, 60_000)
                faults.append(SimFault(at_ms, kind, luck.randrange(1000), for_ms, luck.random()))
    return faults


def _pauses(cluster: SimCluster, fault: SimFault) -> Act:
    """For a while; often what runs is stopped, too."""
    job = _any_job(cluster, fault)
    if job is None:
        return nothing
    cluster.users.pause_job(job, stop=fault.how < 0.5)
    return lambda: cluster.users.resume_job(job)


def _updates(cluster: SimCluster, fault: SimFault) -> Act:
    """By an environment, a priority, more tasks or fewer; sometimes what runs makes way."""
    job = _any_job(cluster, fault)
    if job is None:
        return nothing
    spec = cluster.checks.known[f"job/{job}/spec"]
    most = TASKS_ADDED if cluster.users.behaviours[spec.name].median_ms < SHORT_MS else 2
    bodies: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {"env": {"SINCE": str(fault.at_ms)}},
        lambda: {"priority": fault.who % 101, "labels": {"since": str(fault.at_ms)}},
        lambda: {} if spec.gang else {"count": _other_size(spec, fault, most)},
    )
    body = bodies[fault.who % len(bodies)]()
    if body.get("count", spec.size) < spec.size:
        cluster.world.count("user: wanted fewer tasks")
    cluster.users.update(job, body, replace=fault.how < 0.4, max_parallel=1 + fault.for_ms % 3)
    return nothing


def _other_size(spec: JobSpec, fault: SimFault, most: int) -> int:
    """Of what has fewer tasks than before others are wanted again, or new ones, too."""
    fewer = fault.how > 0.3 and spec.size > 1 and spec.kind is not JobKind.SYSTEM
    return 1 + fault.for_ms % (spec.size - 1) if fewer else spec.size + 1 + fault.who % most


def _kills(cluster: SimCluster, fault: SimFault) -> Act:
    """One task, or all; or only a signal, of which nothing ends."""
    job = _any_job(cluster, fault)
    if job is None:
        return nothing
    spec = cluster.checks.known[f"job/{job}/spec"]
    alone = fault.how < 0.6 and spec.kind is not JobKind.SYSTEM  # of which nobody knows how many there are
    indices = [fault.for_ms % spec.size] if alone else None
    cluster.users.kill(
        job, indices, "USR1" if fault.who % 3 == 0 else None, ends=not (alone and spec.is_service)
    )
    return nothing


def _moves(cluster: SimCluster, fault: SimFault) -> Act:
    """One task, to a node that is named or away from its own."""
    job = _any_job(cluster, fault)
    if job is None:
        return nothing
    spec = cluster.checks.known[f"job/{job}/spec"]
    keys = (key.split("/") for key in cluster.checks.known)
    nodes = sorted(name for head, name, *part in keys if (head, part) == ("node", ["spec"]))
    to = nodes[fault.who % len(nodes)] if nodes and fault.how < 0.5 else None
    cluster.users.move(job, fault.for_ms % max(1, spec.size), to)
    return nothing


def _any_job(cluster: SimCluster, fault: SimFault) -> JobId | None:
    known, users = cluster.checks.known, cluster.users
    jobs = [job for job in users.acknowledged.values() if f"job/{job}/spec" in known]
    statuses = {job: known.get(f"job/{job}/status") for job in jobs}
    live = [job for job, status in statuses.items() if status is None or not status.ended]
    return live[fault.who % len(live)] if live else None


KINDS: dict[str, Befall] = {
    "user pauses": _pauses,
    "user updates": _updates,
    "user kills": _kills,
    "user moves": _moves,
}
