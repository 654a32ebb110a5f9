"""Which failures are retried, by their cause, on real processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
LOST_SECONDS = 10
SOON: dict[str, Any] = {"delay": "10ms"}
EATS = "exec python3 -c 'a = bytearray(200 << 20); print(len(a))'"


def ended(cluster: LocalCluster, job: str) -> Any:
    """The end of the job's only task."""
    cluster.rota("wait", job)
    return cluster.call("GET", f"/v1/jobs/{job}/tasks/0").body


@pytest.mark.parametrize(
    ("script", "spec", "end"),
    [
        ("exit 75", {"retries": 2, "retry_on": [75]}, ("failed", 3)),
        ("exit 3", {"retries": 2, "retry_on": [75]}, ("failed", 1)),
        ("exit 3", {"retries": 2, "fail_on": [3]}, ("failed", 1)),
        ("kill -9 $$", {"retries": 1, "retry_on": ["signal"]}, ("failed", 2)),
        (EATS, {"retries": 1, "retry_on": ["oom"], "limits": {"memory": "32m"}}, ("failed", 2)),
        (EATS, {"retries": 1, "retry_on": ["signal"], "limits": {"memory": "32m"}}, ("failed", 1)),
        ("exec sleep 60", {"retries": 1, "retry_on": ["timeout"], "timeout": "300ms"}, ("timed_out", 2)),
        ("exec sleep 60", {"retries": 1, "timeout": "300ms"}, ("timed_out", 1)),
    ],
)
def test_a_failure_is_retried_depending_on_its_cause(
    shared: LocalCluster, witness: Witness, script: str, spec: dict[str, Any], end: tuple[str, int]
) -> None:
    job = shared.submit(*witness.script(script), retry=SOON, **spec)

    task = ended(shared, job)

    assert (task["state"], task["attempt"]) == end, task
    assert len(witness.seen()) == end[1] or "timeout" in spec, "one that is out of time may have said nothing"


def test_the_reason_why_a_failure_was_not_retried_is_shown(shared: LocalCluster) -> None:
    ran = shared.rota("run", "--retry", "3", "--fail-on", "2-4", "--", "sh", "-c", "exit 3")

    assert ran.code == 3
    assert "exit 3, and by its fail_on that is not tried again" in shared.rota("show", "last").out


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that are declared lost early."""
    with LocalCluster(tmp_path, settings={"ROTA_LOST_SECONDS": str(LOST_SECONDS)}) as running:
        yield running


def take_down_its_node(hasty: LocalCluster, witness: Witness, job: str, times: int) -> None:
    until(lambda: len(witness.seen()) == times, "it runs once more")
    until(lambda: hasty.count(job, "running") == 1, "and its node has said so")
    where = int(witness.seen()[-1].node.removeprefix("node-"))
    hasty.call("POST", f"/v1/nodes/node-{where}/cordon")  # the task must not be placed here again
    hasty.kill_node(where)
    until(lambda: hasty.node(where)["state"] == "lost", "its node is lost")
    hasty.start_agent(where)  # so that only one node is silent at a time
    until(lambda: hasty.node(where)["state"] == "ready", "its node is back")


def test_a_task_that_was_on_three_lost_nodes_is_held_until_released(
    hasty: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = hasty.submit(*witness.script(gate.wait))
    for times in (1, 2, 3):
        take_down_its_node(hasty, witness, job, times)

    until(lambda: hasty.count(job, "held") == 1, "it is held")
    assert "is held as suspect: 3 nodes went down while it ran on them" in hasty.rota("why", job).out
    assert f"rota job release {job}" in hasty.rota("show", job).out
    assert len(witness.seen()) == 3
    hasty.rota("node", "open", "node-1", "node-2", "node-3")
    released = hasty.rota("job", "release", job, "--task", "0")
    assert (released.code, "may start again" in released.err) == (0, True), released
    until(lambda: len(witness.seen()) == 4, "it runs again")
    gate.open()
    assert hasty.rota("wait", job).code == 0
    assert hasty.rota("job", "release", job).code == 1
