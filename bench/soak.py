"""Run a workload of the simulator on a real cluster of this machine, and check that every guarantee holds.

python bench/soak.py [--workload examples/workloads/ci.toml] [--minutes 10] [--nodes 5] [--speed 60] [--chaos]

Jobs arrive as in the file, 60 times as fast, and each task is a real process. At the end every acknowledged
job must exist once and must have ended as its behaviour demands, and nothing may be left over; otherwise
the benchmark exits with 1.
"""

import argparse
import contextlib
import itertools
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from soak_dev import SoakCluster
from soak_jobs import RealJob, real_job, scale_of

from rota.client.cluster import Cluster
from rota.client.errors import RotaError
from rota.model.errors import Rejected
from rota.sim.workloads.toml_file import Workload, read
from rota.testing.processes import until

WORKLOAD = Path(__file__).resolve().parents[1] / "examples" / "workloads" / "ci.toml"
TICK_SECONDS = 1.0
TICKS_PER_LINE = 10  # when stderr is not a terminal
SETTLE_SECONDS = 60.0  # for resources to be released; under chaos until the last outage is over
OUTAGE_SECONDS = 20.0  # the longest of `rota dev --chaos`
WARM_SHARE = 0.1  # of the run, after which the server is warm
MEMORY_BYTES = 48 * 2**20  # growth since it was warm: for the allocator,
MEMORY_BYTES_PER_TASK = 2048  # and for records of ended jobs
DESCRIPTORS = 16  # growth since it was warm: for reconnecting nodes and clients


@dataclass
class Soak:
    """Submitted jobs, and what was observed of them."""

    jobs: dict[str, RealJob] = field(default_factory=dict)
    refused: int = 0
    tasks: int = 0
    late_seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)  # by job
    states: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    held: list[str] = field(default_factory=list)  # jobs with tasks that chaos has brought into quarantine
    releases: int = 0
    memory_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class SoakFinding:
    """One checked guarantee."""

    what: str
    found: object
    holds: bool


def main() -> int:
    options = arguments()
    try:
        workload = read(options.workload)
    except Rejected as error:
        print(f"error: {error.code}: {error}", file=sys.stderr)
        return 2
    soak = Soak()
    try:
        with scratch(options.directory) as directory, SoakCluster(directory, options) as dev:
            findings = [*drive(dev, workload, options, soak), *check_end(dev, options)]
    except KeyboardInterrupt:
        print("\ninterrupted; everything is stopped and removed", file=sys.stderr)
        return 130
    return report(findings, options, soak)


