"""The examples and the demo run, and leave nothing behind."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.processes import until, with_argument
from tests.docs.terminal import Terminal

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO_SECONDS = 250.0

pytestmark = pytest.mark.system


@pytest.fixture
def terminal(shared_config: Path, tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path / "examples", shared_config) as opened:
        yield opened


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("hello.toml", "nice to be here"),
        ("array.toml", "24 of 24 tasks succeeded"),
        ("placement.toml", "4 of 4 tasks succeeded"),
        ("retry.yaml", "now it works"),
        ("ci-action.toml", "passed"),
    ],
)
def test_a_job_file_runs(terminal: Terminal, file: str, said: str) -> None:
    ended = terminal.run(["rota", "run", "-f", str(EXAMPLES / file)])

    assert ended.returncode == 0, ended.stdout
    assert said in ended.stdout


def test_the_container_example_is_a_valid_job(terminal: Terminal) -> None:
    """Not run: its image would have to be pulled, and its directory allowed."""
    ended = terminal.run(["rota", "plan", "-f", str(EXAMPLES / "container.toml")])

    assert ended.returncode in (0, 11), ended.stdout
    assert "error" not in ended.stdout


def test_the_controller_example_runs_its_actions_in_order(terminal: Terminal, tmp_path: Path) -> None:
    pipeline = tmp_path / "ci-pipeline.toml"
    shutil.copy(EXAMPLES / pipeline.name, pipeline)
    ended = terminal.run([sys.executable, str(EXAMPLES / "ci_controller.py"), str(pipeline)])

    names = [line.partition(" is job ")[0] for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, ended.stdout
    assert names == ["build", "check", "publish", "the pipeline succeeded"]


def test_the_example_of_a_service_is_healthy_until_it_is_canceled(terminal: Terminal) -> None:
    assert terminal.run(["rota", "run", "-f", str(EXAMPLES / "service.toml")]).returncode == 0

    until(lambda: "1 healthy" in terminal.run(["rota", "show", "web"]).stdout, "it is healthy")
    assert terminal.run(["rota", "cancel", "web"]).returncode == 0
    assert terminal.run(["rota", "wait", "web"]).returncode == 130


def test_the_client_example_prints_every_task(terminal: Terminal) -> None:
    ended = terminal.run([sys.executable, str(EXAMPLES / "sdk.py")])

    assert ended.returncode == 0, ended.stdout
    assert [ended.stdout.count(f"task {index} succeeded") for index in range(8)] == [1] * 8
    assert "output of task 3: task 3 of 8" in ended.stdout


def test_the_demo_shows_everything_and_leaves_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        env=demo_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEMO_SECONDS,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout
    assert "300 of 300 tasks succeeded" in ended.stdout
    assert "task 7 failed   exit 3" in ended.stdout
    assert "6 of 6 tasks succeeded" in ended.stdout
    assert "Traceback" not in ended.stdout
    until(lambda: left_of(tmp_path) == [], "nothing is left")


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C on a terminal while a task runs."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, str(EXAMPLES / "demo.py")], demo_environment(tmp_path))
    output = b""
    while b"rota run --name collatz" not in output:
        output += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    code = until(lambda: ended_with(pid, terminal), "the demo ends")

    assert code == [128 + signal.SIGINT]
    until(lambda: left_of(tmp_path) == [], "nothing is left")


def demo_environment(directory: Path) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {"PATH": os.environ["PATH"], "PYTHONPATH": path, "LANG": "C.UTF-8", "TMPDIR": str(directory)}


def ended_with(pid: int, terminal: int) -> list[int]:
    """Wait for its exit code; its output is read meanwhile, because it would block otherwise."""
    try:
        os.read(terminal, 65536)
    except OSError:  # the last process on that terminal is gone
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
    return []


def left_of(directory: Path) -> list[object]:
    return [*directory.iterdir(), *with_argument(f"{directory}/")]
