"""Stops and time limits, also of process trees that resist."""

import signal
import sys

from tests.keeper.conftest import Agent, Keeper, wait_until

# A child in a session of its own, twice forked, that ignores SIGTERM; the leader says when it is there.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
read_fd, write_fd = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write_fd, b"!")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(read_fd, 1)
print("ready", flush=True)
"""


def test_sigterm_ends_an_attempt_before_its_grace_is_over(agent: Agent) -> None:
    agent.start("7", "sleep", "600", grace_ms=600_000)
    agent.wait_started()
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][3:6] == ["stopped", None, signal.SIGTERM]


def test_an_attempt_that_exits_on_sigterm_keeps_its_exit_code(keeper: Keeper, agent: Agent) -> None:
    agent.start(
        "7", "sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done", grace_ms=60_000
    )
    wait_until_ready(keeper, agent)
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][3:6] == ["stopped", 5, None]


def test_an_attempt_that_ignores_sigterm_is_killed_after_the_grace(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", sys.executable, "-c", STUBBORN + "time.sleep(600)", grace_ms=200)
    wait_until_ready(keeper, agent)
    assert len(keeper.work()) == 2
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][3:6] == ["stopped", None, signal.SIGKILL]
    assert keeper.work() == []


def test_the_tree_has_its_grace_when_the_leader_ends_first(keeper: Keeper, agent: Agent) -> None:
    child = "trap 'sleep 0.2; echo saved; exit' TERM; echo ready; while :; do sleep 0.01; done"
    agent.start("7", "sh", "-c", f'sh -c "{child}" & wait', grace_ms=60_000)
    wait_until_ready(keeper, agent)
    agent.stop(["7", 0, 1])
    agent.wait_ended()

    assert keeper.output("7") == "ready\nsaved\n"
    assert keeper.work() == []


def test_processes_in_the_leaders_group_are_killed_with_it(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "sleep 600 & echo ready")

    assert agent.wait_ended()[0][3:5] == ["exited", 0]
    wait_until(lambda: not keeper.work(), "the end of the group")


def test_an_orphan_in_its_own_session_is_killed(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", sys.executable, "-c", STUBBORN)

    assert agent.wait_ended()[0][3:5] == ["exited", 0]
    wait_until(lambda: not keeper.work(), "the end of the orphan")


def test_an_orphan_of_a_live_attempt_is_not_killed(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", sys.executable, "-c", STUBBORN + "time.sleep(600)", grace_ms=0)
    agent.start("8", "sleep", "2.5")  # longer than two sweeps
    wait_until_ready(keeper, agent)
    while not any(row[0] == "8" for row in agent.ended):
        agent.receive()

    assert len(keeper.work()) == 2
    agent.stop(["7", 0, 1])
    agent.wait_ended(2)
    assert keeper.work() == []


def test_an_orphan_without_a_marker_is_killed(keeper: Keeper, agent: Agent) -> None:
    hidden = "setsid -f env -i sh -c 'echo $$; >said; exec sleep 600'; until [ -e said ]; do sleep 0.01; done"
    agent.start("7", "sh", "-c", hidden)
    agent.wait_ended()
    pid = int(keeper.output("7"))

    wait_until(lambda: not is_alive(pid), "the end of the orphan")


def test_a_time_limit_ends_the_attempt_as_timed_out(keeper: Keeper, agent: Agent) -> None:
    deaf = "trap '' TERM; setsid sleep 600 & while :; do sleep 0.05; done"
    agent.start("7", "sh", "-c", deaf, timeout_ms=5000, grace_ms=100)

    row = agent.wait_ended()[0]
    assert row[3:6] == ["timed_out", None, signal.SIGKILL]
    assert row[8] >= 5_100_000
    assert keeper.work() == []


def test_a_queued_attempt_is_withdrawn_and_never_starts(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sleep", "600", needs={"cpu": 4000}, grace_ms=0)
    agent.start("8", "true")
    agent.wait_started()
    agent.stop(["8", 0, 1])

    assert agent.wait_ended()[0][:7] == ["8", 0, 1, "withdrawn", None, None, None]
    agent.stop(["7", 0, 1])
    agent.wait_ended(2)
    assert not (keeper.root / "logs" / "8").exists()


def test_a_stop_of_an_unknown_attempt_is_answered(agent: Agent) -> None:
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][:4] == ["7", 0, 1, "unknown"]


def test_many_stops_at_once_do_not_wait_for_the_grace(keeper: Keeper) -> None:
    agent = keeper.agent()
    agent.hello(amounts={"cpu": 50_000})
    agent.start("7", "sleep", "600", tasks=[[index, 1, 1] for index in range(50)], grace_ms=600_000)
    agent.wait_started(50)
    agent.stop(*[["7", index, 1] for index in range(50)])
    agent.wait_ended(50)

    assert {(row[3], row[5]) for row in agent.ended} == {("stopped", signal.SIGTERM)}


def wait_until_ready(keeper: Keeper, agent: Agent) -> None:
    agent.wait_started()
    wait_until(lambda: "ready" in keeper.output("7"), "the work's own word that it is ready")


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
