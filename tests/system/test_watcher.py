"""`rota watcher` holds the connections of agents: their tasks are not affected when it dies or hangs."""

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import is_stopped, until
from tests.faults.links import NodeLinks
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
PATIENCE_SECONDS = 120


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two watchers, and two nodes that are connected to the first."""
    with LocalCluster(tmp_path / "cluster", nodes=0, settings={"ROTA_LOST_SECONDS": "30"}) as running:
        first = running.start_watcher(1)
        with_nodes(running, f"{first},{running.start_watcher(2)}", first)
        yield running


def with_nodes(cluster: LocalCluster, addresses: str, first: str) -> None:
    """Two nodes that know these watchers, and are connected to the first."""
    for number in (1, 2):
        cluster.start_agent(number, ROTA_SERVER_ADDR=addresses)
    cluster.wait_for_nodes()
    until(lambda: all(connected(cluster, number, first) for number in (1, 2)), "both are at the first")


def connected(cluster: LocalCluster, number: int, address: str) -> bool:
    """Whether the agent of that node has a connection to that address."""
    port = int(address.rpartition(":")[2])
    open_now = psutil.Process(cluster.agent_pid(number)).net_connections()
    return any(
        connection.raddr[-1:] == (port,) and connection.status == psutil.CONN_ESTABLISHED
        for connection in open_now
    )


@contextmanager
def stopped(cluster: LocalCluster, watcher: int) -> Iterator[None]:
    process = cluster.watchers[watcher]
    process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: is_stopped(process.pid), "it has stopped")
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def kinds(cluster: LocalCluster) -> set[str]:
    return {event["kind"] for event in cluster.call("GET", "/v1/events?since=0.0&limit=1000").body["events"]}


class Work:
    """Four tasks that run until the gate opens, and then write a line."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        self._witness, self._gate = Witness(directory / "witness"), Gate(directory / "gate")
        self._job = cluster.submit(*self._witness.script(f"{self._gate.wait}; echo done"), count=4)
        self._witness.wait_for(4)

    def runs(self) -> bool:
        found = self._cluster.call("GET", f"/v1/jobs/{self._job}")
        return found.status == 200 and found.body["counts"]["running"] == 4

    def check(self) -> None:
        """They end once, with their output, and no node was lost."""
        self._gate.open()
        until(lambda: self._cluster.count(self._job, "succeeded") == 4, "all have ended", PATIENCE_SECONDS)
        output = self._cluster.rota("logs", self._job)

        assert self._witness.starts() == dict.fromkeys(range(4), 1)
        assert output.out.count("done") == 4
        assert kinds(self._cluster).isdisjoint({"node.lost", "task.retry"})


def runs_a_job(cluster: LocalCluster) -> bool:
    return cluster.rota("run", "-q", "--", "true").code == 0


def test_work_runs_through_a_watcher_with_its_output_and_its_result(cluster: LocalCluster) -> None:
    job = cluster.submit("sh", "-c", "echo $ROTA_INDEX", count=8)
    until(lambda: cluster.count(job, "succeeded") == 8, "all have ended", PATIENCE_SECONDS)
    written = cluster.rota("logs", job)
    failed = cluster.rota("run", "-q", "--", "sh", "-c", "echo out; exit 3")
    followed = cluster.start_rota("run", "-q", "--", "sh", "-c", "echo first; sleep 1; echo last")
    out, _ = followed.communicate(timeout=PATIENCE_SECONDS)
    listed = cluster.rota("watcher", "ls", "-o", "json")

    assert sorted(line[-1] for line in written.out.splitlines()) == [str(number) for number in range(8)]
    assert (failed.code, failed.out) == (3, "out\n")
    assert (followed.returncode, out) == (0, b"first\nlast\n")
    assert listed.out.count("watcher-") == 2


def test_a_killed_watcher_loses_no_node_and_no_task(cluster: LocalCluster, tmp_path: Path) -> None:
    work = Work(cluster, tmp_path)
    cluster.watchers[1].kill()
    cluster.watchers[1].wait()
    until(lambda: all(moved(cluster, number) for number in (1, 2)), "both have moved", PATIENCE_SECONDS)
    started = runs_a_job(cluster)
    cluster.start_watcher(1)

    assert started
    work.check()


