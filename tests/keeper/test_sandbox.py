"""Attempts in bubblewrap sandboxes, as the keeper's user and as users of their own."""

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.keeper.process import sandbox
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.machine import needs

IS_ROOT = os.geteuid() == 0
EXIT_CODE, REASON = 4, 11
DEAF_FOR_A_WHILE = "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done"

pytestmark = needs("sandbox")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that other users can reach, and that is not below /tmp, which a sandbox replaces."""
    path = Path(tempfile.mkdtemp(prefix="rota-sandbox-", dir="/var/lib" if IS_ROOT else Path.home()))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(params=["self", *(["own"] if IS_ROOT else [])])
def keeper(directory: Path, request: pytest.FixtureRequest) -> Iterator[Keeper]:
    (directory / "node").mkdir(mode=0o700)
    keeper = Keeper(directory / "node")
    keeper.run_as = request.param  # type: ignore[attr-defined]
    try:
        yield keeper
    finally:
        keeper.close()


@pytest.fixture
def agent(keeper: Keeper) -> Agent:
    agent = keeper.agent()
    agent.hello(run_as=keeper.run_as)  # type: ignore[attr-defined]
    return agent


def output_of(keeper: Keeper, agent: Agent, script: str, stream: str = "out", **spec: Any) -> str:
    agent.start("7", "sh", "-c", script, **{"sandbox": {}, **spec})
    agent.wait_ended()
    return keeper.output("7", stream=stream)


def test_a_node_reports_that_it_has_sandboxes(keeper: Keeper) -> None:
    assert keeper.agent().hello()["labels"]["sandbox"] == "bubblewrap"


def test_a_sandboxed_task_writes_to_its_own_directories_only(
    keeper: Keeper, agent: Agent, directory: Path
) -> None:
    places = '. "$ROTA_OUTPUT_DIR" /tmp /var/tmp /dev/shm /etc /usr /root'
    script = f"for place in {places}; do touch $place/it 2>/dev/null && echo $place; done; pwd"
    script += f"; touch {directory}/it 2>/dev/null"

    *written, where = output_of(keeper, agent, script).splitlines()

    work = keeper.root / "work" / "7"
    out = keeper.root / "tasks" / "7" / "0" / "out"
    assert written == [".", str(out), "/tmp", "/var/tmp", "/dev/shm"]
    assert where == str(work)
    assert (work / "it").exists()
    assert (out / "it").exists()
    assert not Path("/tmp/it").exists()
    assert not (directory / "it").exists()


def test_paths_named_by_the_spec_are_writable(keeper: Keeper, agent: Agent, directory: Path) -> None:
    shared = directory / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    sandbox = {"writable": [str(shared)]}

    assert output_of(keeper, agent, f"echo it > {shared}/it && echo done", sandbox=sandbox) == "done\n"
    assert (shared / "it").read_text() == "it\n"


def test_a_sandboxed_task_sees_no_files_of_the_node_or_other_jobs(keeper: Keeper, agent: Agent) -> None:
    (keeper.root / "node.key").write_text("secret\n")
    (keeper.root / "work" / "8").mkdir(parents=True)

    around = {"writable": [str(keeper.root.parent)]}
    script = f"cd {keeper.root}; echo $(ls) $(ls work) $(ls tasks)"
    assert output_of(keeper, agent, script, sandbox=around) == "tasks work 7 7\n"


def test_a_sandboxed_task_sees_its_own_processes_only(keeper: Keeper, agent: Agent) -> None:
    pids = [int(name) for name in output_of(keeper, agent, "cd /proc; ls -d [0-9]*").split()]

    assert 1 in pids
    assert len(pids) <= 4


@pytest.mark.parametrize("network", [False, True])
def test_a_sandboxed_task_has_no_network_unless_requested(
    keeper: Keeper, agent: Agent, network: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('reached')"
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        agent.start("7", python, "-c", script, sandbox={"network": network})
        agent.wait_ended()

    assert keeper.output("7") == ("reached\n" if network else "")


def test_a_sandboxed_task_has_no_privileges(keeper: Keeper, agent: Agent) -> None:
    status = output_of(keeper, agent, "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status")

    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_the_exit_code_of_a_sandboxed_task_is_passed_on(keeper: Keeper, agent: Agent) -> None:
    output_of(keeper, agent, "exit 7")

    assert agent.ended[0][3:5] == ["exited", 7]


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        ("no-such-program", 127, "command not found: no-such-program"),
        ("/no/such/program", 127, "command not found: /no/such/program"),
        ("/etc/passwd", 126, "permission denied: /etc/passwd"),
    ],
)
def test_a_command_that_cannot_be_executed_is_reported(
    agent: Agent, command: str, code: int, reason: str
) -> None:
    agent.start("7", command, sandbox={})
    (row,) = agent.wait_ended()

    assert (row[EXIT_CODE], row[REASON]) == (code, reason)


def test_a_missing_writable_path_is_reported(agent: Agent) -> None:
    agent.start("7", "true", sandbox={"writable": ["/no/such"]})

    assert agent.wait_ended()[0][REASON] == "sandbox: there is no /no/such to write to"


def test_a_stop_signal_reaches_the_sandboxed_command(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", DEAF_FOR_A_WHILE, sandbox={}, grace_ms=60_000)
    agent.wait_started()
    wait_until(lambda: "ready" in keeper.output("7"), "its word")
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][3:5] == ["stopped", 9]
    assert "told" in keeper.output("7")
    assert keeper.work() == []


def test_a_sandbox_that_does_not_stop_is_killed_with_its_children(keeper: Keeper, agent: Agent) -> None:
    script = "trap '' TERM; setsid sleep 600 & echo ready; while :; do sleep 0.05; done"
    agent.start("7", "sh", "-c", script, sandbox={}, grace_ms=100)
    agent.wait_started()
    wait_until(lambda: "ready" in keeper.output("7"), "its word")
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][3] == "stopped"
    assert keeper.work() == []


def test_a_killed_keeper_leaves_no_sandbox(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "echo ready; sleep 600", sandbox={})
    agent.wait_started()
    wait_until(lambda: "ready" in keeper.output("7"), "its word")
    keeper.kill()
    keeper.start()

    assert [row[3] for row in keeper.agent().hello()["ended"]] == ["lost"]
    assert keeper.work() == []


def test_limits_of_a_sandbox_are_enforced(keeper: Keeper, agent: Agent) -> None:
    eats = "head -c 300m /dev/zero | tail"
    agent.start("7", "sh", "-c", eats, sandbox={}, limits={"memory": 64 << 20, "pids": 5})
    (row,) = agent.wait_ended()

    assert row[5] == signal.SIGKILL
    assert row[REASON].startswith("out of memory: limit 64 MiB")


def test_a_limit_of_one_process_is_enough_to_run(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "true", sandbox={}, limits={"pids": 1})

    assert agent.wait_ended()[0][3:5] == ["exited", 0]


def test_each_step_has_a_sandbox_and_its_files_stay(keeper: Keeper, agent: Agent) -> None:
    steps = [{"name": "a", "argv": ["sh", "-c", "echo it > it; touch /tmp/it"]}]
    steps.append({"name": "b", "argv": ["sh", "-c", "cat it; ls /tmp/it"]})
    agent.start("7", "x", steps=steps, sandbox={})
    (row,) = agent.wait_ended()

    assert keeper.output("7") == "it\n"
    assert "/tmp/it" in keeper.output("7", stream="err")
    assert row[REASON].startswith("step 2 of 2, b: exit ")


def test_a_sandbox_that_cannot_be_created_is_reported(keeper: Keeper, agent: Agent) -> None:
    """Bubblewrap itself exits with 1, as the command might: its status report distinguishes them."""
    elsewhere = f"/proc/{os.getpid()}/status"  # there, but not in a sandbox, which has a /proc of its own
    agent.start("7", "true", sandbox={"writable": [elsewhere]})
    agent.start("8", "sh", "-c", "echo bwrap: it was me >&2; exit 1", sandbox={})
    ended = {row[0]: row for row in agent.wait_ended(2)}

    assert ended["7"][EXIT_CODE] == sandbox.SANDBOX_FAILED
    assert ended["7"][REASON].startswith("its sandbox cannot be made here: Can't ")
    assert ended["8"][EXIT_CODE] == 1
    assert ended["8"][REASON] is None