@contextlib.contextmanager
def scratch(parent: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rota-soak-", dir=parent) as made:
        yield Path(made)


def drive(dev: SoakCluster, workload: Workload, options: argparse.Namespace, soak: Soak) -> list[SoakFinding]:
    with dev.connect() as cluster, dev.connect() as another, dev.connect() as third:
        since = str(cluster.server.status().revision)
        threading.Thread(target=lambda: count_events(another, since, soak), daemon=True).start()
        live = LiveStatus(soak, dev, third)
        submit_all(cluster, workload, options, soak, live)
        deadline = time.monotonic() + options.patience
        while len(soak.ends) < len(soak.jobs) and time.monotonic() < deadline:
            live.show_until(time.monotonic() + TICK_SECONDS)
        print(file=sys.stderr)
        return [*check_jobs(cluster, soak), *check_tasks(cluster, soak), *check_server(dev, soak)]


def submit_all(
    cluster: Cluster, workload: Workload, options: argparse.Namespace, soak: Soak, live: "LiveStatus"
) -> None:
    """Submit each job when it is due, and wait until the time is up."""
    outage_seconds = OUTAGE_SECONDS * options.chaos_pace if options.chaos else 0.0
    capacities = [node.capacity for node in cluster.nodes.list()]
    scale = scale_of(workload, capacities, options.speed, outage_seconds)
    rng, began = random.Random(options.seed), time.monotonic()
    arrivals = workload.arrivals(random.Random(options.seed), options.minutes / 60 * options.speed)
    for number, arrival in enumerate(arrivals):
        due = began + arrival.at_ms / 1000 / options.speed
        live.show_until(due)
        job = real_job(arrival, number, scale, rng)
        try:
            submitted = cluster.submit_spec(job.spec)
        except RotaError as error:
            print(f"\njob {number} was refused: {error}", file=sys.stderr)
            soak.refused += 1
            continue
        soak.jobs[submitted.id] = job
        soak.tasks += job.spec.get("count", 1)
        soak.late_seconds = max(soak.late_seconds, time.monotonic() - due)
    live.show_until(began + 60 * options.minutes)


def count_events(cluster: Cluster, since: str, soak: Soak) -> None:
    with contextlib.suppress(RotaError, OSError, ValueError):  # the cluster ends before this watch
        for event in cluster.watch(since):
            if event.kind == "job.ended" and event.job is not None:
                soak.ends[event.job] += 1
                soak.states[str(event.raw["state"])] += 1
            if event.kind == "task.held" and event.job is not None:
                soak.held.append(event.job)
            if event.kind == "task.retry":
                soak.restarts += sum(last - first + 1 for first, last in event.indices or ())


class LiveStatus:
    """A status line: updated in place on a terminal, printed now and then elsewhere."""

    def __init__(self, soak: Soak, dev: SoakCluster, cluster: Cluster) -> None:
        self._soak = soak
        self._dev = dev
        self._cluster = cluster
        self._ticks = itertools.count()
        self._next_at = 0.0

    def show_until(self, moment: float) -> None:
        while (now := time.monotonic()) < moment:
            if now >= self._next_at:
                self._next_at = now + TICK_SECONDS
                self._tick()
            time.sleep(max(0.0, min(moment, self._next_at) - time.monotonic()))

    def _tick(self) -> None:
        self._soak.memory_bytes.append(self._dev.memory_bytes())
        self._soak.descriptors.append(self._dev.descriptors())
        while self._soak.held:  # as an operator would who knows of the chaos
            with contextlib.suppress(RotaError):  # it has ended
                self._cluster.job(self._soak.held.pop()).release()
                self._soak.releases += 1
        tick = next(self._ticks)
        if sys.stderr.isatty():
            print(f"\r{self._line():<110}", end="", file=sys.stderr, flush=True)
        elif tick % TICKS_PER_LINE == 0:
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        soak, running = self._soak, sum(node.running for node in self._cluster.nodes.list())
        done = soak.states["succeeded"]
        return (
            f"jobs {len(soak.jobs):,} in, {done:,} done, {soak.states.total() - done:,} failed   "
            f"tasks {running:,} running, {soak.restarts:,} restarts   "
            f"server {mebibytes(soak.memory_bytes[-1])}, {soak.descriptors[-1]} descriptors"
        )


# ---- guarantees


def check_jobs(cluster: Cluster, soak: Soak) -> Iterator[SoakFinding]:
    existing = Counter(status.name for status in cluster.jobs())
    expected = Counter(job.spec["name"] for job in soak.jobs.values())
    reported = sum(soak.ends[job] == 1 for job in soak.jobs)
    yield SoakFinding("jobs refused", soak.refused, soak.refused == 0)
    yield SoakFinding("acknowledged jobs that exist once", existing.total(), existing == expected)
    yield SoakFinding(
        "ends of jobs reported, each once", reported, reported == len(soak.jobs) == soak.ends.total()
    )


def check_tasks(cluster: Cluster, soak: Soak) -> Iterator[SoakFinding]:
    wrong: list[str] = []
    counted = 0
    for job_id, job in soak.jobs.items():
        for task in cluster.job(job_id).tasks():
            counted += 1
            if not job.may_end(task.index, task.state):
                wrong.append(f"{job_id}.{task.index} {task.state}")
    yield SoakFinding("tasks that exist", counted, counted == soak.tasks)
    yield SoakFinding("tasks with a wrong end", ", ".join(wrong[:5]) or 0, not wrong)


def check_server(dev: SoakCluster, soak: Soak) -> Iterator[SoakFinding]:
    """Compare memory and descriptors with those of the warm server."""
    warm = slice(0, max(1, round(WARM_SHARE * len(soak.memory_bytes))))
    before, most = max(soak.memory_bytes[warm]), max(soak.memory_bytes)
    limit = before + MEMORY_BYTES + MEMORY_BYTES_PER_TASK * soak.tasks
    holds = holds_soon(lambda: dev.memory_bytes() <= limit)
    now = dev.memory_bytes()
    found = f"{mebibytes(before)} warm, {mebibytes(most)} at most, {mebibytes(now)} after"
    yield SoakFinding("server's memory", found, holds)
    before, most = max(soak.descriptors[warm]), max(soak.descriptors)
    holds = holds_soon(lambda: dev.descriptors() <= before + DESCRIPTORS)
    found = f"{before} warm, {most} at most, {dev.descriptors()} after"
    yield SoakFinding("server's descriptors", found, holds)


def check_end(dev: SoakCluster, options: argparse.Namespace) -> Iterator[SoakFinding]:
    holds = holds_soon(lambda: not dev.work())
    yield SoakFinding("processes of tasks that have ended", len(dev.work()), holds)
    code = dev.interrupt()
    yield SoakFinding("exit code after Ctrl-C", code, code == 0)
    yield SoakFinding("processes left then", len(dev.left()), not dev.left())
    if options.chaos:
        yield SoakFinding("acts of chaos", f"{dev.acts()}, seed {options.seed}", dev.acts() > 0)
        yield SoakFinding("agents that ended unexpectedly", dev.surprises(), dev.surprises() == 0)


def holds_soon(condition: Callable[[], bool]) -> bool:
    try:
        return until(condition, "the condition holds", SETTLE_SECONDS)
    except TimeoutError:
        return False


def report(findings: list[SoakFinding], options: argparse.Namespace, soak: Soak) -> int:
    name, chaos = Path(options.workload).name, ", with chaos" if options.chaos else ""
    print(f"{name}: {options.minutes:g} min, {options.speed:g} x, {options.nodes} nodes{chaos}")
    print(f"{len(soak.jobs):,} jobs, {soak.tasks:,} tasks, {soak.restarts:,} restarts,", end=" ")
    print(f"{soak.releases:,} times held and released; submitted at most {soak.late_seconds:.1f} s late")
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        found = f"{finding.found:,}" if isinstance(finding.found, int) else finding.found
        print(f"  {'ok    ' if finding.holds else 'BROKEN'}  {finding.what:<{width}}  {found}")
    return 0 if all(finding.holds for finding in findings) else 1


def mebibytes(amount: int) -> str:
    return f"{amount / 2**20:.0f} MiB"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default=str(WORKLOAD), help="a workload file of the simulator")
    parser.add_argument("--minutes", type=float, default=10.0, help="time in which jobs arrive")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument(
        "--speed", type=float, default=60.0, help="factor by which the workload is accelerated"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of jobs and of chaos")
    parser.add_argument("--chaos", action="store_true", help="kill, freeze and cut off nodes during the run")
    parser.add_argument("--chaos-pace", type=float, default=1.0, help="as for `rota dev`")
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds within which the last job must end"
    )
    parser.add_argument("--directory", default="/var/tmp", help="a directory on the disk to use")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
