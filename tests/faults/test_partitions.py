"""A node out of reach for less or more than its grace: each run mode holds, as its tasks recorded."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.testing import processes
from rota.testing.processes import until
from tests.faults.intervals import Intervals
from tests.faults.links import CutCluster, NamespaceLinks, NodeLinks, can_make_namespaces
from tests.faults.sizes import MANY
from tests.faults.tally import Tally
from tests.machine import needs

pytestmark = [pytest.mark.system, pytest.mark.timeout(3400)]
TIMES = 50 if MANY else 2
LOST_SECONDS = 5
LONG_LOST_SECONDS = 11  # longer than the retransmission of undelivered data
DEAD_SECONDS = 60
ONE = {"run": "one_at_a_time", "lease": "3s", "lease_margin": "1s"}
can_hold = needs("own pid namespaces")


@pytest.fixture
def cut_cluster(tmp_path: Path, tally: Tally) -> Iterator[CutCluster]:
    """Two nodes, each on its own link, in network namespaces where that is allowed."""
    yield from _cluster(tmp_path, NamespaceLinks if can_make_namespaces() else NodeLinks, tally)


@pytest.fixture
def long_grace_cluster(tmp_path: Path, tally: Tally) -> Iterator[CutCluster]:
    """The same with a longer grace, so that nodes can return in time."""
    kind = NamespaceLinks if can_make_namespaces() else NodeLinks
    yield from _cluster(tmp_path, kind, tally, LONG_LOST_SECONDS)


@pytest.fixture
def relayed_cluster(tmp_path: Path, tally: Tally) -> Iterator[CutCluster]:
    yield from _cluster(tmp_path, NodeLinks, tally)


def _cluster(
    directory: Path, kind: type[NodeLinks], tally: Tally, lost_seconds: int = LOST_SECONDS
) -> Iterator[CutCluster]:
    settings = {"ROTA_LOST_SECONDS": str(lost_seconds)}
    with CutCluster(directory / "cluster", nodes=2, settings=settings) as cluster:
        links = kind(cluster.agent, cluster.numbers)
        try:
            cluster.tie(links)
            cluster.tally = tally
            yield cluster
        finally:
            links.close()


class PartitionRound:
    """One task that runs until it is canceled, and what it recorded."""

    def __init__(self, cluster: CutCluster, directory: Path, **spec: str) -> None:
        directory.mkdir()
        self.cluster = cluster
        self._once = spec.get("run") == "at_most_once"
        self.intervals = Intervals(directory)
        self.job = cluster.submit(*self.intervals.command(), **{"grace": "1s"} | spec)
        until(self.intervals.ran, "the task runs")
        # Race: an at_least_once task may run before its accept reaches the server. If the node is cut off in
        # between, the offer is unanswered and moves to another node by design.
        until(lambda: cluster.count(self.job, "running") == 1, "the server knows that it runs")
        self.node = self.intervals.ran()[0].node

    @property
    def links(self) -> NodeLinks:
        assert self.cluster.links is not None
        return self.cluster.links

    def wait_for_next(self) -> None:
        until(lambda: len(self.intervals.ran()) > 1, "the attempt is replaced", 60)

    def wait_for_state(self, state: str) -> None:
        until(lambda: self.cluster.node(self.node)["state"] == state, f"its node is {state}", 60)

    def wait_for_loss(self) -> None:
        until(lambda: self.cluster.count(self.job, "lost") == 1, "the task is lost", 60)

    def wait_for_more(self) -> None:
        """Wait until the latest attempt has run further."""
        before = self.intervals.ran()[-1]
        until(lambda: self.intervals.ran()[-1].last > before.last, "it runs further")
        assert self.intervals.ran()[-1].attempt == before.attempt

    def wait_for_death(self, *attempts: int) -> None:
        until(lambda: not any(map(self.pids_of, attempts)), "the older attempts are dead", DEAD_SECONDS)

    def reconnect(self) -> None:
        self.links.heal(self.node)
        self.wait_for_state("ready")

    def record(self, tally: Tally) -> None:
        """Add what the task recorded, and what the server reports."""
        ran = self.intervals.ran()
        tally.overlaps += self.intervals.overlaps()
        tally.lost += self.cluster.count(self.job, "lost")
        tally.doubled += self.intervals.stale_writes() + (len(ran) - 1 if self._once else 0)

    def end(self) -> None:
        self.cluster.call("POST", f"/v1/jobs/{self.job}/kill")  # regardless of its grace
        until(lambda: not self.cluster.work(), "no process is left", 90)

    def pids(self) -> list[int]:
        ours = set(self.cluster.work())  # other clusters on this machine may have a job of that number
        return [pid for pid in processes.with_variable("ROTA_JOB_ID", self.job) if pid in ours]

    def pids_of(self, attempt: int) -> list[int]:
        mine = set(self.pids())
        return [pid for pid in processes.with_variable("ROTA_ATTEMPT", str(attempt)) if pid in mine]


def rounds(cluster: CutCluster, directory: Path, **spec: str) -> Iterator[PartitionRound]:
    for number in range(TIMES):
        case = PartitionRound(cluster, directory / str(number), **spec)
        cluster.tally.repetitions += 1
        yield case
        case.record(cluster.tally)
        case.end()
        cluster.wait_for_nodes()


# ---- less than the grace


@pytest.mark.parametrize(
    "run", ["at_least_once", "at_most_once", pytest.param("one_at_a_time", marks=can_hold)]
)
def test_a_node_that_returns_in_time_costs_nothing(
    long_grace_cluster: CutCluster, tmp_path: Path, run: str
) -> None:
    for case in rounds(long_grace_cluster, tmp_path, run=run):
        case.links.cut(case.node)
        case.wait_for_state("suspect")
        case.reconnect()

        case.wait_for_more()
        assert [ran.attempt for ran in case.intervals.ran()] == [1]


# ---- more than the grace


def test_of_two_at_least_once_attempts_the_newer_survives(cut_cluster: CutCluster, tmp_path: Path) -> None:
    """The older case ignores SIGTERM and has a grace of half a minute."""
    for case in rounds(cut_cluster, tmp_path, run="at_least_once", grace="30s"):
        case.links.cut(case.node)
        case.wait_for_next()
        case.reconnect()

        case.wait_for_death(1)
        case.wait_for_more()
        assert [ran.attempt for ran in case.intervals.ran()] == [1, 2]


def test_an_at_most_once_task_is_lost_and_never_restarted(cut_cluster: CutCluster, tmp_path: Path) -> None:
    for case in rounds(cut_cluster, tmp_path, run="at_most_once"):
        case.links.cut(case.node)
        case.wait_for_loss()
        case.reconnect()

        case.wait_for_death(1)
        assert [ran.attempt for ran in case.intervals.ran()] == [1]


# ---- case at a time


def partitioned(case: PartitionRound) -> Callable[[], None]:
    case.links.cut(case.node)
    return case.reconnect


def agent_killed(case: PartitionRound) -> Callable[[], None]:
    case.links.cut(case.node)
    case.cluster.kill_agent(case.node)

    def undo() -> None:
        case.cluster.start_agent(case.node)
        case.reconnect()

    return undo


def keeper_killed(case: PartitionRound) -> Callable[[], None]:
    case.links.cut(case.node)
    directory = case.cluster.node_directory(case.node)
    for pid in processes.with_argument(f"rota.keeper\0{directory}\0"):
        with contextlib.suppress(ProcessLookupError):  # it was about to become a task
            os.kill(pid, signal.SIGKILL)
    return case.reconnect


def frozen(case: PartitionRound) -> Callable[[], None]:
    """Stop all processes of the machine, as when it is suspended."""
    directory = case.cluster.node_directory(case.node)
    with case.intervals.locked():  # deadlock: a stopped process with the lock would block the others
        pids = list(filter(_stop, processes.with_argument(f"{directory}\0") + case.pids()))
        until(lambda: all(map(processes.is_stopped, pids)), "every process is stopped")

    def resume() -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a keeper that resumed first has killed it
                os.kill(pid, signal.SIGCONT)
        case.wait_for_death(1)
        case.reconnect()

    return resume


def _stop(pid: int) -> bool:
    """Stop a process; False if it has ended."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    return True


