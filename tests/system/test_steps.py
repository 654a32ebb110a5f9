"""CI actions of five steps, some of which fail: one terminal status each, an exit code for each step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.client.cluster import Cluster, connect
from rota.client.job import Job
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system
NAMES = ("check-out", "build", "test", "package", "clean-up")


@pytest.fixture(scope="module")
def client(shared: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{shared.http}", token=shared.token) as opened:
        yield opened


def action(*scripts: str) -> list[dict[str, Any]]:
    """Five steps; those not given succeed."""
    return [
        {"name": name, "command": ["sh", "-c", f"echo {name}; {script}"]}
        for name, script in zip(NAMES, [*scripts, *["true"] * (5 - len(scripts))], strict=True)
    ]


def submit(client: Cluster, steps: list[dict[str, Any]], **spec: Any) -> Job:
    return client.submit_spec({"name": "action", "steps": steps, **spec})


def ends(client: Cluster, job: Job) -> list[str | None]:
    """Every terminal status that was reported for its task and for the job."""
    events = client.events(limit=1000, job=job.id)
    return [event.raw["state"] for event in events if event.kind in ("task.ended", "job.ended")]


def codes(job: Job) -> list[int | None]:
    return [step.exit_code for step in job.task(0).steps]


def states(job: Job) -> list[str]:
    return [step.state for step in job.task(0).steps]


def test_the_third_of_five_steps_fails(client: Cluster) -> None:
    job = submit(client, action("true", "true", "exit 3"))

    assert job.wait(60).state == "failed"
    assert job.exit_code == 3
    assert codes(job) == [0, 0, 3, None, None]
    assert states(job) == ["succeeded", "succeeded", "failed", "skipped", "skipped"]
    assert ends(client, job) == ["failed", "failed"]
    assert job.logs() == "check-out\nbuild\ntest\n"
    assert job.status.reason == "step 3 of 5, test: exit 3"


def test_five_steps_succeed_and_each_has_its_own_output(client: Cluster) -> None:
    job = submit(client, action("echo bad >&2", "true", "echo worse >&2"))

    assert job.wait(60).state == "succeeded"
    assert codes(job) == [0] * 5
    assert [job.logs(step=name) for name in ("build", "4", "clean-up")] == [
        "build\n",
        "package\n",
        "clean-up\n",
    ]
    assert job.logs(step="test", stream="stderr") == "worse\n"
    steps = job.task(0).steps
    assert all(step.started_at_ms and step.ended_at_ms for step in steps)
    reasons = [event.why for event in client.events(limit=1000, job=job.id, kind="task.step")]
    assert any("step 5 of 5, clean-up ended with 0" in why for why in reasons)


def test_a_task_whose_first_step_fails(client: Cluster) -> None:
    steps = action()
    steps[1]["command"] = ["no-such-program"]
    job = submit(client, steps)

    assert job.wait(60).state == "failed"
    assert job.exit_code == 127
    assert codes(job) == [0, 127, None, None, None]
    assert states(job) == ["succeeded", "failed", "skipped", "skipped", "skipped"]
    assert ends(client, job) == ["failed", "failed"]


def test_a_task_whose_first_step_cannot_start(client: Cluster, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    steps = action()
    steps[0]["command"] = [str(plain)]
    job = submit(client, steps)

    assert job.wait(60).state == "failed"
    assert job.exit_code == 126
    assert codes(job) == [126, None, None, None, None]
    assert ends(client, job) == ["failed", "failed"]


def test_a_task_canceled_in_step_two(client: Cluster, shared: LocalCluster) -> None:
    job = submit(client, action("true", "sleep 600"))
    until(lambda: states(job)[1] == "running" and "build" in job.logs(), "step two runs")
    job.cancel()

    assert job.wait(60).state == "canceled"
    assert states(job) == ["succeeded", "stopped", "skipped", "skipped", "skipped"]
    assert codes(job)[0] == 0
    assert ends(client, job) == ["stopped", "canceled"]
    assert job.logs() == "check-out\nbuild\n"
    until(lambda: not shared.work(), "nothing is left")


def test_a_task_whose_second_step_times_out(client: Cluster) -> None:
    steps = action("true", "sleep 600")
    steps[1]["timeout"] = "100ms"
    job = submit(client, steps, grace="1s")

    assert job.wait(60).state == "timed_out"
    assert states(job) == ["succeeded", "timed_out", "skipped", "skipped", "skipped"]
    assert ends(client, job) == ["timed_out", "timed_out"]


def test_a_failed_task_is_retried_from_its_first_step(client: Cluster, tmp_path: Path) -> None:
    again = f"[ -e {tmp_path}/mended ] || {{ touch {tmp_path}/mended; exit 9; }}"
    job = submit(client, action("true", again), retries=1)

    assert job.wait(60).state == "succeeded"
    first, second = job.task(0).attempts
    assert [step.exit_code for step in first.steps] == [0, 9, None, None, None]
    assert [step.exit_code for step in second.steps] == [0] * 5
    assert job.logs(step="build", attempt=1) == "build\n"


def test_the_tasks_of_an_array_have_their_own_steps(client: Cluster) -> None:
    job = submit(client, action("true", "exit $ROTA_INDEX"), count=3)
    job.wait(60)

    assert [[step.exit_code for step in job.task(index).steps][:3] for index in range(3)] == [
        [0, 0, 0],
        [0, 1, None],
        [0, 2, None],
    ]


def test_the_command_line_shows_steps(client: Cluster, shared: LocalCluster) -> None:
    job = submit(client, action("true", "exit 5"))
    job.wait(60)
    shown = shared.rota("show", job.id)
    log = shared.rota("logs", job.id, "--step", "build")

    assert shown.code == 0
    rows = [line.split() for line in shown.out.splitlines() if line.lstrip()[:1].isdigit()]
    assert [row[:5] for row in rows[1:]] == [
        ["1", "check-out", "✓", "succeeded", "0"],
        ["2", "build", "✗", "failed", "5"],
        ["3", "test", "-", "skipped", "-"],
        ["4", "package", "-", "skipped", "-"],
        ["5", "clean-up", "-", "skipped", "-"],
    ]
    assert (log.code, log.out) == (0, "build\n")
    unknown = shared.rota("logs", job.id, "--step", "deploy")
    assert unknown.code == 4
    assert "check-out, build" in unknown.err


def gated(gate: Gate) -> list[dict[str, Any]]:
    """The second step waits; the fourth fails."""
    return action("true", gate.wait, "true", "exit 7")


def test_steps_survive_a_killed_agent(tmp_path: Path, gate: Gate) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster, connected(cluster) as client:
        job = submit(client, gated(gate))
        until(lambda: states(job)[1] == "running", "step two runs")
        cluster.kill_agent(1)
        gate.open()
        until(lambda: not cluster.work(), "all has ended while nobody listened")
        cluster.start_agent(1)

        assert job.wait(60).state == "failed"
        assert job.exit_code == 7
        assert codes(job) == [0, 0, 0, 7, None]
        assert ends(client, job) == ["failed", "failed"]
        assert len(job.task(0).attempts) == 1


def test_steps_survive_a_killed_server(tmp_path: Path, gate: Gate) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster, connected(cluster) as client:
        job = submit(client, gated(gate))
        until(lambda: states(job)[1] == "running", "step two runs")
        cluster.kill_server()
        gate.open()
        until(lambda: not cluster.work(), "all has ended while nobody listened")
        cluster.start_server()

        assert job.wait(60).state == "failed"
        assert codes(job) == [0, 0, 0, 7, None]
        assert ends(client, job) == ["failed", "failed"]
        assert len(job.task(0).attempts) == 1


def test_steps_start_over_after_a_lost_node(tmp_path: Path, gate: Gate) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster, connected(cluster) as client:
        job = submit(client, gated(gate), recovery="none")
        until(lambda: states(job)[1] == "running", "step two runs")
        cluster.kill_node(1)
        cluster.start_agent(1)

        assert job.wait(60).state == "failed"
        assert states(job) == ["succeeded", "lost", "skipped", "skipped", "skipped"]
        assert ends(client, job) == ["lost", "failed"]


def connected(cluster: LocalCluster) -> Cluster:
    return connect(f"http://{cluster.http}", token=cluster.token)
