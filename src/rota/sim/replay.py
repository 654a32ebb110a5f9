"""A workload file -> a run of it on a simulated cluster, with one row per task."""

import resource
import time
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from rota.model.ids import JobId
from rota.scheduler import round as placement
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import SimChild
from rota.sim.faults.draw import draw, inject_faults
from rota.sim.scenario import all_ended
from rota.sim.simulation import SimCluster, Size
from rota.sim.workloads.figures import TaskRun
from rota.sim.workloads.model import HOUR_MS, Arrival, Workload
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

CHECK_MS = 60_000  # between two checks
CHECK_WITH_FAULTS_MS = 1_000  # the same, with faults
QUIET_TICK_MS = 4_000  # of a server; long to save steps, and just below what counts as a stall
AFTER_MS = 7 * 24 * HOUR_MS  # how long after the last arrival all must have ended


class ReplaySettings(NamedTuple):
    seed: int = 0
    hours: float = 24.0
    faults: bool = False
    servers: int = 1
    first_come: bool = False  # strict queue order, without backfill


class Replayed(NamedTuple):
    """The outcome of a replay."""

    rows: list[TaskRun]
    digest: str
    virtual_ms: int
    steps: int
    seconds: float
    peak_mib: float  # peak memory of this process
    spans: list[tuple[int, int]]  # lifetime of each node


def replay(workload: Workload, settings: ReplaySettings) -> Replayed:
    """Run a workload to its end; raise InvariantBroken if an invariant is violated on the way."""
    began = time.perf_counter()
    world = World(settings.seed, keep_trace=False)
    scheduling = placement.SchedulerSettings(backfill=not settings.first_come)
    nodes = () if workload.cluster is not None else workload.nodes
    cluster = SimCluster(world, Size(nodes, settings.servers, placement=scheduling, elastic=workload.cluster))
    for server in cluster.servers:
        server.tick_ms = QUIET_TICK_MS
    records = _TaskRuns(cluster)
    cluster.start()
    arrivals = _Arrivals(cluster, workload.arrivals(Random(f"{settings.seed}/workload"), settings.hours))
    if settings.faults:
        cluster.add_subscribers()
        rng, length_ms = world.rng("faults"), round(settings.hours * HOUR_MS)
        inject_faults(cluster, draw(rng, length_ms, servers=settings.servers), length_ms)

    check_ms = CHECK_WITH_FAULTS_MS if settings.faults else CHECK_MS

    def check() -> None:
        cluster.check()
        world.after(check_ms, check)

    check()
    while not _is_done(arrivals, cluster) and world.now_ms < arrivals.last_ms + AFTER_MS:
        world.run(world.now_ms + 60_000)
    users = cluster.users
    if refused := world.counts["user: a submit was refused"]:
        raise InvariantBroken(f"{refused} of the workload's jobs were refused")
    cluster.checks.at_the_end(users.acknowledged.values(), users.canceled, users.deleted)
    spans = _wait_for_minimum(cluster, workload) if workload.cluster else [(0, world.now_ms)] * workload.size
    cluster.close()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - began
    return Replayed(records.rows, world.digest, world.now_ms, world.steps, seconds, peak_mib, spans)


def _wait_for_minimum(cluster: SimCluster, workload: Workload) -> list[tuple[int, int]]:
    """Wait until the idle cluster has shrunk to its minimum; return the lifetimes of all its nodes."""
    provider, elastic, world = cluster.provider, workload.cluster, cluster.world
    assert provider is not None
    assert elastic is not None
    until_ms = world.now_ms + AFTER_MS
    while len(provider.machines) > elastic.least and world.now_ms < until_ms:
        world.run(world.now_ms + 1_000)
    if len(provider.machines) != elastic.least:
        raise InvariantBroken(
            f"nothing runs, and {len(provider.machines)} nodes are there, not {elastic.least}"
        )
    return [*provider.spans, *((machine.created_at_ms, world.now_ms) for machine in provider.machines)]


def _is_done(arrivals: "_Arrivals", cluster: SimCluster) -> bool:
    """Whether all jobs have ended; called every minute, so the cheap test comes first."""
    busy = any(server.leads and server.mirror.unfinished for server in cluster.servers)
    return arrivals.over and not busy and all_ended(cluster)


class _Arrivals:
    """Submits jobs one after the other, holding only the next one in memory."""

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


class _TaskRuns:
    """Collects one row per task, of its last attempt."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._rows: dict[tuple[str, int], TaskRun] = {}
        self._began: dict[tuple[str, int, int], int] = {}
        checks = cluster.checks
        self._checks = checks
        cluster.on_machine_added = self._watch
        for machine in cluster.machines:
            self._watch(machine)

    @property
    def rows(self) -> list[TaskRun]:
        # Known when the answer arrives, which may be after the end.
        submitted = self._cluster.users.submitted_ms
        return [row._replace(submitted_ms=submitted[JobId(row.job)]) for row in self._rows.values()]

    def _watch(self, machine: SimMachine) -> None:
        machine.process_started, machine.process_ended = self._process_started, self._process_ended

    def _process_started(self, machine: str, child: SimChild) -> None:
        self._checks.process_started(machine, child)
        self._began[child.key] = self._cluster.world.now_ms

    def _process_ended(self, machine: str, child: SimChild) -> None:
        self._checks.process_ended(machine, child)
        job, index, attempt = child.key
        spec = self._checks.known[f"job/{job}/spec"]
        began_ms = self._began.pop(child.key)
        cpu = spec.needs.get("cpu", 0)
        self._rows[job, index] = TaskRun(job, index, cpu, 0, began_ms, self._cluster.world.now_ms, attempt)