@can_hold
@pytest.mark.parametrize("harm", [partitioned, agent_killed, keeper_killed])
def test_one_at_a_time_never_overlaps(
    cut_cluster: CutCluster, tmp_path: Path, harm: Callable[[PartitionRound], Callable[[], None]]
) -> None:
    overlaps = [_overlaps(case, harm) for case in rounds(cut_cluster, tmp_path, **ONE)]

    print(f"{harm.__name__}: {len(overlaps)} times, {sum(overlaps)} overlaps")
    assert sum(overlaps) == 0


@can_hold
def test_one_at_a_time_never_overlaps_on_a_link_that_delays_everything(
    relayed_cluster: CutCluster, tmp_path: Path
) -> None:
    """Held-back messages, old reports and old orders, arrive when the link is healed."""
    overlaps = [_overlaps(case, partitioned) for case in rounds(relayed_cluster, tmp_path, **ONE)]

    assert sum(overlaps) == 0


@can_hold
def test_a_frozen_machine_writes_nothing_to_a_fenced_store(cut_cluster: CutCluster, tmp_path: Path) -> None:
    stale = []
    for case in rounds(cut_cluster, tmp_path, **ONE):
        undo = frozen(case)
        case.wait_for_next()
        undo()
        stale.append(case.intervals.stale_writes())

    print(f"frozen: {len(stale)} times, {sum(stale)} stale writes")
    assert sum(stale) == 0


def _overlaps(case: PartitionRound, harm: Callable[[PartitionRound], Callable[[], None]]) -> int:
    undo = harm(case)
    case.wait_for_next()
    undo()
    case.wait_for_more()
    assert [ran.attempt for ran in case.intervals.ran()] == [1, 2]
    return case.intervals.overlaps()
