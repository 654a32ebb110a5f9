"""Steps: several commands in order as one attempt, under a real keeper."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from rota.keeper.protocol import wire
from tests.keeper.conftest import AMOUNTS, Agent, Keeper, Row, wait_until

CODE, SIGNAL, OUT, ERR = 2, 3, 4, 5
KEY = ("7", 0, 1)


def step(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "argv": ["sh", "-c", script], **more}


def run(agent: Agent, *steps: dict[str, Any], **spec: Any) -> None:
    agent.start("7", "not-used", steps=list(steps), **spec)


def codes(rows: list[Row]) -> list[int | None]:
    return [row[CODE] for row in rows]


def test_steps_run_in_order_in_one_directory(keeper: Keeper, agent: Agent) -> None:
    run(
        agent,
        step("write", "echo $ROTA_STEP $ROTA_STEP_NAME > it; echo one; echo oops >&2"),
        step("add", "echo $ROTA_STEP $ROTA_STEP_NAME $MORE >> it; echo two", env={"MORE": "more"}),
        step("read", "cat it; echo [$MORE]"),
    )
    (ended,) = agent.wait_ended()

    assert ended[3:6] == ["exited", 0, None]
    assert keeper.output("7") == "one\ntwo\n1 write\n2 add more\n[]\n"
    rows = agent.steps[KEY]
    assert codes(rows) == [0, 0, 0]
    assert [row[OUT] for row in rows] == [0, 4, 8]
    assert [row[ERR] for row in rows] == [0, 5, 5]
    times = [time for row in rows for time in row[:2]]
    assert times == sorted(times)


def test_the_first_failed_step_ends_the_attempt(keeper: Keeper, agent: Agent) -> None:
    run(agent, step("a", "true"), step("b", "echo b"), step("c", "exit 3"), step("d", "echo d"))
    (ended,) = agent.wait_ended()

    assert ended[3:6] == ["exited", 3, None]
    assert ended[-1] == "step 3 of 4, c: exit 3"
    assert codes(agent.steps[KEY]) == [0, 0, 3]
    assert keeper.output("7") == "b\n"


@pytest.mark.parametrize("before", [0, 2])
def test_a_step_that_cannot_be_started_ends_the_attempt(keeper: Keeper, agent: Agent, before: int) -> None:
    earlier = [step(f"s{number}", "echo kept") for number in range(before)]
    run(agent, *earlier, {"name": "gone", "argv": ["no-such-program"]}, step("after", "true"))
    (ended,) = agent.wait_ended()

    assert ended[3:5] == ["exited", 127]
    assert ended[-1] == f"step {before + 1} of {before + 2}, gone: command not found: no-such-program"
    assert codes(agent.steps[KEY]) == [0] * before + [127]
    assert not before or keeper.output("7") == "kept\n" * before


def test_a_stop_in_the_second_step_starts_no_third(keeper: Keeper, agent: Agent) -> None:
    run(agent, step("a", "true"), step("b", "echo here; sleep 600"), step("c", "echo never"))
    agent.wait_started()
    wait_until(lambda: keeper.output("7") == "here\n", "the second step")
    agent.stop(["7", 0, 1])
    (ended,) = agent.wait_ended()

    assert ended[3] == "stopped"
    rows = agent.steps[KEY]
    assert [row[SIGNAL] for row in rows] == [None, signal.SIGTERM]
    assert keeper.output("7") == "here\n"
    assert not keeper.work()


def test_a_stop_that_comes_while_a_step_ends_starts_no_further_one(agent: Agent) -> None:
    """Many attempts of many short steps are stopped at a random moment."""
    tasks = [[index, 1, 1] for index in range(20)]
    steps = [step(f"s{number}", "sleep 600" if number == 90 else "true") for number in range(100)]
    agent.start("7", "x", steps=steps, tasks=tasks, count=20, needs={"cpu": 1})
    agent.wait_started(20)
    agent.stop(*(["7", index, 1] for index in range(20)))
    agent.wait_ended(20)

    assert {row[3] for row in agent.ended} == {"stopped"}
    assert all(len(agent.steps["7", index, 1]) < 100 for index in range(20))


def test_a_step_over_its_time_limit_ends_the_attempt(agent: Agent) -> None:
    run(agent, step("a", "true", timeout_ms=60_000), step("b", "sleep 600", timeout_ms=50), step("c", "true"))
    (ended,) = agent.wait_ended()

    assert ended[3] == "timed_out"
    assert ended[-1] == "step 2 of 3, b: over its 0.05 s"
    assert [row[SIGNAL] for row in agent.steps[KEY]] == [None, signal.SIGTERM]


def test_the_time_limit_of_a_step_counts_from_its_start(agent: Agent) -> None:
    run(
        agent, *(step(f"s{number}", "sleep 0.2", timeout_ms=30_000) for number in range(3)), timeout_ms=60_000
    )
    (ended,) = agent.wait_ended()

    assert ended[3:5] == ["exited", 0]


def test_the_time_limit_of_the_attempt_holds_for_all_steps_together(agent: Agent) -> None:
    run(agent, step("a", "true"), step("b", "sleep 600"), timeout_ms=100)
    (ended,) = agent.wait_ended()

    assert ended[3] == "timed_out"


def test_steps_go_on_without_an_agent(keeper: Keeper, agent: Agent, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waiting = f"until [ -e {gate} ]; do sleep 0.01; done"
    run(agent, step("a", waiting), step("b", "true"), step("c", f"echo done > {tmp_path}/c; exit 4"))
    agent.wait_started()
    agent.close()
    gate.touch()
    wait_until((tmp_path / "c").exists, "the third step")
    wait_until(lambda: not keeper.work(), "its end")

    later = keeper.agent()
    state = later.hello()
    ended = state["ended"] or later.wait_ended()
    assert [row[3:5] for row in ended] == [["exited", 4]]
    steps = {tuple(row[:3]): row[3] for row in state["steps"]} | later.steps
    assert codes(steps[KEY]) == [0, 0, 4]


def test_records_of_steps_outlive_the_keeper(keeper: Keeper, agent: Agent) -> None:
    run(agent, step("a", "echo a"), step("b", "sleep 600"), step("c", "true"))
    while len(agent.steps.get(KEY, [])) < 2:
        agent.receive()
    keeper.kill()
    keeper.start()
    state = keeper.agent().hello()

    assert [row[3] for row in state["ended"]] == ["lost"]
    ((*key, rows),) = state["steps"]
    assert tuple(key) == KEY
    assert codes(rows) == [0, None]
    assert rows[1][1] == 0


def test_an_acknowledged_result_drops_its_steps(keeper: Keeper, agent: Agent) -> None:
    run(agent, step("a", "true"), step("b", "true"))
    agent.wait_ended()
    agent.send(op="ack", attempts=[list(KEY)])
    state = keeper.agent().hello()

    assert (state["ended"], state["steps"]) == ([], [])


def test_processes_left_by_a_step_live_until_the_last_step_ends(keeper: Keeper, agent: Agent) -> None:
    server = "echo $$ > pid; exec sleep 600"
    run(
        agent,
        step("serve", f"setsid sh -c '{server}' > /dev/null 2>&1 & until [ -s pid ]; do sleep 0.01; done"),
        step("use", "kill -0 $(cat pid) && echo alive"),
    )
    agent.wait_ended()

    assert keeper.output("7") == "alive\n"
    wait_until(lambda: not keeper.work(), "the sweep")


def test_usage_of_steps_adds_up(agent: Agent) -> None:
    burn = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"
    run(agent, step("a", burn), step("b", "true"))
    (ended,) = agent.wait_ended()

    cpu_us, ran_us = ended[9], ended[8]
    (first_ms, *_), (second_ms, *_) = agent.steps[KEY]
    assert cpu_us > 1000
    assert ran_us > (second_ms - first_ms - 1) * 1000  # from before the first began until after the second


@pytest.mark.parametrize("ending", ["exited", "stopped", "timed_out"])
def test_a_step_waits_for_a_process_that_the_node_cannot_spare(
    keeper: Keeper, agent: Agent, tmp_path: Path, ending: str
) -> None:
    waiting = f"until [ -e {tmp_path}/go ]; do :; done"
    more = {"timeout_ms": 10_000} if ending == "timed_out" else {}
    run(agent, step("a", waiting), step("b", "echo b"), **more)
    agent.wait_started()
    starve(keeper, agent, most=1)
    (tmp_path / "go").touch()
    wait_until(lambda: not keeper.children(), "the end of the first step, and that the keeper knows of it")
    if ending == "exited":
        starve(keeper, agent, most=10_000)
    if ending == "stopped":
        agent.stop(list(KEY))
    (ended,) = agent.wait_ended()

    assert ended[3] == ending
    assert codes(agent.steps[KEY]) == [0, 0 if ending == "exited" else None]
    assert keeper.output("7") == ("b\n" if ending == "exited" else "")
    starve(keeper, agent, most=10_000)


def starve(keeper: Keeper, agent: Agent, most: int) -> None:
    """Limit the keeper's processes by a cgroup, which also holds for root."""
    if os.geteuid() == 0:
        agent.send(op="configure", node="n1", amounts=AMOUNTS, gpus=[], pids_max=most)
        agent.send(op="hello", protocol=wire.PROTOCOL)
        agent.receive_op("state")
    else:
        hard = resource.prlimit(keeper.process.pid, resource.RLIMIT_NPROC)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(keeper.process.pid, resource.RLIMIT_NPROC, (soft, hard))