def moved(cluster: LocalCluster, number: int) -> bool:
    """Whether the agent is connected to the second watcher, or to the server."""
    return any(
        connected(cluster, number, address) for address in (cluster.watcher_addresses[2], cluster.agent)
    )


def test_a_frozen_watcher_loses_no_node_and_no_task(cluster: LocalCluster, tmp_path: Path) -> None:
    work = Work(cluster, tmp_path)
    with stopped(cluster, 1):
        until(lambda: all(moved(cluster, number) for number in (1, 2)), "both have moved", PATIENCE_SECONDS)
        until(lambda: runs_a_job(cluster), "a job runs", PATIENCE_SECONDS)
    ready = {cluster.node(number)["state"] for number in (1, 2)}

    assert ready == {"ready"}
    work.check()


def test_a_watcher_cut_off_from_the_leader_ends_its_sessions(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "cluster", nodes=0) as cluster,
        closing(NodeLinks(cluster.agent, range(1, 2))) as lines,
    ):
        first = cluster.start_watcher(1, ROTA_SERVER_ADDR=lines.address(1))
        with_nodes(cluster, f"{first},{cluster.start_watcher(2)}", first)
        work = Work(cluster, tmp_path)
        lines.cut(1)
        until(lambda: all(moved(cluster, number) for number in (1, 2)), "both have moved", PATIENCE_SECONDS)
        until(lambda: runs_a_job(cluster), "a job runs", PATIENCE_SECONDS)
        attached = cluster.watcher_log(1).count('"attached"')
        lines.heal(1)
        until(lambda: cluster.watcher_log(1).count('"attached"') > attached, "it is back", PATIENCE_SECONDS)

        work.check()


def test_an_agent_cut_off_from_its_watcher_moves_and_its_new_session_counts(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", nodes=0) as cluster:
        first, second = cluster.start_watcher(1), cluster.start_watcher(2)
        with closing(NodeLinks(first, range(1, 2))) as lines:
            with_nodes(cluster, f"{lines.address(1)},{second}", lines.address(1))
            work = Work(cluster, tmp_path)
            lines.cut(1)
            until(
                lambda: all(moved(cluster, number) for number in (1, 2)), "both have moved", PATIENCE_SECONDS
            )
            until(lambda: runs_a_job(cluster), "a job runs", PATIENCE_SECONDS)
            lines.heal(1)  # the first watcher delivers delayed messages
            until(lambda: runs_a_job(cluster), "a job runs", PATIENCE_SECONDS)

            work.check()


def test_a_restarted_server_is_reached_again_through_its_watchers(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    work = Work(cluster, tmp_path)
    cluster.kill_server()
    cluster.start_server()
    until(lambda: runs_a_job(cluster), "a job runs", PATIENCE_SECONDS)

    work.check()


def test_jobs_are_adopted_through_a_watcher_by_a_server_with_a_store_in_memory(tmp_path: Path) -> None:
    settings = {"ROTA_LOST_SECONDS": "30", "ROTA_STORE": "memory"}
    with LocalCluster(tmp_path / "cluster", nodes=0, settings=settings) as cluster:
        watcher = cluster.start_watcher(1)
        with_nodes(cluster, watcher, watcher)
        work = Work(cluster, tmp_path)
        cluster.kill_server()

        cluster.start_server()
        cluster.wait_for_nodes()

        until(work.runs, "all its tasks are adopted", PATIENCE_SECONDS)
        work.check()


def test_a_removed_watcher_is_refused_and_its_agents_move(cluster: LocalCluster, tmp_path: Path) -> None:
    work = Work(cluster, tmp_path)
    removed = cluster.rota("watcher", "delete", "watcher-1")
    code = cluster.watchers[1].wait(PATIENCE_SECONDS)
    until(lambda: all(moved(cluster, number) for number in (1, 2)), "both have moved", PATIENCE_SECONDS)
    until(lambda: runs_a_job(cluster), "a job runs", PATIENCE_SECONDS)

    assert removed.code == 0
    assert (code, "is not known here" in cluster.watcher_log(1)) == (5, True)
    work.check()
