"""A seed -> a scenario: a cluster, its jobs and its faults; a run of it -> a finding.

A run has two phases. For SAFETY_MS anything may fail, and the invariants must hold all the time. Then no
fault is injected any more, and within LIVENESS_MS every job must end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from rota.model.errors import Bug
from rota.sim.cluster.machine_os import MISSING
from rota.sim.faults.draw import draw, inject_faults
from rota.sim.faults.fault import SimFault
from rota.sim.faults.user_actions import draw_user_actions
from rota.sim.faults.users import cancel_infeasible, operate
from rota.sim.seeds import job_kinds
from rota.sim.seeds.demands import demand_seed
from rota.sim.seeds.elastic import elastic_seed
from rota.sim.seeds.leases import lease_seed
from rota.sim.seeds.results import result_seed
from rota.sim.seeds.rollouts import rollout_seed
from rota.sim.seeds.services import end_services, service_seed
from rota.sim.simulation import SimCluster, Size
from rota.sim.workloads.model import Arrival, Behaviour, NodeGroup
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

SAFETY_MS = 240_000  # while anything may fail
LIVENESS_MS = 3_600_000  # after that, for all jobs to end
PATIENCE_MS = 60_000  # after which users cancel what cannot run
OPERATE_MS = 20_000  # between two rounds of the operators
CPU = 1000
GIB = 1 << 30


class Scenario(NamedTuple):
    """All that determines a run."""

    seed: int
    size: Size
    arrivals: list[Arrival]
    faults: list[SimFault]
    safety_ms: int = SAFETY_MS
    liveness_ms: int = LIVENESS_MS
    crons: tuple[dict[str, Any], ...] = ()


@dataclass
class Finding:
    """The result of a run; `broken` is the violated invariant or the error, if any."""

    scenario: Scenario
    broken: str | None
    digest: str
    trace: list[str]
    counts: dict[str, int] = field(default_factory=dict)
    virtual_ms: int = 0
    steps: int = 0
    attempts: int = 0


def scenario(seed: int) -> Scenario:
    rng = Random(f"{seed}/scenario")
    servers = rng.choice((1, 1, 2, 3))
    groups = [
        NodeGroup(rng.randint(1, 4), {"cpu": rng.choice((1, 2, 4)) * CPU, "memory": 8 * GIB}, {"zone": zone})
        for zone in ("a", "b")
    ]
    # A node needs up to 20 s to notice a frozen leader; with several servers a shorter grace would lose it.
    lost_ms = rng.choice((30_000, 30_000, 10_000)) if servers == 1 else 30_000
    arrivals = sorted(
        (_arrival(rng, n) for n in range(rng.randint(2, 12))), key=lambda arrival: arrival.at_ms
    )
    length_ms = SAFETY_MS * 3 // 4
    faults = draw(rng, length_ms, servers=servers)
    demands = demand_seed(seed, groups, arrivals, length_ms)
    leases = lease_seed(seed, length_ms, servers=servers)
    elastic = elastic_seed(seed, demands.arrivals, length_ms)
    size = Size(tuple(demands.groups), servers, lost_ms, elastic=elastic.elastic)
    kinds = job_kinds.job_kind_seed(seed, elastic.arrivals, length_ms)
    rollouts = rollout_seed(seed, length_ms)
    seed_faults = [*demands.faults, *leases.faults, *draw_user_actions(seed, length_ms), *rollouts.faults]
    all_faults = sorted([*faults, *seed_faults, *elastic.faults])
    services = [*service_seed(seed, length_ms), *rollouts.arrivals]
    arrivals = sorted(
        [*kinds.arrivals, *services, *leases.arrivals, *result_seed(seed, length_ms)],
        key=lambda arrival: arrival.at_ms,
    )
    return Scenario(seed, size, arrivals, all_faults, crons=tuple(kinds.crons))


def _arrival(rng: Random, number: int) -> Arrival:
    """A small batch job; what matters is which faults it meets."""
    spec: dict[str, Any] = {"name": f"job-{number}", "command": ["work"], "retries": rng.choice((0, 1, 3))}
    spec["count"] = rng.choice((1, 1, 2, 5, 20, rng.randint(1, 300)))
    spec["cpu"] = rng.choice((0.5, 1, 1))
    spec["run"] = rng.choice(("at_least_once", "at_least_once", "at_most_once"))
    if rng.random() < 0.2:
        spec["timeout"] = rng.choice(("5s", "20s"))
    if rng.random() < 0.3:
        spec["parallel"] = rng.randint(1, 4)
    if rng.random() < 0.2:
        spec["workdir"] = "/data"
    if rng.random() < 0.05:
        spec["command"] = [MISSING]
    if rng.random() < 0.1:
        spec["when_unschedulable"] = "reject"
    spec["priority"] = rng.choice((50, 50, 10, 90))
    spec["grace"] = rng.choice(("1s", "10s"))
    return Arrival(rng.randrange(SAFETY_MS * 3 // 4), spec, _behaviour(rng, spec["count"]))


def _behaviour(rng: Random, count: int) -> Behaviour:
    """Jobs of few tasks may run long enough to meet a lost node or a cancel."""
    fail_share, deaf_share = rng.choice((0.0, 0.0, 0.3)), rng.choice((0.0, 0.3, 1.0))
    fail_attempts = rng.choice((1, 1, 2, 9))
    if count <= 5 and rng.random() < 0.4:
        return Behaviour(rng.randint(60_000, 200_000), 0.0, fail_share, deaf_share, fail_attempts)
    longest_ms = 20 if count > 50 else rng.choice((20, 3_000, 30_000))
    sigma = rng.choice((0.0, 1.0))
    return Behaviour(rng.randint(5, longest_ms), sigma, fail_share, deaf_share, fail_attempts)


def run(case: Scenario, *, keep_trace: bool = True) -> Finding:
    world = World(case.seed, keep_trace=keep_trace)
    broken = None
    cluster = SimCluster(world, case.size)
    try:
        _play(cluster, case)
    except InvariantBroken as error:
        broken = str(error)
    # Errors of the product are findings like violated invariants, so that shrinking works for both.
    except (Bug, AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
        broken = f"{type(error).__name__}: {error}{_where(error)}"
    cluster.close()
    if broken is not None:
        world.record("BROKEN", broken)
    counts = dict(sorted(world.counts.items()))
    attempts = cluster.checks.attempts
    return Finding(case, broken, world.digest, world.trace, counts, world.now_ms, world.steps, attempts)


def _play(cluster: SimCluster, case: Scenario) -> None:
    world = cluster.world
    cluster.start()
    if not case.size.forgets:  # a memory store loses their cursors
        cluster.add_subscribers()
    for n, arrival in enumerate(case.arrivals):
        world.after(arrival.at_ms, _submits(cluster, arrival, f"key-{n}"))
    rng = Random(f"{case.seed}/crons")
    for body in case.crons:
        world.after(rng.randrange(case.safety_ms // 2), job_kinds.create(cluster, body, rng))
    inject_faults(cluster, case.faults, case.safety_ms)

    _repeat(cluster, 1_000, cluster.check)
    _repeat(cluster, OPERATE_MS, lambda: operate(cluster))
    world.run(case.safety_ms)
    world.record("world", "no faults from here on")
    world.after(PATIENCE_MS, lambda: job_kinds.end_all(cluster))
    until_ms = case.safety_ms + case.liveness_ms
    last_ms = max((arrival.at_ms for arrival in case.arrivals), default=0)
    world.run(max(last_ms, case.safety_ms))
    _wait_for_ends(cluster, until_ms, case.safety_ms + PATIENCE_MS)
    end_services(cluster)
    _wait_for_ends(cluster, world.now_ms + case.liveness_ms, world.now_ms + PATIENCE_MS)
    _wait_for_machines(cluster, world.now_ms + case.liveness_ms)
    # A duplicate start or a late report would come within this time.
    world.run(world.now_ms + 60_000)  # late effects show up
    users = cluster.users
    if users.waiting:
        raise InvariantBroken(f"{users.waiting} submits were not answered")
    cluster.checks.at_the_end(users.acknowledged.values(), users.canceled, users.deleted)
    leader = cluster.election.leader
    if leader is None:
        raise InvariantBroken("no server leads")
    cluster.checks.check_mirror(leader)
    _check_keepers(cluster)


def _wait_for_ends(cluster: SimCluster, until_ms: int, patient_until_ms: int) -> None:
    while cluster.world.now_ms < until_ms and not all_ended(cluster):
        cluster.world.run(cluster.world.now_ms + 5_000)
        if cluster.world.now_ms > patient_until_ms:
            cancel_infeasible(cluster)


def _wait_for_machines(cluster: SimCluster, until_ms: int) -> None:
    """An idle elastic cluster shrinks to its minimum."""
    machine_checks = cluster.machine_checks
    while machine_checks is not None and machine_checks.describe_excess() and cluster.world.now_ms < until_ms:
        cluster.world.run(cluster.world.now_ms + 5_000)
    if machine_checks is not None and machine_checks.describe_excess():
        raise InvariantBroken(machine_checks.describe_excess())


def _repeat(cluster: SimCluster, every_ms: int, act: Callable[[], object]) -> None:
    act()
    cluster.world.after(every_ms, lambda: _repeat(cluster, every_ms, act))


def _submits(cluster: SimCluster, arrival: Arrival, key: str) -> Any:
    return lambda: cluster.users.submit(arrival, key)


def all_ended(cluster: SimCluster) -> bool:
    """Whether all jobs have ended, except services that are not canceled."""
    if cluster.users.waiting:
        return False
    known = cluster.checks.known
    if any(key.startswith("cron/") for key in known):  # it creates more jobs
        return False
    jobs = [key.split("/")[1] for key in known if key.startswith("job/") and key.endswith("/spec")]
    ending = [job for job in jobs if not known[f"job/{job}/spec"].is_service or job in cluster.users.canceled]
    statuses = [known.get(f"job/{job}/status") for job in ending]
    return all(status is not None and status.ended for status in statuses)


def _check_keepers(cluster: SimCluster) -> None:
    """Durable results are acknowledged, and the keepers have forgotten them."""
    for machine in cluster.machines:
        work = machine.keeper.work
        if machine.on and work is not None and work.journal_state.ended:
            raise InvariantBroken(
                f"{machine.name} got no acknowledgement for {list(work.journal_state.ended)[:3]}"
            )


def _where(error: BaseException) -> str:
    tail = error.__traceback__
    while tail is not None and tail.tb_next is not None:
        tail = tail.tb_next
    return (
        "" if tail is None else f" ({tail.tb_frame.f_code.co_filename.rpartition('/')[2]}:{tail.tb_lineno})"
    )
