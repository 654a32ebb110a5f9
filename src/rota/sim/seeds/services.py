"""Services that users of some seeds ask for; and that they are there once nothing fails any more."""

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
WAIT_MS = 1_800_000  # the longest pause of the controllers several times over
STEP_MS = 1_000  # the shortest life of a process that is to be seen


def serve(seed: int, length_ms: int) -> list[Arrival]:
    """From a chance of its own: all else of the seed stays as it was drawn."""
    luck = Random(f"{seed}/services")
    if luck.random() >= SHARE:
        return []
    return [_service(luck, number, length_ms) for number in range(luck.randint(1, 3))]


def _service(luck: Random, number: int, length_ms: int) -> Arrival:
    spec: dict[str, Any] = {"name": f"service-{number}", "command": ["work"], "kind": "service"}
    spec |= {"count": luck.choice((1, 2, 3)), "cpu": 0.1, "priority": 95, "grace": luck.choice(("1s", "10s"))}
    spec["restart"] = {"attempts": luck.choice((0, 1, 3)), "delay": luck.choice(("1s", "5s"))}
    lasts_ms = luck.choice((STEP_MS * 2, 15_000, 90_000))
    behaviour = Behaviour(lasts_ms, luck.choice((0.0, 0.3)), luck.choice((0.0, 0.5, 1.0)))
    return Arrival(luck.randrange(length_ms), spec, behaviour)


def end_services(cluster: SimCluster) -> None:
    """Wait until each task of those that nobody canceled was seen to run; then they are canceled."""
    missing = {(spec.id, index) for spec in _wanted(cluster) for index in range(spec.size)}
    until_ms = cluster.world.now_ms + WAIT_MS
    while (missing or _bad(cluster) or _beyond(cluster)) and cluster.world.now_ms < until_ms:
        cluster.world.run(cluster.world.now_ms + STEP_MS)
        missing -= cluster.checks.live_tasks()
    if missing and _has_room(cluster):
        job, index = min(missing)
        raise InvariantBroken(f"task {index} of job {job}, a service, was not started again")
    for other, number in _beyond(cluster):
        raise InvariantBroken(f"task {number} of job {other}, a service, runs though fewer are wanted")
    for spec in _bad(cluster):
        raise InvariantBroken(
            f"job {spec.id}, a service, fails as version {spec.version} and was not taken back"
        )
    for spec in _wanted(cluster):
        cluster.world.count("user: ended a service")
        cluster.users.cancel(spec.id)


def _bad(cluster: SimCluster) -> list[JobSpec]:
    return [spec for spec in _wanted(cluster) if is_bad(spec)]


def _beyond(cluster: SimCluster) -> list[tuple[str, int]]:
    """What runs of them and is more than is wanted."""
    specs: dict[str, JobSpec] = {spec.id: spec for spec in _wanted(cluster)}
    live = sorted(cluster.checks.live_tasks())
    return [(job, index) for job, index in live if job in specs and specs[job].is_scaled_down(index)]


def _wanted(cluster: SimCluster) -> list[JobSpec]:
    users, known = cluster.users, cluster.checks.known
    found = []
    for job in cluster.jobs:
        spec, status = known.get(f"job/{job}/spec"), known.get(f"job/{job}/status")
        if spec is None or not spec.is_service or job in users.canceled:
            continue
        if status is not None and status.ended:
            raise InvariantBroken(f"job {job}, a service, came to an end: {status.state}")
        if can_run(spec, cluster.hosts(spec)):
            found.append(spec)
        else:
            users.cancel(JobId(job))
    return found


def _has_room(cluster: SimCluster) -> bool:
    """They need little: some open node is enough."""
    wishes = cluster.users.wishes
    return any(
        machine.on and wishes.get(machine.name, Eligibility.OPEN) is Eligibility.OPEN
        for machine in cluster.machines
    )
