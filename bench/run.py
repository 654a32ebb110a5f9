"""Throughput and latency of one node with all cores, compared with the limit of the machine.

python bench/run.py [--tasks 5000] [--rounds 5] [--directory DIR]

Each round measures the floor (a C loop that spawns on every core), `xargs -P`, and Rota, one after the other,
so that the ratios are independent of other load. Every state change of Rota is durable in DIR. The latency of
a job is measured in idle moments of the machine, alternating with a message through the same hops without
decisions (hops.py); the difference is Rota's own.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hops import Chain

import rota
from rota.client import Cluster
from rota.testing.cluster import LocalCluster

HERE = Path(__file__).parent
TRUE = shutil.which("true") or "/bin/true"
CORES = len(os.sched_getaffinity(0))
FLOOR_SECONDS = 1.0
MEMORY = "/dev/shm"  # where latency jobs write their start time, apart from Rota's own files
LATENCY_JOBS = 100
QUIET_SECONDS = 3.0  # longest wait for an idle moment before each latency job
QUIET_WINDOW_SECONDS = 0.1
QUIET_SHARE = 0.85  # idle share of the CPU time of an idle moment
PEERS = "Ray 0.30, HyperQueue 0.28, Dask 0.20, Parsl 0.17, Celery 0.11; none has it on disk"
PEERS_LATENCY = "HyperQueue 4.0 / 4.8, Ray 4.0 / 5.4, Parsl 4.1 / 5.9, Dask 5.2 / 11.3 ms"


@dataclass
class Latencies:
    """One entry per job: time to the start of its process, and until the client knows of its end."""

    started_ms: list[float] = field(default_factory=list)
    known_ms: list[float] = field(default_factory=list)
    disturbed: int = 0

    def measure(self, run: Callable[[Path], object], note: Path) -> None:
        """Time one run of a program that writes its start time into `note`."""
        self.disturbed += not is_quiet_soon()
        began_ns = time.time_ns()
        run(note)
        self.known_ms.append((time.time_ns() - began_ns) / 1e6)
        self.started_ms.append((int(note.read_text()) - began_ns) / 1e6)


@dataclass
class RunFigures:
    """Measurements, one entry per round."""

    floor: list[float] = field(default_factory=list)
    xargs: list[float] = field(default_factory=list)
    rota: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    agent_us: list[float] = field(default_factory=list)
    keeper_us: list[float] = field(default_factory=list)
    jobs: Latencies = field(default_factory=Latencies)
    hops: Latencies = field(default_factory=Latencies)


def main() -> None:
    options = arguments()
    figures = RunFigures()
    with scratch(options.directory) as directory:
        floor, stamp = build("floor", directory), build("stamp", directory)
        local = LocalCluster(directory / "cluster", nodes=1, cpu=CORES)
        with local, connected(local) as cluster:
            cluster.submit(TRUE, count=200).wait()
            for number in range(options.rounds):
                measure(figures, cluster, local, floor, options.tasks)
                print(f"round {number + 1} of {options.rounds}: {round_line(figures)}", flush=True)
            with Chain(directory / "hops", stamp) as chain:
                latency(figures, cluster, chain, stamp)
    report(figures, options)


def measure(figures: RunFigures, cluster: Cluster, local: LocalCluster, floor: Path, tasks: int) -> None:
    before = run_floor(floor)
    figures.xargs.append(run_xargs(tasks))
    spent = cpu_seconds(local)
    began = time.perf_counter()
    status = cluster.submit(TRUE, count=tasks).wait()
    figures.rota.append(tasks / (time.perf_counter() - began))
    assert status.state == "succeeded", status
    for figure, earlier, later in zip(
        (figures.server_us, figures.agent_us, figures.keeper_us), spent, cpu_seconds(local), strict=True
    ):
        figure.append((later - earlier) / tasks * 1e6)
    figures.floor.append((before + run_floor(floor)) / 2)


def latency(figures: RunFigures, cluster: Cluster, chain: Chain, stamp: Path) -> None:
    """Measure one job at a time, alternating with one message through the hops alone."""
    with scratch(MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir()) as notes:
        for number in range(LATENCY_JOBS):
            figures.jobs.measure(lambda note: cluster.run(str(stamp), str(note)), notes / f"job-{number}")
            figures.hops.measure(chain.run, notes / f"hops-{number}")


def is_quiet_soon() -> bool:
    """Wait for an idle moment of the machine; return False if there was none."""
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        idle_before, all_before = cpu_ticks()
        time.sleep(QUIET_WINDOW_SECONDS)
        idle_after, all_after = cpu_ticks()
        if idle_after - idle_before >= QUIET_SHARE * (all_after - all_before):
            return True
    return False


def cpu_ticks() -> tuple[int, int]:
    """Ticks of all cores since boot: idle ones, and all."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    ticks = [int(field) for field in first.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def report(figures: RunFigures, options: argparse.Namespace) -> None:
    floor = statistics.median(figures.floor)
    print(f"\n{options.tasks:,} x {TRUE} on one node of {CORES} cpu, in {options.directory}")
    print(f"medians of {options.rounds} rounds:")
    print(f"  {'floor: C, posix_spawn on every core':<38} {floor:>6.0f}/s")
    show_rate(f"xargs -P{CORES}, no scheduler", figures.xargs, figures.floor)
    show_rate("Rota, every change on disk", figures.rota, figures.floor)
    print(f"  measured elsewhere: {PEERS}")
    spent = (figures.server_us, figures.agent_us, figures.keeper_us)
    server, agent, keeper = (statistics.median(times) for times in spent)
    print(f"  CPU per task: server {server:.0f} us, agent {agent:.0f} us, keeper {keeper:.0f} us,")
    print(f"                the spawned program and the spawning itself {CORES / floor * 1e6:.0f} us")
    show_latency(figures.jobs, figures.hops)


