"""How fast placement decides: every node considered, in memory, and end to end with durable commits.

python bench/placement.py [--nodes 100,1000,5000,10000] [--durable 1000,5000] [--repeat 3] [--quick]

Beside each figure stands what kube-scheduler's own benchmark asks of it at 5,000 nodes (scheduler_perf's
thresholds, pods a second, which include its API server and etcd), and how much faster than scoring every
node anew each time. A row is measured several times, and the median shown: machines are noisy. `cpu/s`
counts this process' CPU seconds, which a busy machine does not spoil.
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
RESCANS = 50  # decisions from which the full rescan's cost is taken
ZONES = 3


class Case(NamedTuple):
    """A kind of work, how much of it, and the threshold of kube-scheduler for its like."""

    name: str
    work: Callable[["Stage"], None]
    tasks: int
    threshold: int | None = None


class Stage:
    """An idle cluster, and a clock that each decision is timed by."""

    def __init__(self, nodes: int, tasks: int) -> None:
        self.mirror = Mirror()
        self.tasks = tasks
        self.random = random.Random(1)
        for number in range(nodes):
            spec = {"cpu": 32_000, "memory": 64 * GIB}
            labels = {"zone": f"z{number % ZONES}", "disk": "ssd" if number % 2 else "hdd"}
            add_node(self.mirror, f"n{number}", spec, labels=labels)
        self.seating = Placer(self.mirror)
        self.jobs = 0
        self.asks: list[tuple[float, int]] = []  # seconds, tasks decided
        self.rescans: list[float] = []
        self.began_cpu = time.process_time()
        self.cpu_seconds: float | None = None  # of all decisions; asking for each would cost more than it

    def begin(self) -> None:
        """What came before was making ready."""
        self.began_cpu = time.process_time()

    def end(self) -> None:
        if self.cpu_seconds is None:
            self.cpu_seconds = time.process_time() - self.began_cpu

    @property
    def rate(self) -> float:
        """Tasks decided in a second."""
        return sum(count for _, count in self.asks) / sum(spent for spent, _ in self.asks)

    def job(self, **fields: Any) -> JobEntry:
        self.jobs += 1
        plain: dict[str, Any] = {"needs": {"cpu": 100, "memory": GIB // 8}, "count": self.tasks}
        add_job(self.mirror, records.job(self.jobs, **(plain | fields)))
        return self.mirror.jobs[JobId(str(self.jobs))]

    def seat(self, job: JobEntry, count: int = 1) -> list[Assignment]:
        began = time.perf_counter()
        seats = self.seating.place(job, count).assigned
        self.asks.append((time.perf_counter() - began, count))
        for seat in seats:
            node = self.mirror.node_table.ids[seat.slot]
            job.live_by_node[node] = job.live_by_node.get(node, 0) + 1
        return seats

    def rescan(self, job: JobEntry) -> None:
        """The same decision, nothing known beforehand; taken back."""
        self.end()
        for _ in range(RESCANS):
            self.seating.rows = ScoreRows(self.seating.board)
            began = time.process_time()
            seats = self.seating.place(job, 1).assigned
            self.rescans.append(time.process_time() - began)
            self.seating.release(job, seats)


# ---- kinds of work


def basic(stage: Stage) -> None:
    _one_by_one(stage, stage.job())


def in_runs(stage: Stage) -> None:
    job = stage.job()
    for _ in range(0, stage.tasks, 1000):
        stage.seat(job, 1000)
    stage.rescan(job)


def packed(stage: Stage) -> None:
    _one_by_one(stage, stage.job(policy=Policy.PACK))


def topology_spread(stage: Stage) -> None:
    _one_by_one(stage, stage.job(spread=(SpreadTerm("zone", 5),)))


def topology_spread_at_once(stage: Stage) -> None:
    """As a job's tasks are placed: what its rules count is counted once."""
    job = stage.job(spread=(SpreadTerm("zone", 5),))
    stage.seat(job, stage.tasks)
    stage.rescan(job)


def affinity(stage: Stage) -> None:
    _one_by_one(stage, stage.job(labels={"app": "web"}, near=(AffinityTerm(WEB, "zone"),)))


def anti_affinity(stage: Stage) -> None:
    _one_by_one(stage, stage.job(labels={"app": "web"}, apart=(AffinityTerm(WEB),)))


def node_affinity(stage: Stage) -> None:
    _one_by_one(stage, stage.job(where=(Constraint("disk", Op.EQUAL, ("ssd",)),)))


