"""Services under a real keeper: restarted in place with a backoff, until there were too many ends."""

import signal
from pathlib import Path
from typing import Any

from tests.keeper.conftest import Agent, Keeper, Row, wait_until
from tests.machine import needs

KEY = ("7", 0, 1)
OFTEN = {"attempts": 3, "within_ms": 600_000, "delay_ms": 1, "delay_max_ms": 4}
FOR_EVER = {"attempts": 1_000_000, "within_ms": 600_000, "delay_ms": 1, "delay_max_ms": 10}
SELDOM = {"attempts": 3, "within_ms": 600_000, "delay_ms": 3_600_000, "delay_max_ms": 3_600_000}
RESTARTS, CODE, SIGNAL, AT, HEALTH, WHY = range(6)


def serve(agent: Agent, script: str, restart: dict[str, int] = FOR_EVER, **spec: Any) -> None:
    agent.start("7", "sh", "-c", script, restart=restart, **spec)


def service_row(agent: Agent) -> Row:
    return agent.lives.get(KEY, [0, None, None, 0, "", None])


def wait_service(agent: Agent, **wanted: Any) -> Row:
    """Wait until the service is reported with this health, and with at least this many restarts."""
    places = {"health": HEALTH, "code": CODE}
    least = wanted.pop("restarts", 0)
    while service_row(agent)[RESTARTS] < least or any(
        service_row(agent)[places[it]] != so for it, so in wanted.items()
    ):
        agent.receive()
    return service_row(agent)


def test_an_ended_process_is_restarted_in_the_same_attempt(keeper: Keeper, agent: Agent) -> None:
    serve(
        agent, 'echo start $ROTA_RESTART of $ROTA_ATTEMPT; [ "$ROTA_RESTART" = 2 ] && exec sleep 600; exit 5'
    )
    wait_service(agent, restarts=2, health="up", code=5)
    wait_until(lambda: keeper.output("7").count("\n") == 3, "three starts")

    assert keeper.output("7") == "start 0 of 1\nstart 1 of 1\nstart 2 of 1\n"
    assert agent.ended == []
    assert {tuple(row[:3]) for row in agent.started} == {KEY}


def test_a_service_is_restarted_after_exit_0(agent: Agent) -> None:
    serve(agent, "exit 0")

    assert wait_service(agent, restarts=3)[CODE] == 0


def test_a_service_that_ends_too_often_fails(keeper: Keeper, agent: Agent) -> None:
    serve(agent, "echo once; exit 3", OFTEN)
    (ended,) = agent.wait_ended()

    assert ended[3:6] == ["exited", 3, None]
    assert ended[-1] == "exit 3; it ended 4 times within 600 s"
    assert keeper.output("7") == "once\n" * 4
    assert service_row(agent)[RESTARTS] == 3


def test_a_service_is_restarted_without_an_agent(keeper: Keeper, agent: Agent) -> None:
    serve(agent, "echo once; exit 1")
    agent.wait_started()
    agent.close()
    before = keeper.output("7").count("once")
    wait_until(lambda: keeper.output("7").count("once") > before + 4, "more starts")
    state = keeper.agent().hello()

    (live,) = state["live"]
    assert live[:4] == ["7", 0, 1, "running"]
    ((*key, row),) = state["lives"]
    assert tuple(key) == KEY
    assert row[RESTARTS] > 3


def test_a_service_in_its_backoff_is_stopped_at_once(keeper: Keeper, agent: Agent) -> None:
    serve(agent, "exit 4", SELDOM, needs={"cpu": 4000})
    wait_service(agent, health="down")
    agent.stop(["7", 0, 1])
    (ended,) = agent.wait_ended()
    agent.start("8", "true", needs={"cpu": 4000})
    agent.wait_ended(2)

    assert ended[3:5] == ["stopped", 4]
    assert agent.ended[1][:5] == ["8", 0, 1, "exited", 0]  # its resources are released


def test_nothing_of_the_last_process_is_left_at_the_next_start(keeper: Keeper, agent: Agent) -> None:
    """A daemon of the first process would hold the port of the second."""
    leaves = 'setsid sleep 600 & [ "$ROTA_RESTART" = 1 ] && exec sleep 601; exit 1'
    serve(agent, leaves)
    wait_service(agent, restarts=1, health="up")
    wait_until(lambda: sleepers(keeper, b"601") == 1, "the second start")

    assert sleepers(keeper, b"600") <= 1  # its own


def test_a_service_is_stopped_by_its_own_stop_signal(keeper: Keeper, agent: Agent) -> None:
    script = "trap 'echo asked; exit 0' USR1; echo ready; while :; do sleep 0.01; done"
    serve(agent, script, stop_signal=int(signal.SIGUSR1), grace_ms=60_000)
    agent.wait_started()
    wait_until(lambda: "ready" in keeper.output("7"), "its trap")
    agent.stop(["7", 0, 1])
    (ended,) = agent.wait_ended()

    assert ended[3] == "stopped"
    assert keeper.output("7") == "ready\nasked\n"


def test_an_at_most_once_service_is_not_restarted(agent: Agent) -> None:
    serve(agent, "exit 6", run="at_most_once")
    (ended,) = agent.wait_ended()

    assert ended[3:5] == ["exited", 6]
    assert not agent.lives


def test_a_removed_command_counts_as_one_more_end(keeper: Keeper, agent: Agent, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nrm "$0"; exit 1\n')
    program.chmod(0o755)
    agent.start("7", str(program), restart=OFTEN)
    (ended,) = agent.wait_ended()

    assert ended[3:5] == ["exited", 127]
    assert ended[-1] == f"command not found: {program}; it ended 4 times within 600 s"


def test_the_death_of_the_keeper_ends_a_services_attempt(keeper: Keeper, agent: Agent) -> None:
    serve(agent, "exit 1")
    wait_service(agent, restarts=2)
    keeper.kill()
    keeper.start()
    state = keeper.agent().hello()

    (ended,) = state["ended"]
    assert (tuple(ended[:3]), ended[3], ended[11]) == (KEY, "lost", "the keeper died")
    assert ended[-1] == "keeper_died"
    ((*_, row),) = state["lives"]
    assert row[RESTARTS] >= 2  # from the journal


@needs("root")
def test_each_restart_starts_with_fresh_limits(agent: Agent) -> None:
    serve(
        agent,
        'if [ "$ROTA_RESTART" = 0 ]; then exec python3 -c "x = bytearray(300 << 20); input()"; fi; exit 9',
        OFTEN,
        needs={"cpu": 1000, "memory": 64 << 20},
    )
    (ended,) = agent.wait_ended()

    assert ended[4] == 9
    assert ended[-1] == "exit 9; it ended 4 times within 600 s"


def sleepers(keeper: Keeper, seconds: bytes) -> int:
    return keeper.cmdlines().count(b"sleep\0" + seconds + b"\0")
