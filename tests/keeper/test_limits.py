"""Limits of attempts: an attempt that exceeds one is killed alone, and the reason is reported."""

import os
import signal
import sys
from pathlib import Path

import pytest

from rota.keeper.limits.cgroup_v2 import KEEPER_CGROUP
from rota.keeper.limits.detect import find_cgroups
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.keeper.test_stop import STUBBORN, is_alive, wait_until_ready

MIB = 1 << 20
EATS = "import sys; data = bytearray(int(sys.argv[1])); print('had it')"
FORKS = """
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except BlockingIOError:
    print("stopped at", made, flush=True)
time.sleep(600)
"""
MANY = int(os.environ.get("ROTA_TEST_CROWD", "1000"))  # fewer on a slow kernel
# Grandchildren, each in a session of its own, that ignore SIGTERM.
CROWD = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
read_fd, write_fd = os.pipe()
for _ in range({MANY}):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write_fd, b"!")
            time.sleep(600)
        os._exit(0)
    os.wait()
for _ in range({MANY}):
    os.read(read_fd, 1)
print("ready", flush=True)
time.sleep(600)
"""


SESSIONS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        print("full", flush=True)
        time.sleep(0.001)
"""


def label(root: Path) -> str:
    """A keeper with what the machine supports: cgroups as root, otherwise polling."""
    (root / "probe").mkdir()
    groups = find_cgroups(str(root / "probe"), "probe")
    groups.close()
    return groups.label


def test_too_much_memory_ends_that_attempt_only_and_is_the_reason(agent: Agent) -> None:
    agent.start("7", sys.executable, "-c", EATS, str(512 * MIB), limits={"memory": 64 * MIB})
    agent.start("8", "sleep", "600", grace_ms=0)
    agent.start("9", sys.executable, "-c", EATS, str(MIB), needs={"cpu": 1000, "memory": 64 * MIB})
    ended = {row[0]: row for row in agent.wait_ended(2)}

    assert ended["7"][3:6] == ["exited", None, signal.SIGKILL]
    assert ended["7"][11].startswith("out of memory: limit 64 MiB, peak ")
    assert ended["7"][10] >= 64 * 1024 * 0.9
    assert ended["9"][3:5] == ["exited", 0]
    assert "8" not in ended


def test_the_requested_memory_is_the_limit(agent: Agent) -> None:
    agent.start("7", sys.executable, "-c", EATS, str(512 * MIB), needs={"cpu": 1000, "memory": 64 * MIB})

    assert agent.wait_ended()[0][11].startswith("out of memory: limit 64 MiB")


def test_a_child_without_memory_ends_its_whole_attempt(keeper: Keeper, agent: Agent) -> None:
    script = f'{sys.executable} -c "{EATS}" {512 * MIB}; sleep 600'
    agent.start("7", "sh", "-c", script, limits={"memory": 64 * MIB})

    assert agent.wait_ended()[0][11].startswith("out of memory")
    wait_until(lambda: not keeper.work(), "the end of the rest")


def test_too_many_processes_cannot_be_created(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", sys.executable, "-c", FORKS, limits={"pids": 20}, grace_ms=0)
    agent.start("8", "true")
    if label(keeper.root) == "polling":
        reasons = [row[11] for row in agent.wait_ended(2)]
        assert any(reason and reason.startswith("too many processes: limit 20") for reason in reasons)
        return

    assert agent.wait_ended()[0][:5] == ["8", 0, 1, "exited", 0]
    wait_until(lambda: "stopped at 19" in keeper.output("7"), "the end of the forks")
    agent.stop(["7", 0, 1])
    agent.wait_ended(2)
    assert keeper.work() == []


def test_a_limit_of_one_process_is_enough_to_run(agent: Agent) -> None:
    agent.start("7", "true", limits={"pids": 1})

    assert agent.wait_ended()[0][3:5] == ["exited", 0]


@pytest.mark.parametrize("limits", [{}, {"pids": 5000}], ids=["by marks", "by its group"])
def test_a_thousand_grandchildren_that_ignore_signals_are_killed(
    keeper: Keeper, agent: Agent, limits: dict[str, int]
) -> None:
    agent.start("7", sys.executable, "-c", CROWD, grace_ms=100, limits=limits)
    wait_until_ready(keeper, agent)
    assert len(keeper.work()) == MANY + 1
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][3:6] == ["stopped", None, signal.SIGKILL]
    assert keeper.work() == []


