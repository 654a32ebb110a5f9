"""Cost of the simulator by cluster size: the same number of tasks per node on ever more nodes.

python bench/scale.py [--nodes 100,316,1000,3162,10000] [--tasks 100] [--plot FILE.svg] [--elastic]

Each size runs in its own process, so that its memory can be measured. Every invariant is checked meanwhile.
With --elastic all jobs arrive at once at a cluster without nodes, which grows to that size and shrinks to 0.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from rota.sim.replay import Replayed, ReplaySettings, replay
from rota.sim.workloads.figures import figures, show_duration
from rota.sim.workloads.model import Elastic, LoadKind, NodeGroup
from rota.sim.workloads.plot import log_log
from rota.sim.workloads.toml_file import Workload, parse

CPUS = 16
ELASTIC_CPUS = 4  # so that few tasks need all nodes
TASKS_PER_JOB = 1_000


def main() -> None:
    options = arguments()
    if options.one:
        print(json.dumps(measure(options.one, options.tasks, elastic=options.elastic)))
        return
    rows = []
    print(
        f"{'nodes':>7} {'tasks':>10} {'seconds':>9} {'CPU s':>9} {'MiB':>7} {'tasks/s':>9}"
        f" {'CPU ms/task':>12} {'cluster time':>14} {'machines':>9}"
    )
    for nodes in map(int, options.nodes.split(",")):
        command = [sys.executable, __file__, "--one", str(nodes), "--tasks", str(options.tasks)]
        command += ["--elastic"] if options.elastic else []
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append(row)
        rate, cost_ms = row["tasks"] / row["seconds"], 1000 * row["cpu_seconds"] / row["tasks"]
        print(
            f"{nodes:>7,} {row['tasks']:>10,} {row['seconds']:>9.1f} {row['cpu_seconds']:>9.1f}"
            f" {row['mib']:>7.0f} {rate:>9,.0f} {cost_ms:>12.2f}"
            f" {show_duration(row['virtual_ms']):>14} {row['machines']:>9,}",
            flush=True,
        )
    if options.plot:
        draw(options.plot, rows, options.tasks)


def measure(nodes: int, tasks: int, *, elastic: bool) -> dict[str, float]:
    workload = work(nodes, tasks)
    if elastic:
        load = replace(
            workload.loads[0], kind=LoadKind.BURST, jobs=int(workload.loads[0].per_hour), per_hour=1.0
        )
        small = {**workload.nodes[0].capacity, "cpu": ELASTIC_CPUS * 1000}
        workload = workload._replace(loads=(load,)).on(Elastic(small, nodes))
    began = time.process_time()
    done: Replayed = replay(workload, ReplaySettings(seed=7, hours=1))
    shown = figures(done.rows, workload.cpu_milli)
    return {
        "nodes": nodes,
        "tasks": shown.tasks,
        "seconds": done.seconds,
        "cpu_seconds": time.process_time() - began,  # independent of other load
        "mib": done.peak_mib,
        "virtual_ms": done.virtual_ms,
        "machines": len(done.spans),
        "utilisation": shown.utilisation,
    }


def work(nodes: int, tasks: int) -> Workload:
    """Arrays of a thousand tasks that arrive over an hour and run for minutes, some far longer."""
    jobs = max(1, nodes * tasks // TASKS_PER_JOB)
    load = {
        "name": "array",
        "kind": "steady",
        "per_hour": jobs,
        "count": TASKS_PER_JOB,
        "run_seconds": {"median": 240, "p95": 900},
        "cpu": 1,
    }
    workload = parse({"nodes": [{"count": 1, "cpu": CPUS, "memory": "64g"}], "load": [load]}, "scale")
    group = workload.nodes[0]
    return workload._replace(nodes=(NodeGroup(nodes, group.capacity, group.labels),))


def draw(path: str, rows: list[dict[str, float]], tasks: int) -> None:
    title = f"Simulating {tasks} tasks a node to the end"
    lines = {
        "CPU seconds": [(row["nodes"], row["cpu_seconds"]) for row in rows],
        "MiB": [(row["nodes"], row["mib"]) for row in rows],
    }
    Path(path).write_text(log_log(title, ("nodes", "CPU seconds, MiB"), lines), encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", default="100,316,1000,3162,10000")
    parser.add_argument("--tasks", type=int, default=100, help="tasks per node")
    parser.add_argument("--plot", metavar="FILE.svg")
    parser.add_argument("--elastic", action="store_true", help="from 0 nodes and back to 0")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
