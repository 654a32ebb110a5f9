"""The keeper's lifecycle: one per directory, killed, restarted, told to quit."""

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.model.recovery import EndCause
from tests.keeper.conftest import (
    PATIENCE_SECONDS,
    Agent,
    Keeper,
    keeper_command,
    keeper_env,
    wait_until,
)


def test_a_second_keeper_of_a_directory_exits_at_once(keeper: Keeper) -> None:
    second = call(keeper_command(keeper.root))

    assert second.returncode == 75
    assert second.stderr == f"error: another keeper runs in {keeper.root}\n"
    assert keeper.answers()


def test_wrong_arguments_print_the_usage() -> None:
    wrong = call(keeper_command(Path())[:-1])

    assert wrong.returncode == 2
    assert wrong.stderr == "usage: python -m rota.keeper DIR\n"


def test_the_socket_is_private_to_its_owner(keeper: Keeper) -> None:
    assert stat.S_IMODE((keeper.root / "keeper.sock").stat().st_mode) == 0o600


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Keeper]:
    root = tmp_path / ("d" * 120) / ("e" * 120)
    root.mkdir(parents=True)
    keeper = Keeper(root)
    try:
        yield keeper
    finally:
        keeper.close()


def test_a_path_too_long_for_a_socket_works(deep: Keeper) -> None:
    agent = deep.agent()
    agent.hello()
    agent.start("7", "pwd")
    agent.wait_ended()

    assert deep.output("7") == f"{deep.root}/work/7\n"


def test_attempts_of_a_killed_keeper_are_killed_and_reported_as_lost(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "setsid sleep 600 & sleep 600")
    agent.start("8", "sh", "-c", "exit 3")
    agent.wait_ended()
    wait_until(lambda: len(keeper.work()) == 3, "the whole tree")
    keeper.kill()
    keeper.start()
    state = keeper.agent().hello()

    assert keeper.work() == []
    assert state["live"] == []
    assert sorted(state["jobs"]) == ["7", "8"]
    rows = {row[0]: row for row in state["ended"]}
    assert rows["7"][3] == "lost"
    assert rows["7"][-2:] == ["the keeper died", EndCause.KEEPER_DIED]
    assert rows["8"][3:5] == ["exited", 3]


def test_attempt_numbers_and_acknowledgements_outlive_the_keeper(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "true", tasks=[[0, 5, 1]])
    agent.wait_ended()
    agent.send(op="ack", attempts=[["7", 0, 5]])
    agent.start("8", "true")
    agent.wait_ended(2)
    for _ in range(2):  # the second time from the journal as the first restart rewrote it
        keeper.kill()
        keeper.start()
    back = keeper.agent()
    state = back.hello()
    back.send(op="start", job="7", spec=None, tasks=[[0, 5, 1]])

    assert [row[0] for row in state["ended"]] == ["8"]
    assert back.wait_refused() == [["7", 0, 5, "attempt 5 is not newer than 5"]]


def test_after_a_reboot_attempts_are_lost_with_that_reason(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sleep", "600")
    agent.wait_started()
    keeper.kill()
    journal = keeper.root / "journal"
    head, _, rest = journal.read_text().partition("\n")
    assert head.startswith('["boot",')
    journal.write_text('["boot","another"]\n' + rest)
    keeper.start()

    row = keeper.agent().hello()["ended"][0]
    assert [row[3], row[-1]] == ["lost", "the machine restarted"]


def test_queued_attempts_are_not_journaled(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sleep", "600", needs={"cpu": 4000})
    agent.start("8", "true")
    agent.wait_started()
    agent.sync()
    keeper.kill()
    keeper.start()
    back = keeper.agent()
    state = back.hello()
    back.start("8", "true")

    assert [row[0] for row in state["ended"]] == ["7"]
    assert back.wait_ended()[0][:5] == ["8", 0, 1, "exited", 0]


def test_a_stop_without_an_order_is_reported_with_its_cause(agent: Agent) -> None:
    agent.start("7", "sleep", "600", tasks=[[0, 1, 1], [1, 1, 1]])
    agent.wait_started(2)
    agent.stop(["7", 0, 1])
    agent.wait_ended()
    agent.send(op="quit")

    ordered, unordered = agent.wait_ended(2)
    assert (ordered[3], ordered[11:]) == ("stopped", [None])
    assert (unordered[3], unordered[11:]) == ("stopped", ["its node leaves", "node_left"])


@pytest.mark.parametrize("how", ["quit", "SIGTERM"])
def test_a_keeper_told_to_quit_stops_its_attempts_first(keeper: Keeper, agent: Agent, how: str) -> None:
    agent.start("7", "sleep", "600", needs={"cpu": 4000})
    agent.start("8", "true")
    agent.wait_started()
    if how == "quit":
        agent.send(op="quit")
    else:
        agent.sync()
        keeper.process.send_signal(signal.SIGTERM)

    assert {row[0]: row[3] for row in agent.wait_ended(2)} == {"7": "stopped", "8": "withdrawn"}
    assert keeper.process.wait(PATIENCE_SECONDS) == 0
    assert keeper.work() == []
    keeper.start()
    assert len(keeper.agent().hello()["ended"]) == 2


def test_sighup_and_sigint_do_not_reach_attempts(keeper: Keeper, agent: Agent) -> None:
    for signum in (signal.SIGINT, signal.SIGHUP):
        os.kill(keeper.process.pid, signum)
    agent.start("7", "true")

    assert agent.wait_ended()[0][4] == 0


def call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=keeper_env()
    )
