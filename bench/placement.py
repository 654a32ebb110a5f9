"""Speed of placement: all nodes considered, in memory, and end to end with durable commits.

python bench/placement.py [--nodes 100,1000,5000,10000] [--durable 1000,5000] [--repeat 3] [--quick]

Each row shows kube-scheduler's own threshold for the case at 5,000 nodes (scheduler_perf, pods per second,
which include its API server and etcd), and the speed-up over scoring every node again for each decision. A
row is measured several times, and the median is shown. `cpu/s` counts the CPU seconds of this process, which
other load does not affect.
"""

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rota.clusters import assign
from rota.controllers import batch
from rota.engine.loop import Loop, Request
from rota.engine.run import batch_of
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Connection, NodeSpec
from rota.model.plan import Instant, Plan
from rota.model.shape import AffinityTerm, Constraint, Op, Policy, SpreadTerm
from rota.scheduler import plan as scheduler
from rota.scheduler.cluster_fit import FitCalculator
from rota.scheduler.placement.place import Assignment, Placer
from rota.scheduler.placement.rows import ScoreRows
from rota.scheduler.policy.preempt import find_victims
from rota.store.sqlite import SqliteStore
from rota.testing import records
from rota.testing.builders import GIB, add_job, add_node, node_status
from rota.wiring.process import tune_interpreter

WEB = Constraint("app", Op.EQUAL, ("web",))
RESCANS = 50  # decisions that are averaged for the cost of a full rescan
ZONES = 3


class PlacementCase(NamedTuple):
    """A workload, its number of tasks, and the threshold of kube-scheduler for a similar one."""

    name: str
    work: Callable[["PlacementStage"], None]
    tasks: int
    threshold: int | None = None


