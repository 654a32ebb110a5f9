"""Cost of waiting jobs for other jobs: time from submit to finish of `true`, with and without waiting jobs.

python bench/crowd.py [--jobs 1000,10000,100000] [--kinds room,pause,held,shapes] [--runs 60] [--plot FILE]

Each row is one server and one agent on this machine whose store was filled beforehand. Runs on it alternate
with runs on a cluster without other jobs, so that both meet the same load; the ratio is one of medians.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rota.client.cluster import Cluster, connect
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.job import Counters, JobCluster, JobIntent, JobKind, JobSpec, JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.model.limits import JOBS_WAITING_MAX
from rota.model.plan import Record
from rota.model.task import TaskBlock
from rota.sim.workloads.plot import log_log
from rota.store import codec
from rota.store.protocol import Snapshot
from rota.store.sqlite import SqliteStore
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.testing.records import decided, job, placed, reported

NODE_CPUS = 4
SERVICE = 1  # the job that takes the resources for which the others wait
LARGE = {"cpu": 3000}  # does not fit beside the service; `true` does
NOW_MS = 1_000_000  # cluster time when the store was filled
BACKOFF_MS = 36_000_000
SPARE = 200  # below the limit of waiting jobs, for those that are measured
BATCH = 10  # runs on one cluster before the other one follows
GAP_SECONDS = 0.05  # between runs, since the report interval of 20 ms would hide smaller costs


class CrowdRow(NamedTuple):
    """Medians beside other jobs and on an empty cluster."""

    jobs: int
    beside_ms: float
    empty_ms: float

    @property
    def ratio(self) -> float:
        return self.beside_ms / self.empty_ms


def waiting(spec: JobSpec) -> Iterator[Record]:
    yield spec
    yield JobCluster(spec.id, "default")
    yield JobStatus(spec.id, JobState.ACTIVE)


def for_resources(number: int) -> Iterator[Record]:
    """A job that waits for resources that are not free."""
    return waiting(job(number, needs=LARGE))


def in_backoff(number: int) -> Iterator[Record]:
    """A job in retry backoff."""
    spec = job(number, needs={"cpu": 1000}, retries=1)
    yield from waiting(spec)
    yield placed(AttemptBlock.new(spec.id, 0, 1), [0], "gone")
    yield reported(StatusBlock.new(spec.id, 0, 1), [0], AttemptState.FAILED)
    yield decided(TaskBlock.new(spec.id, 0, 1), [0], wanted=1, not_before=NOW_MS + BACKOFF_MS)


def paused_by_user(number: int) -> Iterator[Record]:
    """A job that its user paused."""
    spec = job(number, needs={"cpu": 1000})
    yield spec
    yield JobCluster(spec.id, "default")
    yield JobIntent(spec.id, paused=True)
    yield JobStatus(spec.id, JobState.PAUSED)


def of_its_own_shape(number: int) -> Iterator[Record]:
    """A job that waits for resources, with a shape and a working directory of its own."""
    return waiting(job(number, needs={**LARGE, "memory": number << 12}, workdir=f"/tmp/{number}"))


KINDS: dict[str, Callable[[int], Iterator[Record]]] = {
    "room": for_resources,
    "pause": in_backoff,
    "held": paused_by_user,
    "shapes": of_its_own_shape,
}


def main() -> None:
    options = arguments()
    lines: dict[str, list[tuple[float, float]]] = {}
    print(f"{'others':>8} {'number':>8} {'beside them':>12} {'empty':>9} {'ratio':>6}")
    with tempfile.TemporaryDirectory(dir=options.dir) as name, ExitStack() as closing:
        empty = started(Path(name) / "empty", [], closing)
        for kind in options.kinds.split(","):
            for jobs in map(int, options.jobs.split(",")):
                row = measure(Path(name) / f"{kind}-{jobs}", kind, jobs, empty, options.runs)
                lines.setdefault(kind, []).append((row.jobs, row.ratio))
                figures = f"{row.beside_ms:>9.1f} ms {row.empty_ms:>6.1f} ms {row.ratio:>6.2f}"
                print(f"{kind:>8} {row.jobs:>8,} {figures}", flush=True)
    if options.plot:
        title = "submit-to-finish of `true` beside other jobs, as a multiple of an empty cluster"
        Path(options.plot).write_text(log_log(title, ("other jobs", "times as long"), lines))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="1000,10000,100000", help="numbers of other jobs")
    parser.add_argument("--kinds", default=",".join(KINDS), help="what the other jobs wait for")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--dir", help="where to write; default: a temporary directory")
    parser.add_argument("--plot", help="an SVG file to write")
    return parser.parse_args()


def measure(directory: Path, kind: str, jobs: int, empty: Cluster, runs: int) -> CrowdRow:
    count = min(jobs, JOBS_WAITING_MAX - SPARE)
    service = waiting(
        job(SERVICE, needs={"cpu": 2000}, kind=JobKind.SERVICE, priority=90, command=("sleep", "1000000"))
    )
    records = [*service, *(record for number in range(2, count + 2) for record in KINDS[kind](number))]
    with ExitStack() as closing:
        crowded = started(directory, records, closing)
        until(lambda: crowded.job(str(SERVICE)).status.counts.get("running"), "the service runs", 120)
        times: dict[str, list[float]] = {"crowded": [], "empty": []}
        for cluster in (crowded, empty):  # the first run is slow on any cluster
            timed(cluster)
        while len(times["empty"]) < runs:
            times["crowded"] += [timed(crowded) for _ in range(BATCH)]
            times["empty"] += [timed(empty) for _ in range(BATCH)]
    return CrowdRow(jobs, statistics.median(times["crowded"]), statistics.median(times["empty"]))


def started(directory: Path, others: list[Record], closing: ExitStack) -> Cluster:
    """Start a server with these jobs and one agent, with a service on half of its cores."""
    (directory / "server").mkdir(parents=True, mode=0o700)
    service = job(
        SERVICE, needs={"cpu": 2000}, kind=JobKind.SERVICE, priority=90, command=("sleep", "1000000")
    )
    records = [Counters(len(others) + 1, 0), *waiting(service), *others]
    snapshot = Snapshot(
        len(records), 1, NOW_MS, {str(record.key): codec.encode(record) for record in records}
    )
    asyncio.run(fill(directory / "server", snapshot))
    running = closing.enter_context(LocalCluster(directory, nodes=1, cpu=NODE_CPUS))
    cluster = closing.enter_context(connect(f"http://{running.http}", token=running.token))
    until(lambda: cluster.job(str(SERVICE)).status.counts.get("running"), "the service runs", 120)
    return cluster


async def fill(directory: Path, snapshot: Snapshot) -> None:
    store = SqliteStore(directory)
    await store.load_snapshot(snapshot, [])
    await store.close()


def timed(cluster: Cluster) -> float:
    """Milliseconds from submit to finish."""
    time.sleep(GAP_SECONDS)
    began = time.monotonic()
    cluster.submit("true", cpu=1).wait(600)
    return (time.monotonic() - began) * 1000


if __name__ == "__main__":
    main()
