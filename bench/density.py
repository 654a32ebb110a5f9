"""GPU allocation of a filling cluster: Rota's density policy beside FGD, best fit and random choice.

python bench/density.py [--traces DIR] [--mix default,cpu250] [--seeds 10]

DIR holds openb's lists: openb_node_list_gpu_node.csv, and openb_pod_list_MIX.csv for each mix. Without it, a
synthetic cluster and mix are used. Arrivals are shuffled by the seed, then drawn from the list at random,
until they request 130 % of all GPUs. Each is placed or refused as it arrives, and none leaves. The result is
the share of all GPUs that is allocated when arrivals for 100 % and for 130 % of them have come. Rota and FGD
know the mix, not the order; "learns" is Rota as a server runs it, which knows only the last jobs. "published"
is what FGD's authors measured on openb's own lists.
"""

import argparse
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
from density_peers import PUBLISHED, at_random, best_fit, fgd, only
from density_traces import NODE_LIST, SYNTHETIC, Trace, mixes_in, read, synthetic

from rota.model.limits import DEMAND_JOBS, DEMAND_JOBS_STEP
from rota.scheduler.placement.density import GpuDemand, GpuNodes, GpuRequest, RankedNodes, rank
from rota.scheduler.placement.gpu_prices import DEVICE_MILLI

ARRIVED = (1.0, 1.3)
ONLINE = "learns"
FIRST_SEED = 100  # the weights of the policy were tuned on other seeds
POLICIES = ("Random", "BestFit", "FGD", "Rota", ONLINE)


class DensityRun(NamedTuple):
    traces: Path | None
    mix: str
    policy: str
    seed: int


Policy = Callable[[GpuRequest, GpuNodes], RankedNodes]