def test_an_orphan_in_a_cgroup_is_killed_with_its_attempt(keeper: Keeper, agent: Agent) -> None:
    hidden = "setsid -f env -i sh -c 'echo $$; >said; exec sleep 600'; until [ -e said ]; do sleep 0.01; done"
    agent.start("7", "sh", "-c", hidden, limits={"pids": 50})
    agent.wait_ended()
    pid = int(keeper.output("7"))

    wait_until(lambda: not is_alive(pid), "the end of the orphan")


def test_the_next_keeper_finds_everything_that_a_killed_one_left(keeper: Keeper, agent: Agent) -> None:
    hidden = "setsid -f env -i sh -c 'echo $$; exec sleep 600'; sleep 600"
    agent.start("7", "sh", "-c", hidden, limits={"pids": 50})
    agent.start("8", "sh", "-c", hidden)
    agent.start("9", sys.executable, "-c", STUBBORN + "time.sleep(600)")
    agent.wait_started(3)
    wait_until(lambda: all(keeper.output(job) for job in "789"), "their word")
    hiding = [int(keeper.output(job)) for job in "78"]
    grouped = label(keeper.root) != "polling"
    keeper.kill()
    keeper.start()

    assert {row[3] for row in keeper.agent().hello()["ended"]} == {"lost"}
    assert keeper.work() == []
    if grouped:  # without cgroups their processes cannot be told apart
        wait_until(lambda: not any(map(is_alive, hiding)), "the end of those without a mark")
    for pid in filter(is_alive, hiding):
        os.kill(pid, signal.SIGKILL)


def test_cgroups_are_removed_with_their_attempts(keeper: Keeper, agent: Agent) -> None:
    if label(keeper.root) == "polling":
        assert not (keeper.root / "groups").exists()
        return
    agent.start("7", "true", tasks=[[index, 1, 0] for index in range(50)], limits={"pids": 9, "cpu": 500})
    agent.wait_ended(50)

    assert {row[4] for row in agent.ended} == {0}
    parents = [Path(line) for line in (keeper.root / "groups").read_text().splitlines()]

    def there() -> list[Path]:
        return [
            cgroup
            for path in parents
            for cgroup in path.iterdir()
            if cgroup.is_dir() and cgroup.name != KEEPER_CGROUP
        ]

    wait_until(lambda: not there(), "empty groups")


def test_the_agent_is_told_which_limits_are_enforced(agent: Agent) -> None:
    agent.start("7", "true", limits={"swap": 1})

    assert agent.receive_op("error")["reason"] == "spec.limits.swap: want one of memory, cpu, pids"


def test_limits_are_enforced_as_the_machine_supports_it(agent: Agent, keeper: Keeper) -> None:
    """In the test kernel limits must be enforced by cgroups, not by polling."""
    labels = keeper.agent().hello()["labels"]

    assert (
        labels["limits"] in (os.environ.get("ROTA_TEST_OWN_KERNEL") or "cgroup-v2 cgroup-v1 polling").split()
    )
    assert labels["limits"] == "polling" or labels["limited"] == "memory,pids,cpu"


def test_a_fork_bomb_of_sessions_without_limits_is_killed(keeper: Keeper) -> None:
    """Each child starts a session of its own; the node's limit bounds their number."""
    if label(keeper.root) == "polling":
        return  # nothing bounds it there
    agent = keeper.agent()
    agent.hello(pids_max=120)
    agent.start("7", sys.executable, "-c", SESSIONS, grace_ms=0)
    agent.wait_started()
    wait_until(lambda: "full" in keeper.output("7"), "a bomb that has gone off")
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][3] == "stopped"
    assert keeper.work() == []
    agent.start("8", "true")
    assert agent.wait_ended(2)[1][3:5] == ["exited", 0]
