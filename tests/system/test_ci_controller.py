"""The example of an external controller, through the loss of its nodes, its server and itself."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rota.client.controller import Controller
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wire.generated import controller_pb2 as pb
from tests.system.witness_file import Gate

EXAMPLE = Path(__file__).parents[2] / "examples" / "ci_controller.py"
ENDS_IN_SECONDS = 120

pytestmark = pytest.mark.system


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that are declared lost early."""
    with LocalCluster(tmp_path, settings={"ROTA_LOST_SECONDS": "10"}) as running:
        yield running


class Pipeline:
    """Three actions; two of them wait at a gate, and each records its start."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "pipeline.toml"
        self.gates = [Gate(directory / "gate-0"), Gate(directory / "gate-1")]
        self._witness = directory / "ran"
        waits = [gate.wait for gate in self.gates] + ["true"]
        self.path.write_text("".join(self._action(number, wait) for number, wait in enumerate(waits)))

    def _action(self, number: int, wait: str) -> str:
        say = f"echo {number} $ROTA_ATTEMPT $ROTA_NODE >> {self._witness}"
        command = json.dumps(["sh", "-c", f"{say}; {wait}"])
        return f'[[action]]\nname = "action-{number}"\ncommand = {command}\n'

    def ran(self) -> list[tuple[int, int, str]]:
        """Action, attempt and node, in the order in which they started."""
        rows = self._witness.read_text().splitlines() if self._witness.exists() else []
        return [(int(action), int(attempt), node) for action, attempt, node in map(str.split, rows)]

    def diary(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.with_suffix(".journal").read_text().splitlines()]


@contextmanager
def controller(cluster: LocalCluster, pipeline: Pipeline) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(EXAMPLE), str(pipeline.path)]
    process = subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def happened(cluster: LocalCluster) -> list[tuple[str, str, str]]:
    """Every event of a job, up to the end of the last action."""
    with Controller(cluster.grpc, cluster.token, "reader") as reader:
        found = []
        for event in reader.events(after="0.0"):
            if event.job:
                found.append((event.sequence, event.kind, event.job))
            if (event.job, event.kind) == ("3", "job.ended"):
                return found
    raise AssertionError("the events ended")


def restart_server(cluster: LocalCluster, ready: Callable[[], bool]) -> None:
    cluster.kill_server()
    cluster.start_server()
    until(ready, "the nodes that are left are back")


def test_a_pipeline_survives_a_lost_node_a_server_restart_and_its_own_crash(
    hasty: LocalCluster, tmp_path: Path
) -> None:
    pipeline = Pipeline(tmp_path)

    def back(lost: int) -> bool:
        return all(hasty.node(number)["state"] == "ready" for number in hasty.numbers if number != lost)

    with controller(hasty, pipeline):
        until(lambda: bool(pipeline.ran()), "the first action runs")
        until(lambda: hasty.count("1", "running") == 1, "the server knows that it runs")
        lost = int(pipeline.ran()[0][2].removeprefix("node-"))
        hasty.kill_node(lost)
        restart_server(hasty, lambda: back(lost))
        until(lambda: len(pipeline.ran()) == 2, "its controller had it placed anew")
    pipeline.gates[0].open()  # it ends while no controller is connected
    until(lambda: hasty.count("1", "succeeded") == 1, "the first action has ended")
    with controller(hasty, pipeline) as process:
        until(lambda: len(pipeline.ran()) == 3, "the second action runs")
        restart_server(hasty, lambda: back(lost))
        pipeline.gates[1].open()
        printed, _ = process.communicate(timeout=ENDS_IN_SECONDS)

    diary = [(line["sequence"], line["kind"], line["job"]) for line in pipeline.diary()[1:]]
    assert (process.returncode, printed.splitlines()[-1]) == (0, "the pipeline succeeded")
    assert [(action, attempt) for action, attempt, _ in pipeline.ran()] == [(0, 1), (0, 2), (1, 1), (2, 1)]
    assert diary == happened(hasty)
    assert sum(kind == "task.resolved" for _, kind, _ in diary) == 1


def test_a_lost_task_waits_for_its_controller_and_shows_it(hasty: LocalCluster, gate: Gate) -> None:
    spec = {"command": ["sh", "-c", gate.wait], "recovery": "controller", "controller": "ci"}
    with Controller(hasty.grpc, hasty.token, "ci") as outside:
        job = outside.submit(spec, "once")
        until(lambda: hasty.count(job, "running") == 1, "it runs")
        hasty.kill_node(int(str(hasty.call("GET", f"/v1/jobs/{job}/tasks/0").body["node"])[5:]))
        until(lambda: hasty.count(job, "unresolved") == 1, "it is lost")
        shown, why = hasty.rota("show", job), hasty.rota("why", job)
        event = next(
            candidate for candidate in outside.events(after="0.0") if candidate.kind == "task.unresolved"
        )
        outside.resolve(event, "again")
        until(lambda: hasty.count(job, "running") == 1, "it runs elsewhere")
        gate.open()
        assert hasty.rota("wait", job).code == 0

    assert "waits for its controller" in shown.out
    assert "waits for its controller to say what becomes of it after the loss of node-" in why.out


def test_a_user_may_decide_for_an_absent_controller(hasty: LocalCluster, gate: Gate) -> None:
    recovery = {"recovery": "controller", "controller": "ci"}
    job = hasty.submit("sh", "-c", gate.wait, **recovery)
    until(lambda: hasty.count(job, "running") == 1, "it runs")
    hasty.kill_node(int(hasty.call("GET", f"/v1/jobs/{job}/tasks/0").body["node"].removeprefix("node-")))
    until(lambda: hasty.count(job, "unresolved") == 1, "it is lost")

    refused = hasty.rota("job", "resolve", job, "forget")
    printed = hasty.rota("job", "resolve", job, "again")
    until(lambda: hasty.count(job, "running") == 1, "it runs again")
    gate.open()

    assert refused.code != 0
    assert "again, fail, cancel, lost" in refused.err
    assert printed.code == 0, printed.err
    assert hasty.rota("wait", job).code == 0
    assert "by hand, decides 'again' for task 0" in hasty.rota("event", "ls").out


def test_stages_and_output_survive_a_move_and_a_restart_of_the_server(
    hasty: LocalCluster, gate: Gate
) -> None:
    say = "echo attempt $ROTA_ATTEMPT begins"
    spec = {"command": ["sh", "-c", f"{say}; {gate.wait}; echo ends"], "name": "moved"}
    output: dict[int, bytes] = {}
    ends: list[tuple[str, int]] = []
    last = pb.JobStage()
    with Controller(hasty.grpc, hasty.token, "ci") as outside:
        for stage in outside.schedule(spec, "once", logs=True):
            match stage.WhichOneof("what"):
                case "log":
                    output[stage.log.attempt] = output.get(stage.log.attempt, b"") + stage.log.data
                    if stage.log.data == b"attempt 1 begins\n":
                        hasty.kill_node(int(str(hasty.call("GET", "/v1/jobs/1/tasks/0").body["node"])[5:]))
                    elif stage.log.data == b"attempt 2 begins\n":
                        hasty.kill_server()
                        hasty.start_server()
                        gate.open()
                case "task" if stage.task.kind == "task.ended":
                    ends.append((stage.task.state, stage.task.attempt))
                case "stage":
                    last = stage.stage
                case _:
                    pass  # what else happens to its task

    assert (last.state, last.final) == ("succeeded", True)
    assert output[1].startswith(b"attempt 1 begins\n")
    assert output[2] == b"attempt 2 begins\nends\n"
    assert ends == [("lost", 1), ("succeeded", 2)]


def test_the_example_stops_at_an_action_that_fails(hasty: LocalCluster, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.path.write_text(
        '[[action]]\nname = "bad"\ncommand = ["false"]\n[[action]]\nname = "never"\ncommand = ["true"]\n'
    )
    with controller(hasty, pipeline) as process:
        printed, _ = process.communicate(timeout=ENDS_IN_SECONDS)
    with controller(hasty, pipeline) as again:
        repeated, _ = again.communicate(timeout=ENDS_IN_SECONDS)

    assert (process.returncode, printed.splitlines()[-1]) == (1, "bad did not succeed")
    assert (again.returncode, repeated) == (1, "bad did not succeed\n")
    assert [job["name"] for job in hasty.call("GET", "/v1/jobs").body["jobs"]] == ["bad"]