def half_unschedulable(stage: Stage) -> None:
    fits, never = stage.job(), stage.job(needs={"cpu": 10**9})
    for _ in range(stage.tasks // 2):
        stage.seat(fits)
        stage.seat(never)
    stage.rescan(fits)


def small_gangs(stage: Stage) -> None:
    _gangs(stage, stage.tasks // 3, 3)


def large_gangs(stage: Stage) -> None:
    _gangs(stage, 9, stage.tasks // 9)


def mixed_with_churn(stage: Stage) -> None:
    """Forty shapes of all kinds, each time another; a quarter of what is placed is released again."""
    jobs = [stage.job(**_mixed(number)) for number in range(40)]
    placed: list[tuple[JobEntry, Assignment]] = []
    for _ in range(stage.tasks):
        job = stage.random.choice(jobs)
        placed += [(job, seat) for seat in stage.seat(job)]
        if placed and stage.random.random() < 0.25:
            _release(stage, *placed.pop(stage.random.randrange(len(placed))))
    stage.rescan(jobs[0])


def shuffled(stage: Stage) -> None:
    jobs = [stage.job(needs={"cpu": 100 + number, "memory": GIB // 8}) for number in range(64)]
    for _ in range(stage.tasks):
        stage.seat(stage.random.choice(jobs))
    stage.rescan(jobs[0])


def preemption(stage: Stage) -> None:
    """Each node is full of four; who comes needs the room of three of them."""
    _fill(stage)
    job = stage.job(needs={"cpu": 23_000}, priority=90)
    barred = stage.seating.rows.eligible(job.spec.shape) & False
    stage.begin()
    for _ in range(min(stage.tasks, stage.mirror.node_table.size)):
        began = time.perf_counter()
        found = find_victims(stage.mirror, stage.seating, job, barred, frozenset())
        stage.asks.append((time.perf_counter() - began, 1))
        assert found is not None
        assert len(found.victims) == 3
        barred[found.slot] = True
        stage.seating.board.allocate(job.spec.shape, found.slot)


def _one_by_one(stage: Stage, job: JobEntry) -> None:
    for _ in range(stage.tasks):
        stage.seat(job)
    stage.rescan(job)


def _gangs(stage: Stage, count: int, size: int) -> None:
    for _ in range(count):
        job = stage.job(count=size, gang=True)
        assert len(stage.seat(job, size)) in (0, size)
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


def _release(stage: Stage, job: JobEntry, seat: Assignment) -> None:
    node = stage.mirror.node_table.ids[seat.slot]
    stage.seating.release(job, [seat])
    job.live_by_node[node] -= 1
    if not job.live_by_node[node]:
        del job.live_by_node[node]


def _fill(stage: Stage) -> None:
    """Four running tasks on every node, written as a scheduler and the nodes would."""
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
    stage.seating.start_round(stage.mirror)


# ---- end to end


class Durable:
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

    async def begin(self) -> None:
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
        """Decide until nothing is due; each batch is on disk before the next is decided."""
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
    seconds: float
    cpu_seconds: float
    placed: int  # tasks


async def end_to_end(nodes: int, directory: Path, jobs: int, count: int) -> Spent:
    """So many jobs, a hundred at a time, onto an idle cluster."""
    durable = Durable(nodes, directory)
    await durable.begin()
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
    Case("basic", basic, 10_000, 680),
    Case("basic, a thousand at a time", in_runs, 50_000, 790),
    Case("packed", packed, 10_000),
    Case("topology spread, skew 5", topology_spread, 5_000, 460),
    Case("the same, at once", topology_spread_at_once, 5_000, 460),
    Case("affinity, zone", affinity, 5_000, 70),
    Case("anti-affinity, host", anti_affinity, 2_000, 180),
    Case("node affinity", node_affinity, 10_000, 540),
    Case("preemption, 3 of 4", preemption, 500, 570),
    Case("half unschedulable", half_unschedulable, 10_000, 590),
    Case("gangs of 3", small_gangs, 3_000),
    Case("gangs of a ninth", large_gangs, 9_000),
    Case("40 mixed, 25 % released", mixed_with_churn, 5_000, 710),
    Case("64 shapes shuffled", shuffled, 5_000),
)


def main() -> None:
    options = arguments()
    tune_interpreter()
    sizes = [100] if options.quick else [int(one) for one in options.nodes.split(",")]
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
    for nodes in [100] if options.quick else [int(one) for one in options.durable.split(",")]:
        for name, jobs, count in (("durable, jobs of 1", 5_000, 1), ("durable, jobs of 1,000", 50, 1_000)):
            work = (jobs // 50 if options.quick else jobs, count)
            spent = [durably(nodes, work, options.dir) for _ in range(options.repeat)]
            print(durable_row(name, nodes, sorted(spent)[len(spent) // 2]), flush=True)


def measure(case: Case, nodes: int, quick: bool) -> Stage:
    stage = Stage(nodes, max(18, case.tasks // 100) if quick else case.tasks)
    case.work(stage)
    stage.end()
    return stage


def show(case: Case, nodes: int, stage: Stage) -> str:
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
    parser.add_argument("--repeat", type=int, default=3, help="how often each row is measured")
    parser.add_argument("--dir", help="where the stores of the durable rows are made; /var/tmp if not given")
    parser.add_argument("--quick", action="store_true", help="a hundred nodes and little work: does it run?")
    return parser.parse_args()


if __name__ == "__main__":
    main()