def show_latency(jobs: Latencies, hops: Latencies) -> None:
    moments = f"each in an idle moment of the machine, except {jobs.disturbed + hops.disturbed}"
    print(f"\none job at a time, medians of {LATENCY_JOBS}, {moments}:")
    medians = [
        (name, statistics.median(times.started_ms), statistics.median(times.known_ms))
        for name, times in (("Rota, every change on disk", jobs), ("its hops alone, no decisions", hops))
    ]
    for name, started, known in medians:
        print(f"  {name:<38} started after {started:.1f} ms, known to the client after {known:.1f} ms")
    (_, *rota_ms), (_, *hops_ms) = medians
    started, known = (ours / theirs for ours, theirs in zip(rota_ms, hops_ms, strict=True))
    print(f"  {'ratio':<38} {started:.1f} and {known:.1f}")
    print(f"  measured elsewhere: {PEERS_LATENCY}")


def show_rate(name: str, rates: list[float], floors: list[float]) -> None:
    ratios = [rate / floor for rate, floor in zip(rates, floors, strict=True)]
    share, low, high = statistics.median(ratios), min(ratios), max(ratios)
    print(
        f"  {name:<38} {statistics.median(rates):>6.0f}/s   {share:.2f} of the floor ({low:.2f}-{high:.2f})"
    )


def round_line(figures: RunFigures) -> str:
    return f"floor {figures.floor[-1]:.0f}/s, xargs {figures.xargs[-1]:.0f}/s, Rota {figures.rota[-1]:.0f}/s"


def run_floor(floor: Path) -> float:
    command = [str(floor), str(FLOOR_SECONDS), str(CORES), TRUE]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_xargs(tasks: int) -> float:
    numbers = "\n".join(map(str, range(tasks)))
    began = time.perf_counter()
    subprocess.run(["xargs", f"-P{CORES}", "-n1", TRUE], input=numbers, text=True, check=True)
    return tasks / (time.perf_counter() - began)


def cpu_seconds(local: LocalCluster) -> list[float]:
    """CPU time of server, agent and keeper, without their reaped children."""
    return [_cpu_of(pid) for pid in local.processes()]


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def build(name: str, directory: Path) -> Path:
    made = directory / name
    subprocess.run(["cc", "-O2", "-static", "-o", str(made), str(HERE / f"{name}.c")], check=True)
    return made


def connected(local: LocalCluster) -> Cluster:
    return rota.connect(f"http://{local.http}", token=local.token_file.read_text().strip())


@contextlib.contextmanager
def scratch(parent: str) -> Iterator[Path]:
    Path(parent).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rota-bench-", dir=parent) as made:
        yield Path(made)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default="/var/tmp", help="a directory on the disk to measure")
    return parser.parse_args()


if __name__ == "__main__":
    main()
