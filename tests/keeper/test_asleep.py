"""A keeper that slept through the end of its work, and through what was to come after it."""

import signal
import time
from pathlib import Path

from tests.keeper.conftest import Agent, Keeper, wait_until

LIMIT_MS = 600


def sleep_through(keeper: Keeper, agent: Agent) -> None:
    """Until its work has ended by itself, and the time limit is over."""
    (row,) = agent.wait_started()
    pid = next(one for one in keeper.work() if _parent(one) == keeper.process.pid)
    keeper.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: _state(pid) == "Z", "the end of the work")
    wait_until(lambda: time.time_ns() // 1_000_000 > row[3] + 2 * LIMIT_MS, "the end of its time")


def test_what_ended_in_time_is_not_over_its_time(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sleep", "0.2", timeout_ms=LIMIT_MS)
    sleep_through(keeper, agent)
    keeper.process.send_signal(signal.SIGCONT)

    assert agent.wait_ended()[0][3:6] == ["exited", 0, None]


def test_what_ended_by_itself_was_not_stopped(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sleep", "0.2")
    sleep_through(keeper, agent)
    agent.stop(["7", 0, 1])
    keeper.process.send_signal(signal.SIGCONT)

    assert agent.wait_ended()[0][3:6] == ["exited", 0, None]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])
