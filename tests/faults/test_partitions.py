"""A node out of reach, for less or more than its grace: by the work's own witness each run mode holds."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.testing import processes
from rota.testing.processes import until
from tests.faults.intervals import Intervals
from tests.faults.lines import CutCluster, Lines, Namespaces, can_make_namespaces
from tests.faults.sizes import MANY
from tests.faults.tally import Tally
from tests.machine import needs

pytestmark = [pytest.mark.system, pytest.mark.timeout(3400)]
TIMES = 50 if MANY else 2
LOST_SECONDS = 5
PATIENT_SECONDS = 11  # what was not delivered is sent again after some seconds: within this grace
DEAD_SECONDS = 60
ONE = {"run": "one_at_a_time", "lease": "3s", "lease_margin": "1s"}
can_hold = needs("own pid namespaces")


@pytest.fixture
def cut_cluster(tmp_path: Path, tally: Tally) -> Iterator[CutCluster]:
    """Two nodes, each on a line of its own, in network namespaces where that is allowed."""
    yield from _cluster(tmp_path, Namespaces if can_make_namespaces() else Lines, tally)


@pytest.fixture
def patient_cluster(tmp_path: Path, tally: Tally) -> Iterator[CutCluster]:
    """The same, whose nodes have time to come back."""
    kind = Namespaces if can_make_namespaces() else Lines
    yield from _cluster(tmp_path, kind, tally, PATIENT_SECONDS)


@pytest.fixture
def relayed_cluster(tmp_path: Path, tally: Tally) -> Iterator[CutCluster]:
    yield from _cluster(tmp_path, Lines, tally)


def _cluster(
    directory: Path, kind: type[Lines], tally: Tally, lost_seconds: int = LOST_SECONDS
) -> Iterator[CutCluster]:
    settings = {"ROTA_LOST_SECONDS": str(lost_seconds)}
    with CutCluster(directory / "cluster", nodes=2, settings=settings) as cluster:
        lines = kind(cluster.agent, cluster.numbers)
        try:
            cluster.tie(lines)
            cluster.tally = tally
            yield cluster
        finally:
            lines.close()


class Round:
    """One task that runs until it is canceled, and what it saw."""

    def __init__(self, cluster: CutCluster, directory: Path, **spec: str) -> None:
        directory.mkdir()
        self.cluster = cluster
        self._once = spec.get("run") == "at_most_once"
        self.intervals = Intervals(directory)
        self.job = cluster.submit(*self.intervals.command(), **{"grace": "1s"} | spec)
        until(self.intervals.ran, "it runs")
        # An at_least_once task may run before its accept reaches the server. A node cut off in between has an
        # unanswered offer, which moves to another node by design.
        until(lambda: cluster.count(self.job, "running") == 1, "the server knows that it runs")
        self.node = self.intervals.ran()[0].node

    @property
    def lines(self) -> Lines:
        assert self.cluster.lines is not None
        return self.cluster.lines

    def wait_for_next(self) -> None:
        until(lambda: len(self.intervals.ran()) > 1, "it is replaced", 60)

    def wait_for_state(self, state: str) -> None:
        until(lambda: self.cluster.node(self.node)["state"] == state, f"its node is {state}", 60)

    def wait_for_loss(self) -> None:
        until(lambda: self.cluster.count(self.job, "lost") == 1, "its fate is unknown", 60)

    def wait_for_more(self) -> None:
        """Whoever runs, runs on."""
        before = self.intervals.ran()[-1]
        until(lambda: self.intervals.ran()[-1].last > before.last, "it runs on")
        assert self.intervals.ran()[-1].attempt == before.attempt

    def wait_for_death(self, *attempts: int) -> None:
        until(lambda: not any(map(self.pids_of, attempts)), "who lost is dead", DEAD_SECONDS)

    def come_back(self) -> None:
        self.lines.mend(self.node)
        self.wait_for_state("ready")

    def note(self, tally: Tally) -> None:
        """What its own witness has seen, and what is said of it."""
        ran = self.intervals.ran()
        tally.overlaps += self.intervals.overlaps()
        tally.lost += self.cluster.count(self.job, "lost")
        tally.doubled += self.intervals.stale_writes() + (len(ran) - 1 if self._once else 0)

    def end(self) -> None:
        self.cluster.call("POST", f"/v1/jobs/{self.job}/kill")  # however long its grace is
        until(lambda: not self.cluster.work(), "nothing runs any more", 90)

    def pids(self) -> list[int]:
        ours = set(self.cluster.work())  # other clusters of this machine have a job of that number too
        return [pid for pid in processes.with_variable("ROTA_JOB_ID", self.job) if pid in ours]

    def pids_of(self, attempt: int) -> list[int]:
        mine = set(self.pids())
        return [pid for pid in processes.with_variable("ROTA_ATTEMPT", str(attempt)) if pid in mine]


def rounds(cluster: CutCluster, directory: Path, **spec: str) -> Iterator[Round]:
    for number in range(TIMES):
        one = Round(cluster, directory / str(number), **spec)
        cluster.tally.repetitions += 1
        yield one
        one.note(cluster.tally)
        one.end()
        cluster.wait_for_nodes()


# ---- less than the grace


@pytest.mark.parametrize(
    "run", ["at_least_once", "at_most_once", pytest.param("one_at_a_time", marks=can_hold)]
)
def test_a_node_that_is_back_in_time_costs_nothing(
    patient_cluster: CutCluster, tmp_path: Path, run: str
) -> None:
    for one in rounds(patient_cluster, tmp_path, run=run):
        one.lines.cut(one.node)
        one.wait_for_state("suspect")
        one.come_back()

        one.wait_for_more()
        assert [ran.attempt for ran in one.intervals.ran()] == [1]


# ---- more than the grace


def test_of_two_attempts_at_least_once_the_newer_survives(cut_cluster: CutCluster, tmp_path: Path) -> None:
    """Though it is deaf to SIGTERM and was promised half a minute."""
    for one in rounds(cut_cluster, tmp_path, run="at_least_once", grace="30s"):
        one.lines.cut(one.node)
        one.wait_for_next()
        one.come_back()

        one.wait_for_death(1)
        one.wait_for_more()
        assert [ran.attempt for ran in one.intervals.ran()] == [1, 2]


def test_at_most_once_is_lost_and_never_started_again(cut_cluster: CutCluster, tmp_path: Path) -> None:
    for one in rounds(cut_cluster, tmp_path, run="at_most_once"):
        one.lines.cut(one.node)
        one.wait_for_loss()
        one.come_back()

        one.wait_for_death(1)
        assert [ran.attempt for ran in one.intervals.ran()] == [1]


# ---- one at a time


def partitioned(one: Round) -> Callable[[], None]:
    one.lines.cut(one.node)
    return one.come_back


def agent_killed(one: Round) -> Callable[[], None]:
    one.lines.cut(one.node)
    one.cluster.kill_agent(one.node)

    def undo() -> None:
        one.cluster.start_agent(one.node)
        one.come_back()

    return undo


def keeper_killed(one: Round) -> Callable[[], None]:
    one.lines.cut(one.node)
    directory = one.cluster.node_directory(one.node)
    for pid in processes.with_argument(f"rota.keeper\0{directory}\0"):
        with contextlib.suppress(ProcessLookupError):  # it was about to become a task
            os.kill(pid, signal.SIGKILL)
    return one.come_back


def frozen(one: Round) -> Callable[[], None]:
    """Everything of the machine stands still, as when it is suspended."""
    directory = one.cluster.node_directory(one.node)
    with one.intervals.locked():  # who stands still with the lock would keep others from saying that they run
        pids = list(filter(_stop, processes.with_argument(f"{directory}\0") + one.pids()))
        until(lambda: all(map(processes.is_stopped, pids)), "everything stands still")

    def thaw() -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a keeper that wakes first has killed it
                os.kill(pid, signal.SIGCONT)
        one.wait_for_death(1)
        one.come_back()

    return thaw


def _stop(pid: int) -> bool:
    """False: it has ended meanwhile."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    return True