class PlacementStage:
    """An idle cluster, with the timings of its decisions."""

    def __init__(self, nodes: int, tasks: int) -> None:
        self.mirror = Mirror()
        self.tasks = tasks
        self.random = random.Random(1)
        for number in range(nodes):
            spec = {"cpu": 32_000, "memory": 64 * GIB}
            labels = {"zone": f"z{number % ZONES}", "disk": "ssd" if number % 2 else "hdd"}
            add_node(self.mirror, f"n{number}", spec, labels=labels)
        self.placer = Placer(self.mirror)
        self.jobs = 0
        self.asks: list[tuple[float, int]] = []  # seconds, tasks decided
        self.rescans: list[float] = []
        self.began_cpu = time.process_time()
        self.cpu_seconds: float | None = None  # of all decisions; measuring each would cost more than itself

    def start(self) -> None:
        """Start the CPU clock after the preparation."""
        self.began_cpu = time.process_time()

    def end(self) -> None:
        if self.cpu_seconds is None:
            self.cpu_seconds = time.process_time() - self.began_cpu

    @property
    def rate(self) -> float:
        """Tasks decided per second."""
        return sum(count for _, count in self.asks) / sum(spent for spent, _ in self.asks)

    def job(self, **fields: Any) -> JobEntry:
        self.jobs += 1
        plain: dict[str, Any] = {"needs": {"cpu": 100, "memory": GIB // 8}, "count": self.tasks}
        add_job(self.mirror, records.job(self.jobs, **(plain | fields)))
        return self.mirror.jobs[JobId(str(self.jobs))]

    def place(self, job: JobEntry, count: int = 1) -> list[Assignment]:
        began = time.perf_counter()
        assigned = self.placer.place(job, count).assigned
        self.asks.append((time.perf_counter() - began, count))
        for assignment in assigned:
            node = self.mirror.node_table.ids[assignment.slot]
            job.live_by_node[node] = job.live_by_node.get(node, 0) + 1
        return assigned

    def rescan(self, job: JobEntry) -> None:
        """Repeat the decision without cached scores, and release it again."""
        self.end()
        for _ in range(RESCANS):
            self.placer.rows = ScoreRows(self.placer.board)
            began = time.process_time()
            assigned = self.placer.place(job, 1).assigned
            self.rescans.append(time.process_time() - began)
            self.placer.release(job, assigned)


# ---- cases


def basic(stage: PlacementStage) -> None:
    _one_by_one(stage, stage.job())


def in_batches(stage: PlacementStage) -> None:
    job = stage.job()
    for _ in range(0, stage.tasks, 1000):
        stage.place(job, 1000)
    stage.rescan(job)


def packed(stage: PlacementStage) -> None:
    _one_by_one(stage, stage.job(policy=Policy.PACK))


def topology_spread(stage: PlacementStage) -> None:
    _one_by_one(stage, stage.job(spread=(SpreadTerm("zone", 5),)))


def topology_spread_in_one_call(stage: PlacementStage) -> None:
    """All tasks in one call, as a job is placed: its domains are counted once."""
    job = stage.job(spread=(SpreadTerm("zone", 5),))
    stage.place(job, stage.tasks)
    stage.rescan(job)


def affinity(stage: PlacementStage) -> None:
    _one_by_one(stage, stage.job(labels={"app": "web"}, near=(AffinityTerm(WEB, "zone"),)))


def anti_affinity(stage: PlacementStage) -> None:
    _one_by_one(stage, stage.job(labels={"app": "web"}, apart=(AffinityTerm(WEB),)))


def node_affinity(stage: PlacementStage) -> None:
    _one_by_one(stage, stage.job(where=(Constraint("disk", Op.EQUAL, ("ssd",)),)))


def half_unschedulable(stage: PlacementStage) -> None:
    fits, never = stage.job(), stage.job(needs={"cpu": 10**9})
    for _ in range(stage.tasks // 2):
        stage.place(fits)
        stage.place(never)
    stage.rescan(fits)


def small_gangs(stage: PlacementStage) -> None:
    _gangs(stage, stage.tasks // 3, 3)


def large_gangs(stage: PlacementStage) -> None:
    _gangs(stage, 9, stage.tasks // 9)


def mixed_with_churn(stage: PlacementStage) -> None:
    """Forty shapes in random order; a quarter of the placed tasks is released again."""
    jobs = [stage.job(**_mixed(number)) for number in range(40)]
    placed: list[tuple[JobEntry, Assignment]] = []
    for _ in range(stage.tasks):
        job = stage.random.choice(jobs)
        placed += [(job, assignment) for assignment in stage.place(job)]
        if placed and stage.random.random() < 0.25:
            _release(stage, *placed.pop(stage.random.randrange(len(placed))))
    stage.rescan(jobs[0])


def shuffled(stage: PlacementStage) -> None:
    jobs = [stage.job(needs={"cpu": 100 + number, "memory": GIB // 8}) for number in range(64)]
    for _ in range(stage.tasks):
        stage.place(stage.random.choice(jobs))
    stage.rescan(jobs[0])


def preemption(stage: PlacementStage) -> None:
    """Each node is full with four tasks; a new task needs the resources of three of them."""
    _fill(stage)
    job = stage.job(needs={"cpu": 23_000}, priority=90)
    barred = stage.placer.rows.eligible(job.spec.shape) & False
    stage.start()
    for _ in range(min(stage.tasks, stage.mirror.node_table.size)):
        began = time.perf_counter()
        found = find_victims(stage.mirror, stage.placer, job, barred, frozenset())
        stage.asks.append((time.perf_counter() - began, 1))
        assert found is not None
        assert len(found.victims) == 3
        barred[found.slot] = True
        stage.placer.board.allocate(job.spec.shape, found.slot)


def _one_by_one(stage: PlacementStage, job: JobEntry) -> None:
    for _ in range(stage.tasks):
        stage.place(job)
    stage.rescan(job)


def _gangs(stage: PlacementStage, count: int, size: int) -> None:
    for _ in range(count):
        job = stage.job(count=size, gang=True)
        assert len(stage.place(job, size)) in (0, size)
    stage.rescan(stage.job())


def _mixed(number: int) -> dict[str, Any]:
    app = {"app": f"a{number}"}
    term = Constraint("app", Op.EQUAL, (f"a{number}",))
    kinds: list[dict[str, Any]] = [
        {},
        {"spread": (SpreadTerm("zone", 5),)},
        {"labels": app, "near": (AffinityTerm(term, "zone"),)},
        {"labels": app, "apart": (AffinityTerm(term),)},
    ]
    return {"needs": {"cpu": 100 + 10 * number, "memory": GIB // 8}, **kinds[number % 4]}


def _release(stage: PlacementStage, job: JobEntry, assignment: Assignment) -> None:
    node = stage.mirror.node_table.ids[assignment.slot]
    stage.placer.release(job, [assignment])
    job.live_by_node[node] -= 1
    if not job.live_by_node[node]:
        del job.live_by_node[node]


def _fill(stage: PlacementStage) -> None:
    """Put four running tasks on every node, as records of the scheduler and the nodes."""
    job = stage.job(needs={"cpu": 7_500}, priority=10, count=4 * stage.mirror.node_table.size)
    ids = stage.mirror.node_table.ids
    for block in range(job.spec.blocks):
        size = job.spec.block_size(block)
        attempt = AttemptBlock.new(job.spec.id, block, size)
        for position in range(0, size, 4):
            node = ids[(block * BLOCK_TASKS + position) // 4]
            attempt = records.placed(attempt, range(position, position + 4), node)
        stage.mirror.apply(attempt)
        status = StatusBlock.new(job.spec.id, block, size)
        stage.mirror.apply(records.reported(status, range(size), AttemptState.RUNNING))
    stage.placer.start_round(stage.mirror)


# ---- end to end


class DurableLoop:
    """The deciding loop with a store on disk: a batch counts when its commit is durable."""

    def __init__(self, nodes: int, directory: Path) -> None:
        self.store = SqliteStore(directory)
        self.mirror = Mirror()
        self.loop = Loop(
            self.mirror,
            [assign.reconciler(FitCalculator().cluster_fit), batch.RECONCILER, scheduler.reconciler()],
        )
        self.ms = 0
        self.nodes = [(f"n{number}", {"zone": f"z{number % ZONES}"}) for number in range(nodes)]
        self.jobs = 0

    async def start(self) -> None:
        self.epoch = await self.store.acquire_epoch()
        self.revision = (await self.store.read()).revision
        for name, labels in self.nodes:
            self.ask("apiserver", NodeSpec(NodeId(name), name, labels=labels))
            self.ask("watcher", node_status(name, {"cpu": 32_000, "memory": 64 * GIB}))
        await self.commit()
        for name, _ in self.nodes:
            self.mirror.connect(NodeId(name), Connection.UP)

    def ask(self, owner: str, record: Any) -> None:
        self.loop.ask(Request(owner, lambda *_: Plan((record,)), _ignore, _raise))

    def submit(self, count: int) -> None:
        self.jobs += 1
        needs = {"cpu": 100, "memory": GIB // 8}
        self.ask("apiserver", JobSpec(JobId(str(self.jobs)), "true", ("true",), 0, count=count, needs=needs))

    async def commit(self) -> None:
        """Decide to quiescence; each batch is durable before the next one is decided."""
        while True:
            self.ms += 1
            decided = self.loop.decide(Instant(self.ms, self.ms))
            assert not self.loop.parking.faults, self.loop.parking.faults[0].error
            if decided is None:
                return
            if decided.commits:
                self.revision = await self.store.commit(batch_of(decided, self.epoch, self.revision))

    @property
    def placed(self) -> int:
        return sum(entry.task_counts.live for entry in self.mirror.jobs.values())


class Spent(NamedTuple):
    """Cost of an end-to-end run."""

    seconds: float
    cpu_seconds: float
    placed: int  # tasks


async def end_to_end(nodes: int, directory: Path, jobs: int, count: int) -> Spent:
    """Submit `jobs` jobs of `count` tasks to an idle cluster, a hundred at a time."""
    durable = DurableLoop(nodes, directory)
    await durable.start()
    cpu, began = time.process_time(), time.perf_counter()
    for first in range(0, jobs, 100):
        for _ in range(min(100, jobs - first)):
            durable.submit(count)
        await durable.commit()
    spent = (time.perf_counter() - began, time.process_time() - cpu)
    await durable.store.close()
    return Spent(*spent, durable.placed)


def _ignore(answer: object) -> None:
    del answer


def _raise(error: Exception) -> None:
    raise error


CASES = (
    PlacementCase("basic", basic, 10_000, 680),
    PlacementCase("basic, a thousand at a time", in_batches, 50_000, 790),
    PlacementCase("packed", packed, 10_000),
    PlacementCase("topology spread, skew 5", topology_spread, 5_000, 460),
    PlacementCase("the same, at once", topology_spread_in_one_call, 5_000, 460),
    PlacementCase("affinity, zone", affinity, 5_000, 70),
    PlacementCase("anti-affinity, host", anti_affinity, 2_000, 180),
    PlacementCase("node affinity", node_affinity, 10_000, 540),
    PlacementCase("preemption, 3 of 4", preemption, 500, 570),
    PlacementCase("half unschedulable", half_unschedulable, 10_000, 590),
    PlacementCase("gangs of 3", small_gangs, 3_000),
    PlacementCase("gangs of a ninth", large_gangs, 9_000),
    PlacementCase("40 mixed, 25 % released", mixed_with_churn, 5_000, 710),
    PlacementCase("64 shapes shuffled", shuffled, 5_000),
)


def main() -> None:
    options = arguments()
    tune_interpreter()
    sizes = [100] if options.quick else [int(size) for size in options.nodes.split(",")]
    print(
        f"{'work':<28} {'nodes':>6} {'tasks':>7} {'per s':>9} {'cpu/s':>9} {'p50 us':>8} {'p99 us':>8}",
        end="",
    )
    print(f" {'rescan':>7} {'kube/s':>7}")
    for case in CASES:
        for nodes in sizes:
            stages = [measure(case, nodes, options.quick) for _ in range(options.repeat)]
            print(
                show(case, nodes, sorted(stages, key=lambda stage: stage.rate)[len(stages) // 2]), flush=True
            )
    for nodes in [100] if options.quick else [int(size) for size in options.durable.split(",")]:
        for name, jobs, count in (("durable, jobs of 1", 5_000, 1), ("durable, jobs of 1,000", 50, 1_000)):
            work = (jobs // 50 if options.quick else jobs, count)
            spent = [durably(nodes, work, options.dir) for _ in range(options.repeat)]
            print(durable_row(name, nodes, sorted(spent)[len(spent) // 2]), flush=True)


def measure(case: PlacementCase, nodes: int, quick: bool) -> PlacementStage:
    stage = PlacementStage(nodes, max(18, case.tasks // 100) if quick else case.tasks)
    case.work(stage)
    stage.end()
    return stage


def show(case: PlacementCase, nodes: int, stage: PlacementStage) -> str:
    tasks = sum(count for _, count in stage.asks)
    each_us = sorted(spent / count * 1e6 for spent, count in stage.asks)
    p50, p99 = (each_us[int(share * (len(each_us) - 1))] for share in (0.5, 0.99))
    per_cpu = tasks / max(1e-9, stage.cpu_seconds or 0.0)
    rescan = f"{per_cpu * sum(stage.rescans) / len(stage.rescans):>6.1f}x" if stage.rescans else f"{'-':>7}"
    kube = f"{case.threshold:>7,}" if case.threshold else f"{'-':>7}"
    rates = f"{stage.rate:>9,.0f} {per_cpu:>9,.0f}"
    return f"{case.name:<28} {nodes:>6,} {tasks:>7,} {rates} {p50:>8.1f} {p99:>8.1f} {rescan} {kube}"


def durably(nodes: int, work: tuple[int, int], given: str | None) -> Spent:
    directory = Path(tempfile.mkdtemp(prefix="rota-placement-", dir=given or "/var/tmp"))
    try:
        return asyncio.run(end_to_end(nodes, directory, *work))
    finally:
        shutil.rmtree(directory)


def durable_row(name: str, nodes: int, spent: Spent) -> str:
    seconds, cpu, placed = spent
    rates = f"{placed / seconds:>9,.0f} {placed / max(1e-9, cpu):>9,.0f}"
    return f"{name:<28} {nodes:>6,} {placed:>7,} {rates} {'-':>8} {'-':>8} {'-':>7} {680:>7,}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", default="100,1000,5000,10000")
    parser.add_argument("--durable", default="1000,5000", metavar="NODES")
    parser.add_argument("--repeat", type=int, default=3, help="number of measurements per row")
    parser.add_argument("--dir", help="directory of the stores of the durable rows; default: /var/tmp")
    parser.add_argument("--quick", action="store_true", help="a hundred nodes and few tasks, as a smoke test")
    return parser.parse_args()


if __name__ == "__main__":
    main()
