"""Seeds with services, and the check that every task of a service runs once no fault is left."""

from random import Random
from typing import Any

from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.node import Eligibility
from rota.sim.checks.feasible import can_run
from rota.sim.seeds.rollouts import is_bad
from rota.sim.simulation import SimCluster
from rota.sim.workloads.model import Arrival, Behaviour
from rota.sim.world.invariant import InvariantBroken

SHARE = 1 / 6  # of seeds
WAIT_MS = 1_800_000  # several times the longest backoff
STEP_MS = 1_000  # processes that live shorter may go unnoticed


def service_seed(seed: int, length_ms: int) -> list[Arrival]:
    """Draw from a generator of its own, which changes nothing else of the seed."""
    rng = Random(f"{seed}/services")
    if rng.random() >= SHARE:
        return []
    return [_service(rng, number, length_ms) for number in range(rng.randint(1, 3))]


def _service(rng: Random, number: int, length_ms: int) -> Arrival:
    spec: dict[str, Any] = {"name": f"service-{number}", "command": ["work"], "kind": "service"}
    spec |= {"count": rng.choice((1, 2, 3)), "cpu": 0.1, "priority": 95, "grace": rng.choice(("1s", "10s"))}
    spec["restart"] = {"attempts": rng.choice((0, 1, 3)), "delay": rng.choice(("1s", "5s"))}
    lasts_ms = rng.choice((STEP_MS * 2, 15_000, 90_000))
    behaviour = Behaviour(lasts_ms, rng.choice((0.0, 0.3)), rng.choice((0.0, 0.5, 1.0)))
    return Arrival(rng.randrange(length_ms), spec, behaviour)


def end_services(cluster: SimCluster) -> None:
    """Wait until each task of every service was seen to run, then cancel the services."""
    missing = {(spec.id, index) for spec in _live_services(cluster) for index in range(spec.size)}
    until_ms = cluster.world.now_ms + WAIT_MS
    while (missing or _bad(cluster) or _excess(cluster)) and cluster.world.now_ms < until_ms:
        cluster.world.run(cluster.world.now_ms + STEP_MS)
        missing -= cluster.checks.live_tasks()
    if missing and _has_open_node(cluster):
        job, index = min(missing)
        raise InvariantBroken(f"task {index} of job {job}, a service, did not run again")
    for other, number in _excess(cluster):
        raise InvariantBroken(f"task {number} of job {other}, a service, runs beyond the desired count")
    for spec in _bad(cluster):
        raise InvariantBroken(
            f"job {spec.id}, a service, fails as version {spec.version} and was not rolled back"
        )
    for spec in _live_services(cluster):
        cluster.world.count("user: ended a service")
        cluster.users.cancel(spec.id)


def _bad(cluster: SimCluster) -> list[JobSpec]:
    return [spec for spec in _live_services(cluster) if is_bad(spec)]


def _excess(cluster: SimCluster) -> list[tuple[str, int]]:
    """Running tasks beyond the desired count."""
    specs: dict[str, JobSpec] = {spec.id: spec for spec in _live_services(cluster)}
    live = sorted(cluster.checks.live_tasks())
    return [(job, index) for job, index in live if job in specs and specs[job].is_scaled_down(index)]


def _live_services(cluster: SimCluster) -> list[JobSpec]:
    users, known = cluster.users, cluster.checks.known
    found = []
    for job in cluster.jobs:
        spec, status = known.get(f"job/{job}/spec"), known.get(f"job/{job}/status")
        if spec is None or not spec.is_service or job in users.canceled:
            continue
        if status is not None and status.ended:
            raise InvariantBroken(f"job {job}, a service, ended: {status.state}")
        if can_run(spec, cluster.hosts(spec)):
            found.append(spec)
        else:
            users.cancel(JobId(job))
    return found


def _has_open_node(cluster: SimCluster) -> bool:
    """Whether some node is open: services are small enough to fit on any."""
    eligibility = cluster.users.eligibility
    return any(
        machine.on and eligibility.get(machine.name, Eligibility.OPEN) is Eligibility.OPEN
        for machine in cluster.machines
    )