@can_hold
@pytest.mark.parametrize("harm", [partitioned, agent_killed, keeper_killed])
def test_one_at_a_time_never_overlaps(
    cut_cluster: CutCluster, tmp_path: Path, harm: Callable[[Round], Callable[[], None]]
) -> None:
    overlaps = [_overlaps(one, harm) for one in rounds(cut_cluster, tmp_path, **ONE)]

    print(f"{harm.__name__}: {len(overlaps)} times, {sum(overlaps)} overlaps")
    assert sum(overlaps) == 0


@can_hold
def test_one_at_a_time_never_overlaps_on_a_line_that_holds_everything_up(
    relayed_cluster: CutCluster, tmp_path: Path
) -> None:
    """What was held up arrives when the line is mended: old words, and old answers."""
    overlaps = [_overlaps(one, partitioned) for one in rounds(relayed_cluster, tmp_path, **ONE)]

    assert sum(overlaps) == 0


@can_hold
def test_a_machine_that_was_frozen_writes_nothing_where_attempts_are_checked(
    cut_cluster: CutCluster, tmp_path: Path
) -> None:
    stale = []
    for one in rounds(cut_cluster, tmp_path, **ONE):
        undo = frozen(one)
        one.wait_for_next()
        undo()
        stale.append(one.intervals.stale_writes())

    print(f"frozen: {len(stale)} times, {sum(stale)} stale writes")
    assert sum(stale) == 0


def _overlaps(one: Round, harm: Callable[[Round], Callable[[], None]]) -> int:
    undo = harm(one)
    one.wait_for_next()
    undo()
    one.wait_for_more()
    assert [ran.attempt for ran in one.intervals.ran()] == [1, 2]
    return one.intervals.overlaps()
