"""A keeper that is suspended while its attempts end."""

import signal
import time
from pathlib import Path

from tests.keeper.conftest import Agent, Keeper, wait_until

LIMIT_MS = 3000
# Stops its keeper when the file `go` exists, then ends by itself.
STOPS_ITS_KEEPER = ("sh", "-c", "until [ -e go ]; do sleep 0.01; done; kill -STOP $PPID")


def sleep_through(keeper: Keeper, agent: Agent) -> None:
    """Wait until the attempt has ended by itself."""
    agent.wait_started()
    (keeper.root / "work/7/go").touch()
    wait_until(lambda: _state(keeper.process.pid) == "T", "a keeper that sleeps")
    wait_until(lambda: not keeper.work(), "the end of the work")


def test_an_attempt_that_ended_in_time_is_not_timed_out(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", *STOPS_ITS_KEEPER, timeout_ms=LIMIT_MS)
    sleep_through(keeper, agent)
    started_ms = agent.started[0][3]
    wait_until(lambda: time.time_ns() // 1_000_000 > started_ms + LIMIT_MS, "the end of its time")
    keeper.process.send_signal(signal.SIGCONT)

    assert agent.wait_ended()[0][3:6] == ["exited", 0, None]


def test_an_attempt_that_ended_by_itself_was_not_stopped(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", *STOPS_ITS_KEEPER)
    sleep_through(keeper, agent)
    agent.stop(["7", 0, 1])
    keeper.process.send_signal(signal.SIGCONT)

    assert agent.wait_ended()[0][3:6] == ["exited", 0, None]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
