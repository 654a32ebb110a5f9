"""python -m rota.sim: one seed, many seeds, or a workload file, in virtual time."""

import argparse
import contextlib
import math
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rota.model.errors import Rejected
from rota.model.limits import CLUSTER_SECONDS_MAX
from rota.sim.memory_scenario import memory_store_seed
from rota.sim.replay import Replayed, ReplaySettings, replay
from rota.sim.report import batch_table, failure
from rota.sim.scenario import Finding, Scenario, run, scenario
from rota.sim.shrink import shrink
from rota.sim.workloads.figures import Figures, figures, ran_in_log, table, timeline
from rota.sim.workloads.model import HOUR_MS, Elastic, Workload
from rota.sim.workloads.plot import over_time, sizes_over_time
from rota.sim.workloads.sizes import SizedRun, busy_share, node_hours, sizes
from rota.sim.workloads.toml_file import is_log, read
from rota.sim.world.invariant import InvariantBroken

MOST_FAILURES = 5  # that are shrunk and described in full


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.workload:
            return _replay(options)
        if options.seeds is not None:
            return _many(options)
        return _run_one(options)
    except (Rejected, InvariantBroken, OSError) as error:
        print(f"rota.sim: {error}", file=sys.stderr)
        return 2 if isinstance(error, Rejected | OSError) else 1


def _run_one(options: argparse.Namespace) -> int:
    case = _kept(_drawn(options)(options.seed), options.faults_kept, options.jobs_kept)
    found = run(case)
    if options.trace:
        print("\n".join(found.trace))
    if found.broken is None:
        spent = f"{found.virtual_ms / 60_000:.0f} minutes in {found.steps:,} steps"
        work = f"{found.attempts:,} attempts, {len(case.faults)} faults"
        print(f"seed {options.seed} holds: {spent}, {work}, trace {found.digest}")
        return 0
    print(failure(found, shrink(found)))
    return 1


def _kept(case: Scenario, faults: list[int] | None, jobs: list[int] | None) -> Scenario:
    """Restrict a case to some of its faults and jobs, by index: a case that was shrunk before."""
    try:
        return case._replace(
            faults=case.faults if faults is None else [case.faults[at] for at in faults],
            arrivals=case.arrivals if jobs is None else [case.arrivals[at] for at in jobs],
        )
    except IndexError:
        most = f"{len(case.faults)} faults and {len(case.arrivals)} jobs"
        raise Rejected(f"seed {case.seed} has {most}, counted from 0") from None


