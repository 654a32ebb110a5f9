"""A seed -> a cluster, its work and its faults; and a run of it -> what was found."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from rota.model.errors import Bug
from rota.sim.cluster.machine_os import MISSING
from rota.sim.faults.draw import befall, draw
from rota.sim.faults.fault import SimFault
from rota.sim.faults.user_actions import draw_wishes
from rota.sim.faults.users import give_up, look_after
from rota.sim.seeds import job_kinds
from rota.sim.seeds.demands import demand
from rota.sim.seeds.elastic import elastic_seed
from rota.sim.seeds.leases import lease_seed
from rota.sim.seeds.results import reporting
from rota.sim.seeds.rollouts import roll_out
from rota.sim.seeds.services import end_services, serve
from rota.sim.simulation import SimCluster, Size
from rota.sim.workloads.model import Arrival, Behaviour, NodeGroup
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

SAFETY_MS = 240_000  # while anything may fail
LIVENESS_MS = 3_600_000  # in which all must come to an end after that
PATIENCE_MS = 60_000  # after which somebody no longer waits for what cannot be had
TEND_MS = 20_000  # between two looks of those who look after the cluster
CPU = 1000
GIB = 1 << 30


class Scenario(NamedTuple):
    seed: int
    size: Size
    arrivals: list[Arrival]
    faults: list[SimFault]
    safety_ms: int = SAFETY_MS
    liveness_ms: int = LIVENESS_MS
    crons: tuple[dict[str, Any], ...] = ()


@dataclass
class Finding:
    """What a run has shown."""

    scenario: Scenario
    broken: str | None
    digest: str
    trace: list[str]
    counts: dict[str, int] = field(default_factory=dict)
    virtual_ms: int = 0
    steps: int = 0
    attempts: int = 0


def scenario(seed: int) -> Scenario:
    luck = Random(f"{seed}/scenario")
    servers = luck.choice((1, 1, 2, 3))
    groups = [
        NodeGroup(
            luck.randint(1, 4), {"cpu": luck.choice((1, 2, 4)) * CPU, "memory": 8 * GIB}, {"zone": zone}
        )
        for zone in ("a", "b")
    ]
    # A node needs up to 20 s to notice that a leader is frozen: with several, less would be too little.
    lost_ms = luck.choice((30_000, 30_000, 10_000)) if servers == 1 else 30_000
    arrivals = sorted((_arrival(luck, n) for n in range(luck.randint(2, 12))), key=lambda one: one.at_ms)
    length_ms = SAFETY_MS * 3 // 4
    faults = draw(luck, length_ms, servers=servers)
    more = demand(seed, groups, arrivals, length_ms)
    under = lease_seed(seed, length_ms, servers=servers)
    clouded = elastic_seed(seed, more.arrivals, length_ms)
    size = Size(tuple(more.groups), servers, lost_ms, elastic=clouded.elastic)
    wished = job_kinds.job_kind_seed(seed, clouded.arrivals, length_ms)
    rolled = roll_out(seed, length_ms)
    own_faults = [*more.faults, *under.faults, *draw_wishes(seed, length_ms), *rolled.faults]
    all_faults = sorted([*faults, *own_faults, *clouded.faults])
    services = [*serve(seed, length_ms), *rolled.arrivals]
    arrivals = sorted(
        [*wished.arrivals, *services, *under.arrivals, *reporting(seed, length_ms)], key=lambda one: one.at_ms
    )
    return Scenario(seed, size, arrivals, all_faults, crons=tuple(wished.crons))


def _arrival(luck: Random, number: int) -> Arrival:
    """Small jobs of every kind: what matters is how they meet the faults."""
    spec: dict[str, Any] = {"name": f"job-{number}", "command": ["work"], "retries": luck.choice((0, 1, 3))}
    spec["count"] = luck.choice((1, 1, 2, 5, 20, luck.randint(1, 300)))
    spec["cpu"] = luck.choice((0.5, 1, 1))
    spec["run"] = luck.choice(("at_least_once", "at_least_once", "at_most_once"))
    if luck.random() < 0.2:
        spec["timeout"] = luck.choice(("5s", "20s"))
    if luck.random() < 0.3:
        spec["parallel"] = luck.randint(1, 4)
    if luck.random() < 0.2:
        spec["workdir"] = "/data"
    if luck.random() < 0.05:
        spec["command"] = [MISSING]
    if luck.random() < 0.1:
        spec["when_unschedulable"] = "reject"
    spec["priority"] = luck.choice((50, 50, 10, 90))
    spec["grace"] = luck.choice(("1s", "10s"))
    return Arrival(luck.randrange(SAFETY_MS * 3 // 4), spec, _behaviour(luck, spec["count"]))


def _behaviour(luck: Random, count: int) -> Behaviour:
    """Of few tasks some run for so long that a node is lost, or their job canceled, while they do."""
    fail_share, deaf_share = luck.choice((0.0, 0.0, 0.3)), luck.choice((0.0, 0.3, 1.0))
    fail_attempts = luck.choice((1, 1, 2, 9))
    if count <= 5 and luck.random() < 0.4:
        return Behaviour(luck.randint(60_000, 200_000), 0.0, fail_share, deaf_share, fail_attempts)
    longest_ms = 20 if count > 50 else luck.choice((20, 3_000, 30_000))
    sigma = luck.choice((0.0, 1.0))
    return Behaviour(luck.randint(5, longest_ms), sigma, fail_share, deaf_share, fail_attempts)


def run(case: Scenario, *, keep_trace: bool = True) -> Finding:
    world = World(case.seed, keep_trace=keep_trace)
    broken = None
    cluster = SimCluster(world, case.size)
    try:
        _play(cluster, case)
    except InvariantBroken as error:
        broken = str(error)
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
    if not case.size.forgets:  # they would have to begin anew
        cluster.add_subscribers()
    for n, arrival in enumerate(case.arrivals):
        world.after(arrival.at_ms, _submits(cluster, arrival, f"key-{n}"))
    luck = Random(f"{case.seed}/crons")
    for body in case.crons:
        world.after(luck.randrange(case.safety_ms // 2), job_kinds.create(cluster, body, luck))
    befall(cluster, case.faults, case.safety_ms)

    _again_and_again(cluster, 1_000, cluster.check)
    _again_and_again(cluster, TEND_MS, lambda: look_after(cluster))
    world.run(case.safety_ms)
    world.record("world", "nothing fails from here on")
    world.after(PATIENCE_MS, lambda: job_kinds.end_all(cluster))
    until_ms = case.safety_ms + case.liveness_ms
    last_ms = max((arrival.at_ms for arrival in case.arrivals), default=0)
    world.run(max(last_ms, case.safety_ms))
    _wait_for_ends(cluster, until_ms, case.safety_ms + PATIENCE_MS)
    end_services(cluster)
    _wait_for_ends(cluster, world.now_ms + case.liveness_ms, world.now_ms + PATIENCE_MS)
    _wait_for_machines(cluster, world.now_ms + case.liveness_ms)
    world.run(world.now_ms + 60_000)  # what is late or left behind shows itself
    users = cluster.users
    if users.waiting:
        raise InvariantBroken(f"{users.waiting} submits have not been answered")
    cluster.checks.at_the_end(users.acknowledged.values(), users.canceled, users.deleted)
    leader = cluster.election.leader
    if leader is None:
        raise InvariantBroken("nobody leads")
    cluster.checks.believes_the_disk(leader)
    _look_at_keepers(cluster)


def _wait_for_ends(cluster: SimCluster, until_ms: int, patient_until_ms: int) -> None:
    while cluster.world.now_ms < until_ms and not all_ended(cluster):
        cluster.world.run(cluster.world.now_ms + 5_000)
        if cluster.world.now_ms > patient_until_ms:
            give_up(cluster)


def _wait_for_machines(cluster: SimCluster, until_ms: int) -> None:
    """Without any work a cluster has as many as it may not be without."""
    fleets = cluster.fleets
    while fleets is not None and fleets.too_many() and cluster.world.now_ms < until_ms:
        cluster.world.run(cluster.world.now_ms + 5_000)
    if fleets is not None and fleets.too_many():
        raise InvariantBroken(fleets.too_many())


def _again_and_again(cluster: SimCluster, every_ms: int, act: Callable[[], object]) -> None:
    act()
    cluster.world.after(every_ms, lambda: _again_and_again(cluster, every_ms, act))


def _submits(cluster: SimCluster, arrival: Arrival, key: str) -> Any:
    return lambda: cluster.users.submit(arrival, key)


def all_ended(cluster: SimCluster) -> bool:
    """But for services that nobody has canceled."""
    if cluster.users.waiting:
        return False
    known = cluster.checks.known
    if any(key.startswith("cron/") for key in known):  # it will make more
        return False
    jobs = [key.split("/")[1] for key in known if key.startswith("job/") and key.endswith("/spec")]
    ending = [job for job in jobs if not known[f"job/{job}/spec"].is_service or job in cluster.users.canceled]
    statuses = [known.get(f"job/{job}/status") for job in ending]
    return all(status is not None and status.ended for status in statuses)


def _look_at_keepers(cluster: SimCluster) -> None:
    """A result that is stored is acknowledged, and forgotten by the node."""
    for machine in cluster.machines:
        work = machine.keeper.work
        if machine.on and work is not None and work.journal_state.ended:
            raise InvariantBroken(
                f"{machine.name} was never told that {list(work.journal_state.ended)[:3]} are stored"
            )


def _where(error: BaseException) -> str:
    tail = error.__traceback__
    while tail is not None and tail.tb_next is not None:
        tail = tail.tb_next
    return (
        "" if tail is None else f" ({tail.tb_frame.f_code.co_filename.rpartition('/')[2]}:{tail.tb_lineno})"
    )
