"""Services on a real cluster: kept alive by their nodes alone, checked, moved and ended."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rota.client.cluster import connect
from rota.client.views import Task
from rota.testing.cluster import LocalCluster, free_ports
from rota.testing.processes import until
from tests.system.witness_file import Witness

pytestmark = pytest.mark.system
OFTEN: dict[str, Any] = {"attempts": 1000, "within": "10m", "delay": "100ms", "delay_max": "200ms"}
QUICK: dict[str, Any] = {"interval": "100ms", "timeout": "2s", "after": "30s", "failures": 2}
SERVE = [os.path.realpath(sys.executable), "-m", "http.server", "--bind", "127.0.0.1"]


@pytest.fixture(scope="module")
def cluster(three: LocalCluster) -> LocalCluster:
    """One cluster for all tests; each test ends its services."""
    return three


def task(cluster: LocalCluster, job: str, index: int = 0) -> Task:
    with connect(f"http://{cluster.http}", token=cluster.token) as client:
        return client.job(job).task(index)


def job_of(cluster: LocalCluster, job: str) -> Any:
    return cluster.call("GET", f"/v1/jobs/{job}").body


def restarts(cluster: LocalCluster, job: str) -> int:
    counted: int = job_of(cluster, job)["restarts"]
    return counted


def health(cluster: LocalCluster, job: str) -> str | None:
    life = task(cluster, job).life
    return None if life is None else life.health


def end(cluster: LocalCluster, job: str) -> None:
    assert cluster.rota("cancel", job).code == 0
    until(lambda: job_of(cluster, job)["state"] == "canceled", "it is canceled")


def test_a_user_starts_sees_and_stops_a_service(cluster: LocalCluster) -> None:
    run = cluster.rota("run", "--service", "--count", "2", "--name", "web", "--", "sleep", "600")
    job = run.out.strip()
    until(lambda: cluster.count(job, "running") == 2, "both run")

    assert run.code == 0
    assert f"rota cancel {job}" in run.err
    assert "2 of 2 run." in cluster.rota("ls").out
    assert "2/2" in cluster.rota("ls").out
    assert "HEALTH" in cluster.rota("show", job).out
    assert cluster.rota("wait", job, "--timeout", "100ms").code == 124
    end(cluster, job)
    assert cluster.count(job, "canceled") == 2


def test_a_service_is_restarted_without_agent_and_server(cluster: LocalCluster, witness: Witness) -> None:
    job = cluster.submit(*witness.script("exit 3"), kind="service", restart=OFTEN, where=["number == 1"])
    until(lambda: witness.starts()[0] > 1, "it was started again")

    cluster.kill_agent(1)
    cluster.kill_server()
    before = witness.starts()[0]
    until(lambda: witness.starts()[0] > before + 3, "it is started again all the same")
    cluster.start_server()
    cluster.start_agent(1)
    cluster.wait_for_nodes()
    counted = witness.starts()[0]
    until(lambda: restarts(cluster, job) >= counted, "all of it is told")

    assert {(seen.attempt, seen.node) for seen in witness.seen()} == {(1, "node-1")}
    life = task(cluster, job).life
    assert life is not None
    assert life.exit_code == 3
    end(cluster, job)


def test_a_service_that_keeps_failing_is_started_on_another_node(
    cluster: LocalCluster, witness: Witness
) -> None:
    restart = {"attempts": 1, "delay": "100ms", "delay_max": "100ms"}
    job = cluster.submit(*witness.script("exit 1"), kind="service", restart=restart)
    until(lambda: 2 in {seen.attempt for seen in witness.seen()}, "a second attempt")  # soon a third

    first, second = ({seen.node for seen in witness.seen() if seen.attempt == attempt} for attempt in (1, 2))
    assert first.isdisjoint(second)
    assert [seen.attempt for seen in witness.seen()].count(1) == 2
    # A process that exits immediately may be reported as ended only, so there may be more.
    until(lambda: "task.restarted" in cluster.rota("event", "ls", "-o", "json").out, "a restart is told")
    end(cluster, job)


@pytest.mark.parametrize("kind", ["command", "tcp", "http"])
def test_a_health_check_decides_health_and_its_failure_restarts_the_service(
    cluster: LocalCluster, tmp_path: Path, kind: str
) -> None:
    """A process that runs but does not serve is detected by its health check only."""
    (port,) = free_ports(1)
    checks: dict[str, dict[str, Any]] = {
        "command": {"command": ["sh", "-c", f"test ! -e {tmp_path}/sick"]},
        "tcp": {"tcp": port},
        "http": {"http": "/", "port": port},
    }
    script = f"{' '.join(SERVE)} {port} & wait $!; exec sleep 600"
    command = ["sh", "-c", f"[ -e {tmp_path}/sick ] && rm {tmp_path}/sick; {script}"]
    service = {"kind": "service", "restart": OFTEN, "stop_signal": "INT", "grace": "1s"}
    job = cluster.submit(*command, check=QUICK | checks[kind], **service)
    until(lambda: health(cluster, job) == "healthy", "it is healthy")
    until(lambda: "1 healthy" in cluster.rota("ls").out, "it is listed so")  # a busy machine may fail a check

    (tmp_path / "sick").touch()
    harm = {"command": 0, "tcp": signal.SIGKILL, "http": signal.SIGSTOP}
    os.kill(until(lambda: listening(port), "it serves")[0], harm[kind])

    until(lambda: restarts(cluster, job) >= 1, "it was restarted")
    until(lambda: health(cluster, job) == "healthy", "it is healthy again")
    assert task(cluster, job).attempt == 1
    end(cluster, job)


def test_services_of_a_drained_node_move(cluster: LocalCluster, witness: Witness) -> None:
    job = cluster.submit(*witness.script("exec sleep 600"), kind="service", grace="5s")
    until(lambda: cluster.count(job, "running") == 1, "it runs")
    node = witness.wait_for(1)[0].node

    assert cluster.rota("node", "drain", node).code == 0

    until(lambda: len(witness.seen()) == 2, "it was started again")
    assert witness.seen()[1].node != node
    number = int(node.rpartition("-")[2])
    until(lambda: cluster.node(number)["eligibility"] == "drained", "nothing is left there")
    end(cluster, job)
    assert cluster.rota("node", "open", node).code == 0


def listening(port: int) -> list[int]:
    """The process that serves on this port."""
    command_line = b"\0".join(part.encode() for part in [*SERVE, str(port)]) + b"\0"
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                found += [int(name)] if Path(f"/proc/{name}/cmdline").read_bytes() == command_line else []
            except OSError:
                continue
    return found


def test_a_killed_service_task_restarts_and_a_canceled_one_does_not(
    cluster: LocalCluster, witness: Witness
) -> None:
    """Killed immediately, though it ignores signals and has a grace of an hour."""
    script = witness.script("trap '' TERM; while :; do sleep 0.1; done")
    job = cluster.submit(*script, kind="service", count=2, grace="1h")
    until(lambda: cluster.count(job, "running") == 2, "both run")
    witness.wait_for(2)

    killed = cluster.rota("kill", job, "--task", "1")

    until(lambda: witness.starts()[1] == 2, "it was started again")
    until(lambda: cluster.count(job, "running") == 2, "both run again")
    assert killed.code == 0, killed.err
    assert "started again" in killed.err
    assert witness.starts() == {0: 1, 1: 2}
    assert task(cluster, job, 1).attempt == 2

    assert cluster.rota("cancel", job, "--task", "1").code == 0
    assert cluster.rota("kill", job).code == 0
    until(lambda: job_of(cluster, job)["state"] == "canceled", "it is canceled")
    assert witness.starts() == {0: 1, 1: 2}