def _many(options: argparse.Namespace) -> int:
    """Run many seeds; Ctrl-C ends the batch with what was found by then."""
    seeds, quietly = options.seeds, partial(_quietly, _drawn(options))
    counts: Counter[str] = Counter()
    broken: list[Finding] = []
    began = time.perf_counter()
    virtual_ms = done = 0
    with (
        multiprocessing.Pool(options.processes, _ignore_ctrl_c) as pool,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for found in pool.imap_unordered(quietly, seeds, chunksize=4):
            counts.update(found.counts)
            virtual_ms += found.virtual_ms
            done += 1
            if found.broken is not None:
                broken.append(found)
                print(f"seed {found.scenario.seed}: {found.broken}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{done:,} of {len(seeds):,}", end="", file=sys.stderr, flush=True)
    print(batch_table(counts, done))
    spent = f"{virtual_ms / 3_600_000:,.0f} hours of cluster time in {time.perf_counter() - began:,.0f} s"
    verdict = f"{len(broken)} violated an invariant" if broken else "every invariant held"
    print(f"{done:,} seeds, {spent}: {verdict}")
    for found in sorted(broken, key=lambda finding: finding.scenario.seed)[:MOST_FAILURES]:
        print(f"\n{failure(found, shrink(found))}")
    return 1 if broken else 0


def _ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _drawn(options: argparse.Namespace) -> Callable[[int], Scenario]:
    return memory_store_seed if options.memory else scenario


def _quietly(drawn: Callable[[int], Scenario], seed: int) -> Finding:
    """Run a seed without a trace; it is run again to describe a failure."""
    return run(drawn(seed), keep_trace=False)


def _replay(options: argparse.Namespace) -> int:
    workload = _workload(options)
    for left_out in workload.left_out:
        print(f"left out or changed: {left_out}", file=sys.stderr)
    if workload.cluster is not None:
        return _compare(options, workload, workload.cluster)
    done = replay(workload, _settings(options))
    order = "first come" if options.first_come else "Rota"
    print(f"{workload.name}: {workload.size:,} nodes, seed {options.seed}")
    print(table({order: figures(done.rows, workload.cpu_milli), **_log_itself(options)}), end="")
    _print_cost(done)
    if options.plot:
        drawn = over_time(workload.name, {order: timeline(done.rows, workload.cpu_milli)})
        _write(options.plot, drawn)
    return 0


def _log_itself(options: argparse.Namespace) -> dict[str, Figures]:
    """Figures that a log itself has for the same jobs, if the workload is one."""
    if not is_log(options.workload):
        return {}
    log = ran_in_log(options.workload)
    until_ms = log.rows[0].submitted_ms + options.hours * HOUR_MS if log.rows else 0
    return {"the log": figures([row for row in log.rows if row.submitted_ms < until_ms], log.cpu_milli)}


def _workload(options: argparse.Namespace) -> Workload:
    workload = read(options.workload)
    if options.node_cpus:
        workload = workload.split(options.node_cpus)
    if options.elastic is not None:
        least, most = options.elastic
        kinds = {str(group.capacity): group for group in workload.nodes}
        if len(kinds) > 1:
            raise Rejected(f"{options.workload} has {len(kinds)} kinds of nodes; an elastic cluster has one")
        kind = workload.nodes[0]
        workload = workload.on(Elastic(kind.capacity, most, least, labels=kind.labels))
    if workload.cluster is not None:
        given = {"make_seconds": options.make, "idle_seconds": options.idle}
        changed = {name: value for name, value in given.items() if value is not None}
        workload = workload.on(replace(workload.cluster, **changed))
    return workload.with_nodes(options.nodes) if options.nodes else workload


def _compare(options: argparse.Namespace, workload: Workload, elastic: Elastic) -> int:
    """Compare the elastic cluster with a fixed one of its maximum size."""
    settings = _settings(options)
    done = {
        "elastic": replay(workload, settings),
        "fixed": replay(workload._replace(cluster=None), settings),
    }
    runs = {name: SizedRun(result.rows, result.spans) for name, result in done.items()}
    cpu_milli = elastic.capacity["cpu"]
    most = [max(run.nodes) for run in sizes(runs, cpu_milli).values()]
    more = {
        "node hours": [f"{node_hours(run.spans):,.1f}" for run in runs.values()],
        "of these busy": [f"{busy_share(run, cpu_milli):.1%}" for run in runs.values()],
        "nodes, at the most": [f"{nodes:,.0f}" for nodes in most],
    }
    print(f"{workload.name}: {elastic.least:,} to {elastic.most:,} nodes, seed {options.seed}")
    print(
        table({name: figures(result.rows, workload.cpu_milli) for name, result in done.items()}, more), end=""
    )
    _print_cost(done["elastic"])
    if options.plot:
        _write(options.plot, sizes_over_time(workload.name, sizes(runs, cpu_milli)))
    return 0


def _print_cost(done: Replayed) -> None:
    spent = f"{done.virtual_ms / 3_600_000:,.1f} hours in {done.seconds:,.1f} s and {done.peak_mib:,.0f} MiB"
    rate = f"{len(done.rows) / done.seconds:,.0f} tasks a second"
    print(f"{spent}: {rate}, {done.steps:,} steps, trace {done.digest}")


def _write(path: str, drawn: str) -> None:
    Path(path).write_text(drawn, encoding="utf-8")
    print(f"plotted in {path}")


def _settings(options: argparse.Namespace) -> ReplaySettings:
    return ReplaySettings(options.seed, options.hours, options.faults, options.servers, options.first_come)


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").partition(": ")[2]
    parser = argparse.ArgumentParser(prog="python -m rota.sim", description=summary)
    add = parser.add_argument
    add("--seed", type=int, default=0, help="from which everything is drawn")
    add("--memory", action="store_true", help="with --seed or --seeds: a memory store whose server restarts")
    add("--trace", action="store_true", help="print the whole trace")
    add("--faults-kept", type=_numbers, metavar="N,N", help="with --seed: only these, by index; default: all")
    add("--jobs-kept", type=_numbers, metavar="N,N", help="with --seed: only these, by index; default: all")
    add("--seeds", type=_range, metavar="FIRST-LAST", help="run many seeds; LAST is not included")
    add("--processes", type=_whole_number, help="with --seeds; default: one per core")
    add("--workload", metavar="FILE", help="a .toml file, or a trace: .swf, or openb's .csv")
    add("--nodes", type=_whole_number, help="instead of the number in the workload")
    add(
        "--node-cpus",
        type=_whole_number,
        help="with a trace: cores per node; jobs that need more become gangs",
    )
    add("--elastic", type=_sizes, metavar="MIN-MAX", help="create and remove nodes as the work needs")
    add("--make", type=_seconds, metavar="SECONDS", help="until a requested node joins")
    add("--idle", type=_seconds, metavar="SECONDS", help="after which an idle node is removed")
    add("--servers", type=_whole_number, default=1, help="number of servers, which share one store")
    add("--hours", type=_hours, default=24.0, help="in which jobs arrive; all of them run to their end")
    add("--first-come", action="store_true", help="strict queue order, without backfill")
    add("--faults", action="store_true", help="inject faults during the workload")
    add("--plot", metavar="FILE.svg", help="draw utilisation, or sizes, and waiting tasks over time")
    return parser


def _whole_number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _sizes(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    if not (least.isdecimal() and most.isdecimal() and int(least) <= int(most) and int(most)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of sizes: write 0-100")
    return int(least), int(most)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= CLUSTER_SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from 0 to {CLUSTER_SECONDS_MAX}"
        )
    return seconds


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 < hours < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours above 0")
    return hours


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers: write 0,3,4") from None


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    try:
        seeds = range(int(first), int(last))
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of seeds: write 0-200")
    return seeds


if __name__ == "__main__":
    sys.exit(main())