def main() -> None:
    options = arguments()
    mixes = mixes_of(options)
    print(f"allocated share of the GPUs, in %: mean of {options.seeds} seeds")
    head = ("mix", "policy", "at 100 %", "at 130 %", "over FGD", "each seed at 130 %", "published")
    print("{:<12} {:<8} {:>9} {:>9} {:>9} {:>19} {:>14}".format(*head))
    with ProcessPoolExecutor(max_workers=2) as pool:
        for mix in mixes:
            runs = [
                DensityRun(options.traces, mix, policy, FIRST_SEED + n)
                for policy in POLICIES
                for n in range(options.seeds)
            ]
            report(mix, runs, list(pool.map(allocated_share, runs)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="where openb's lists are")
    parser.add_argument("--mix", default="default", help="comma-separated names of pod lists, or all")
    parser.add_argument("--seeds", type=int, default=10)
    return parser.parse_args()


def mixes_of(options: argparse.Namespace) -> list[str]:
    if options.traces is None:
        print(SYNTHETIC)
        return ["synthetic"]
    found = mixes_in(options.traces)
    mixes = found if options.mix == "all" else options.mix.split(",")
    if missing := [mix for mix in mixes if mix not in found]:
        raise SystemExit(
            f"no list of mix {missing[0]} in {options.traces}; found: {', '.join(found) or 'none'}"
        )
    if not (options.traces / NODE_LIST).exists():
        raise SystemExit(f"no {NODE_LIST} in {options.traces}")
    return mixes


def report(mix: str, runs: list[DensityRun], shares: list[tuple[float, ...]]) -> None:
    by_policy: dict[str, list[tuple[float, ...]]] = {policy: [] for policy in POLICIES}
    for run, share in zip(runs, shares, strict=True):
        by_policy[run.policy].append(share)
    fgd = mean(last for *_, last in by_policy["FGD"])
    for policy, each in by_policy.items():
        first, last = (mean(column) for column in zip(*each, strict=True))
        over = f"{last - fgd:+.2f}" if policy != "FGD" else ""
        known = PUBLISHED.get(mix) if policy == "FGD" else None
        published = f"{known[0]:.2f} / {known[1]:.2f}" if known else ""
        lasts = [at[-1] for at in each]
        spread = f"{min(lasts):.2f} to {max(lasts):.2f}"
        print(
            f"{mix:<12} {policy:<8} {first:>9.2f} {last:>9.2f} {over:>9} {spread:>19} {published:>14}",
            flush=True,
        )


def allocated_share(run: DensityRun) -> tuple[float, ...]:
    """Percent of the GPUs that are allocated, at each of ARRIVED."""
    trace = synthetic() if run.traces is None else read(run.traces, run.mix)
    capacity = int(trace.nodes.devices.sum())
    marks = [round(share * capacity) for share in ARRIVED]
    rng = random.Random(run.seed)
    order = list(arrivals(trace, marks[-1], rng))
    cluster = GpuCluster(trace.nodes, policy_of(run, trace), rng if run.policy == "Random" else None)
    learner = Learner() if run.policy == ONLINE else None
    come, given = 0, 0
    shares: list[float] = []
    for request in order:
        come += request.gpu_milli
        if come > marks[len(shares)]:
            shares.append(100 * given / capacity)
        if learner and learner.learn(request):
            cluster.use_policy(partial(rank, learner.demand))
        given += request.gpu_milli * cluster.place(request)
    return (*shares, 100 * given / capacity)


def arrivals(trace: Trace, gpu_milli: int, rng: random.Random) -> Iterator[GpuRequest]:
    """Each request of the list once, then random ones, up to `gpu_milli` in total."""
    order = rng.sample(trace.asks, len(trace.asks))
    while True:
        for request in order:
            gpu_milli -= request.gpu_milli
            if gpu_milli < 0:
                return
            yield request
        order = rng.choices(trace.asks, k=len(trace.asks))


class ScoredNodes:
    """Scores of all nodes for one request, as of a position in the log of changes."""

    def __init__(self, ranked: RankedNodes, seen: int) -> None:
        self.score, self.device, self.seen = ranked.score, ranked.device, seen


class GpuCluster:
    """Nodes that fill up; a score depends on its node alone, so only changed nodes are scored again."""

    def __init__(self, nodes: GpuNodes, policy: Policy, ties: random.Random | None) -> None:
        self._nodes, self._policy, self._ties = nodes, policy, ties
        self._rows: dict[GpuRequest, ScoredNodes] = {}
        self._log: list[int] = []

    def use_policy(self, policy: Policy) -> None:
        self._policy = policy
        self._rows.clear()

    def place(self, request: GpuRequest) -> bool:
        """Place on the best node: the first of equals, or a random one."""
        row = self._row(request)
        node = int(row.score.argmax())
        if row.score[node] == -np.inf:
            return False
        if self._ties:
            node = int(self._ties.choice(np.flatnonzero(row.score == row.score[node])))
        self._allocate(request, node, int(row.device[node]))
        return True

    def _row(self, request: GpuRequest) -> ScoredNodes:
        row = self._rows.get(request)
        if row is None:
            row = self._rows[request] = ScoredNodes(self._policy(request, self._nodes), len(self._log))
        elif changed := sorted(set(self._log[row.seen :])):
            ranked = self._policy(request, only(self._nodes, np.array(changed)))
            row.score[changed], row.device[changed], row.seen = *ranked, len(self._log)
        return row

    def _allocate(self, request: GpuRequest, node: int, device: int) -> None:
        devices = self._nodes.devices[node]
        self._nodes.cpu_free[node] -= request.cpu_milli
        self._nodes.memory_free[node] -= request.memory
        if request.is_share:
            devices[device] -= request.gpu_milli
        else:
            devices[np.flatnonzero(devices == DEVICE_MILLI)[: request.gpu_milli // DEVICE_MILLI]] = 0
        if min(self._nodes.cpu_free[node], self._nodes.memory_free[node], *devices) < 0:
            raise AssertionError(f"node {node} is overcommitted")
        self._log.append(node)


class Learner:
    """Demand of the last jobs, recomputed every DEMAND_JOBS_STEP jobs, as the scheduler does."""

    def __init__(self) -> None:
        self.demand = GpuDemand.from_arrivals({})
        self._last: deque[GpuRequest] = deque(maxlen=DEMAND_JOBS)
        self._come = self._due = 0

    def learn(self, request: GpuRequest) -> bool:
        """Record an arrival; return whether the demand was recomputed."""
        self._come += 1
        self._last.append(request)
        if self._come < self._due:
            return False
        self._due = self._come + max(1, min(self._come, DEMAND_JOBS_STEP))
        self.demand = GpuDemand.from_arrivals(Counter(self._last))
        return True


def policy_of(run: DensityRun, trace: Trace) -> Policy:
    mix = Counter(trace.asks)
    match run.policy:
        case "Random":
            return partial(at_random, np.random.default_rng(run.seed))
        case "BestFit":
            return best_fit
        case "FGD":
            blind = Counter[GpuRequest]()  # FGD ignores memory
            for request, times in mix.items():
                blind[request._replace(memory=0)] += times
            return partial(fgd, GpuDemand.from_arrivals(blind))
        case _:
            return partial(rank, GpuDemand.from_arrivals(mix))


if __name__ == "__main__":
    main()
