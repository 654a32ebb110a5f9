"""A workload file -> a simulated cluster that works it off, and how that went."""

import resource
import time
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from rota.model.ids import JobId
from rota.scheduler import round as placement
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import SimChild
from rota.sim.faults.draw import befall, draw
from rota.sim.scenario import all_ended
from rota.sim.simulation import SimCluster, Size
from rota.sim.workloads.figures import TaskRun
from rota.sim.workloads.model import HOUR_MS, Arrival, Workload
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

LOOK_MS = 60_000  # how often what overlaps is looked at
CLOSE_LOOK_MS = 1_000  # the same, while something may fail
QUIET_TICK_MS = 4_000  # of a server: just short enough not to pass for a stall, months are long
AFTER_MS = 7 * 24 * HOUR_MS  # how long after the last arrival all must have ended


class ReplaySettings(NamedTuple):
    seed: int = 0
    hours: float = 24.0
    faults: bool = False
    servers: int = 1
    first_come: bool = False  # nobody overtakes: the queue without backfill


class Replayed(NamedTuple):
    rows: list[TaskRun]
    digest: str
    virtual_ms: int
    steps: int
    seconds: float
    peak_mib: float  # of this whole process, so far
    spans: list[tuple[int, int]]  # from when to when each node was there


def replay(workload: Workload, settings: ReplaySettings) -> Replayed:
    """Everything that is promised is checked on the way: raises Broken."""
    began = time.perf_counter()
    world = World(settings.seed, keep_trace=False)
    order = placement.SchedulerSettings(backfill=not settings.first_come)
    nodes = () if workload.cluster is not None else workload.nodes
    cluster = SimCluster(world, Size(nodes, settings.servers, placement=order, elastic=workload.cluster))
    for server in cluster.servers:
        server.tick_ms = QUIET_TICK_MS
    records = _Records(cluster)
    cluster.start()
    coming = _Coming(cluster, workload.arrivals(Random(f"{settings.seed}/workload"), settings.hours))
    if settings.faults:
        cluster.add_subscribers()
        luck, length_ms = world.luck("faults"), round(settings.hours * HOUR_MS)
        befall(cluster, draw(luck, length_ms, servers=settings.servers), length_ms)

    look_ms = CLOSE_LOOK_MS if settings.faults else LOOK_MS

    def look() -> None:
        cluster.check()
        world.after(look_ms, look)

    look()
    while not _over(coming, cluster) and world.now_ms < coming.last_ms + AFTER_MS:
        world.run(world.now_ms + 60_000)
    users = cluster.users
    if refused := world.counts["user: a submit was refused"]:
        raise InvariantBroken(f"{refused} of the workload's jobs were refused")
    cluster.checks.at_the_end(users.acknowledged.values(), users.canceled, users.deleted)
    spans = _shrunk(cluster, workload) if workload.cluster else [(0, world.now_ms)] * workload.size
    cluster.close()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - began
    return Replayed(records.rows, world.digest, world.now_ms, world.steps, seconds, peak_mib, spans)


def _shrunk(cluster: SimCluster, workload: Workload) -> list[tuple[int, int]]:
    """Wait until as many nodes are left as it has without any work."""
    provider, elastic, world = cluster.provider, workload.cluster, cluster.world
    assert provider is not None
    assert elastic is not None
    until_ms = world.now_ms + AFTER_MS
    while len(provider.there) > elastic.least and world.now_ms < until_ms:
        world.run(world.now_ms + 1_000)
    if len(provider.there) != elastic.least:
        raise InvariantBroken(f"nothing runs, and {len(provider.there)} nodes are there, not {elastic.least}")
    return [*provider.spans, *((one.begin_ms, world.now_ms) for one in provider.there)]


def _over(coming: "_Coming", cluster: SimCluster) -> bool:
    """Asked every minute: what is cheap to know comes first."""
    busy = any(server.leads and server.mirror.unfinished for server in cluster.servers)
    return coming.over and not busy and all_ended(cluster)


class _Coming:
    """Jobs are submitted one after the other: only the next is kept in mind."""

    def __init__(self, cluster: SimCluster, arrivals: Iterator[Arrival]) -> None:
        self.over = False
        self.last_ms = 0
        self._cluster = cluster
        self._arrivals = arrivals
        self._number = 0
        self._next()

    def _next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self.over = True
            return
        self.last_ms = arrival.at_ms
        self._number += 1
        unique = arrival._replace(spec=arrival.spec | {"name": f"{arrival.spec['name']}-{self._number}"})
        self._cluster.world.after(arrival.at_ms - self._cluster.world.now_ms, lambda: self._submit(unique))

    def _submit(self, arrival: Arrival) -> None:
        self._cluster.users.submit(arrival, f"key-{self._number}")
        self._next()


class _Records:
    """One row for each task, of its last attempt."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._rows: dict[tuple[str, int], TaskRun] = {}
        self._began: dict[tuple[str, int, int], int] = {}
        checks = cluster.checks
        self._checks = checks
        cluster.came = self._watch
        for machine in cluster.machines:
            self._watch(machine)

    @property
    def rows(self) -> list[TaskRun]:
        submitted = self._cluster.users.submitted_ms  # known once the answer has arrived, be it after the end
        return [row._replace(submitted_ms=submitted[JobId(row.job)]) for row in self._rows.values()]

    def _watch(self, machine: SimMachine) -> None:
        machine.born, machine.died = self._born, self._died

    def _born(self, machine: str, child: SimChild) -> None:
        self._checks.born(machine, child)
        self._began[child.key] = self._cluster.world.now_ms

    def _died(self, machine: str, child: SimChild) -> None:
        self._checks.died(machine, child)
        job, index, attempt = child.key
        spec = self._checks.known[f"job/{job}/spec"]
        began_ms = self._began.pop(child.key)
        cpu = spec.needs.get("cpu", 0)
        self._rows[job, index] = TaskRun(job, index, cpu, 0, began_ms, self._cluster.world.now_ms, attempt)
