"""A keeper that slept through the end of its work, and through what was to come after it."""

import signal
import time
from pathlib import Path

from tests.keeper.conftest import Agent, Keeper, wait_until

LIMIT_MS = 3000  # long enough that a busy machine stops the keeper before


def begin(agent: Agent, gate: Path, timeout_ms: int | None = None) -> int:
    """Work that ends by itself once the gate is open; when it was started, by the wall clock."""
    agent.start("7", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done", timeout_ms=timeout_ms)
    (row,) = agent.wait_started()
    return int(row[3])


def sleep_through_its_end(keeper: Keeper, gate: Path) -> None:
    pid = next(one for one in keeper.work() if _parent(one) == keeper.process.pid)
    keeper.process.send_signal(signal.SIGSTOP)
    gate.touch()
    wait_until(lambda: _state(pid) == "Z", "the end of the work")


def test_what_ended_in_time_is_not_over_its_time(keeper: Keeper, agent: Agent, tmp_path: Path) -> None:
    started_ms = begin(agent, tmp_path / "gate", LIMIT_MS)
    sleep_through_its_end(keeper, tmp_path / "gate")
    wait_until(lambda: time.time_ns() // 1_000_000 > started_ms + LIMIT_MS + 200, "the end of its time")
    keeper.process.send_signal(signal.SIGCONT)

    assert agent.wait_ended()[0][3:6] == ["exited", 0, None]


def test_what_ended_by_itself_was_not_stopped(keeper: Keeper, agent: Agent, tmp_path: Path) -> None:
    begin(agent, tmp_path / "gate")
    sleep_through_its_end(keeper, tmp_path / "gate")
    agent.stop(["7", 0, 1])
    keeper.process.send_signal(signal.SIGCONT)

    assert agent.wait_ended()[0][3:6] == ["exited", 0, None]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _parent(pid: int) -> int:
    """0: it has ended meanwhile, as the pauses of the work do."""
    try:
        return int(_stat(pid)[1])
    except OSError:
        return 0
