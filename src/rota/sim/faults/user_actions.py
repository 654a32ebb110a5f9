"""User actions on live jobs, in some seeds: pause, update, kill, move."""

from collections.abc import Callable
from random import Random
from typing import Any

from rota.model.ids import JobId
from rota.model.job import JobKind, JobSpec
from rota.sim.faults.fault import Inject, SimFault, nothing
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act

SHARE = 1 / 3  # of seeds, for each action
TASKS_ADDED = 300  # at most; more than a block
SHORT_MS = 100  # of such tasks many can be added


def draw_user_actions(seed: int, length_ms: int) -> list[SimFault]:
    """Draw from a generator of its own, which changes nothing else of the seed."""
    rng = Random(f"{seed}/wishes")
    faults = []
    for kind in KINDS:
        if rng.random() < SHARE:
            for _ in range(rng.randint(1, 4)):
                at_ms, for_ms = rng.randrange(length_ms), rng.randint(100, 60_000)
                faults.append(SimFault(at_ms, kind, rng.randrange(1000), for_ms, rng.random()))
    return faults


def _pauses(cluster: SimCluster, fault: SimFault) -> Act:
    """Pause a job for a while; often its running tasks are stopped, too."""
    job = _live_job(cluster, fault)
    if job is None:
        return nothing
    cluster.users.pause_job(job, stop=fault.degree < 0.5)
    return lambda: cluster.users.resume_job(job)


def _updates(cluster: SimCluster, fault: SimFault) -> Act:
    """Change environment, priority or number of tasks; sometimes running tasks are replaced."""
    job = _live_job(cluster, fault)
    if job is None:
        return nothing
    spec = cluster.checks.known[f"job/{job}/spec"]
    most = TASKS_ADDED if cluster.users.behaviours[spec.name].median_ms < SHORT_MS else 2
    bodies: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {"env": {"SINCE": str(fault.at_ms)}},
        lambda: {"priority": fault.target % 101, "labels": {"since": str(fault.at_ms)}},
        lambda: {} if spec.gang else {"count": _other_size(spec, fault, most)},
    )
    body = bodies[fault.target % len(bodies)]()
    if body.get("count", spec.size) < spec.size:
        cluster.world.count("user: scaled a job down")
    cluster.users.update(job, body, replace=fault.degree < 0.4, max_parallel=1 + fault.for_ms % 3)
    return nothing


def _other_size(spec: JobSpec, fault: SimFault, most: int) -> int:
    """A smaller number of tasks, or a larger one, which may bring canceled tasks back."""
    fewer = fault.degree > 0.3 and spec.size > 1 and spec.kind is not JobKind.SYSTEM
    return 1 + fault.for_ms % (spec.size - 1) if fewer else spec.size + 1 + fault.target % most


def _kills(cluster: SimCluster, fault: SimFault) -> Act:
    """Kill one task or all, or send a signal that ends nothing."""
    job = _live_job(cluster, fault)
    if job is None:
        return nothing
    spec = cluster.checks.known[f"job/{job}/spec"]
    # The number of tasks of a system job depends on the nodes.
    one_task = fault.degree < 0.6 and spec.kind is not JobKind.SYSTEM
    indices = [fault.for_ms % spec.size] if one_task else None
    cluster.users.kill(
        job, indices, "USR1" if fault.target % 3 == 0 else None, ends=not (one_task and spec.is_service)
    )
    return nothing


def _moves(cluster: SimCluster, fault: SimFault) -> Act:
    """Move one task to a named node or away from its own."""
    job = _live_job(cluster, fault)
    if job is None:
        return nothing
    spec = cluster.checks.known[f"job/{job}/spec"]
    keys = (key.split("/") for key in cluster.checks.known)
    nodes = sorted(name for head, name, *part in keys if (head, part) == ("node", ["spec"]))
    to = nodes[fault.target % len(nodes)] if nodes and fault.degree < 0.5 else None
    cluster.users.move(job, fault.for_ms % max(1, spec.size), to)
    return nothing


def _live_job(cluster: SimCluster, fault: SimFault) -> JobId | None:
    known, users = cluster.checks.known, cluster.users
    jobs = [job for job in users.acknowledged.values() if f"job/{job}/spec" in known]
    statuses = {job: known.get(f"job/{job}/status") for job in jobs}
    live = [job for job, status in statuses.items() if status is None or not status.ended]
    return live[fault.target % len(live)] if live else None


KINDS: dict[str, Inject] = {
    "user pauses": _pauses,
    "user updates": _updates,
    "user kills": _kills,
    "user moves": _moves,
}
