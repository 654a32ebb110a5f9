"""Run leases: attempts end with their lease, and with their keeper."""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.keeper.process.pid_namespace import PidNamespaces
from rota.testing import processes
from rota.testing.processes import zombies_of
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.machine import needs

LEASE_MS = 8000
ONE: dict[str, Any] = {"run": "one_at_a_time", "lease_ms": 60_000}
# An ordinary user can hold leases in a user namespace in which it is root, if the machine allows that.
WORLD = ["unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child"]
IS_POWERFUL = PidNamespaces("").label is not None
can_hold = needs("pid namespaces")
BESIDE = "setsid sh -c 'env -i sleep 600' & "  # another session, without a marker


class PowerlessKeeper(Keeper):
    """A keeper without privileges, also if the tests run as root."""

    def command(self) -> list[str]:
        first = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)"  # drop CAP_SYS_ADMIN
        return [sys.executable, "-c", f"{first}; os.execv(sys.argv[1], sys.argv[1:])", *super().command()]


class OwnWorldKeeper(Keeper):
    """A keeper in a namespace with another process that outlives it, so that the namespace does not end."""

    def command(self) -> list[str]:
        buries = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.pause()"
        return [*WORLD, "sh", "-c", f'"$@" & exec "$0" -c "{buries}"', sys.executable, *super().command()]

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, signum: int) -> None:
        command = "\0".join(super().command()).encode() + b"\0"
        for pid in processes.with_argument(f"rota.keeper\0{self.root}\0"):
            with contextlib.suppress(OSError):  # it has ended
                if Path(f"/proc/{pid}/cmdline").read_bytes() == command:
                    os.kill(pid, signum)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        super().close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """A keeper that can hold leases, also if the tests do not run as root."""
    keeper = Keeper(tmp_path) if IS_POWERFUL else OwnWorldKeeper(tmp_path)
    try:
        yield keeper
    finally:
        keeper.close()


@pytest.fixture
def powerless(tmp_path: Path) -> Iterator[Keeper]:
    keeper = PowerlessKeeper(tmp_path)
    try:
        yield keeper
    finally:
        keeper.close()


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def renew(agent: Agent, said_ns: int | None = None) -> None:
    agent.send(op="renew", said_ns=now_ns() if said_ns is None else said_ns)


def start_leased(agent: Agent, *argv: str, **spec: Any) -> None:
    renew(agent)
    agent.start("7", *argv, **ONE | spec)
    agent.wait_started()


class Inside:
    """The pids of living processes in pid namespaces of this keeper, with or without a marker."""

    def __init__(self, keeper: Keeper) -> None:
        own = os.readlink("/proc/self/ns/pid")
        self._namespaces = {_namespace(pid) for pid in keeper.work()} - {own, None}
        assert self._namespaces

    def pids(self) -> list[int]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in pids if _namespace(pid) in self._namespaces and _state(pid) not in (None, "Z")]

    def first(self) -> int:
        """The pid of the init process of the only namespace."""
        numbers = {pid: Path(f"/proc/{pid}/status").read_text() for pid in self.pids()}
        (pid,) = (pid for pid, text in numbers.items() if re.search(r"NSpid:.*\t1\n", text))
        return pid


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # it has ended
        return None


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


@can_hold
def test_a_keeper_reports_that_it_supports_leases(keeper: Keeper) -> None:
    assert keeper.agent().hello()["labels"]["leases"] == "pid-namespace"


def test_a_keeper_without_pid_namespaces_refuses_leases(powerless: Keeper) -> None:
    agent = powerless.agent()
    state = agent.hello()
    renew(agent)
    agent.start("7", "true", **ONE)

    assert "leases" not in state["labels"]
    assert agent.wait_refused() == [["7", 0, 1, "this node cannot hold run leases"]]


@can_hold
def test_an_attempt_with_a_lease_runs_and_ends_as_any_other(keeper: Keeper, agent: Agent) -> None:
    renew(agent)
    agent.start("7", "sh", "-c", "echo $ROTA_ATTEMPT; exit 3", **ONE)

    assert agent.wait_ended()[0][:6] == ["7", 0, 1, "exited", 3, None]
    assert keeper.output("7") == "1\n"
    assert keeper.work() == []


@can_hold
def test_a_stop_signal_reaches_an_attempt_with_a_lease(keeper: Keeper, agent: Agent) -> None:
    script = "trap 'echo heard; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    start_leased(agent, "sh", "-c", script, grace_ms=60_000)
    wait_until(lambda: keeper.output("7") == "ready\n", "the trap is set")
    agent.stop(["7", 0, 1])

    assert agent.wait_ended()[0][3:6] == ["stopped", 0, None]
    assert keeper.output("7") == "ready\nheard\n"
    assert keeper.work() == []


@can_hold
def test_without_a_renewal_an_attempt_is_killed_before_its_lease_ends(keeper: Keeper, agent: Agent) -> None:
    """The attempt prints how long it lived, by the boot-time clock."""
    said_ns = now_ns()
    script = f"trap '' TERM; {BESIDE} while :; do cat /proc/uptime; sleep 0.05; done"
    start_leased(agent, "sh", "-c", script, grace_ms=600_000, lease_ms=LEASE_MS)
    inside = Inside(keeper)
    (row,) = agent.wait_ended()
    lived_seconds = float(keeper.output("7").splitlines()[-1].split()[0])

    assert row[3] == "lost"
    assert row[-1] == "its run lease of 8 s ran out: the control plane did not answer"
    assert lived_seconds < said_ns / 1e9 + LEASE_MS / 1000
    assert inside.pids() == []


@can_hold
def test_renewals_extend_a_lease_and_old_ones_do_not_shorten_it(keeper: Keeper, agent: Agent) -> None:
    first_ns = now_ns()
    start_leased(agent, "sleep", "600", lease_ms=LEASE_MS)
    while now_ns() < first_ns + LEASE_MS * 1_000_000:
        renew(agent)
        renew(agent, first_ns)
        time.sleep(0.2)
    agent.sync()

    assert agent.ended == []
    assert keeper.work()


@can_hold
def test_an_expired_lease_is_not_renewed(keeper: Keeper, agent: Agent) -> None:
    """The keeper is suspended beyond the lease, and finds a renewal when it wakes."""
    start_leased(agent, "sleep", "600", lease_ms=LEASE_MS)
    keeper.signal(signal.SIGSTOP)
    asleep_ns = now_ns()
    wait_until(lambda: now_ns() > asleep_ns + LEASE_MS * 1_000_000, "the end of the lease")
    renew(agent)
    keeper.signal(signal.SIGCONT)

    assert agent.wait_ended()[0][3] == "lost"


@can_hold
def test_an_attempt_with_an_expired_lease_is_not_started(agent: Agent) -> None:
    renew(agent, now_ns() - LEASE_MS * 1_000_000)
    agent.start("7", "true", **ONE | {"lease_ms": LEASE_MS})

    assert agent.wait_refused() == [["7", 0, 1, "its run lease ran out before it could start"]]


@can_hold
def test_everything_under_a_lease_dies_with_the_keeper(keeper: Keeper, agent: Agent) -> None:
    start_leased(agent, "sh", "-c", f"{BESIDE} sleep 600")
    inside = Inside(keeper)
    wait_until(lambda: len(inside.pids()) >= 4, "the first one, the shell, and both sleep")
    keeper.kill()

    wait_until(lambda: inside.pids() == [], "nobody is left")


@can_hold
def test_orphans_in_a_pid_namespace_are_reaped(keeper: Keeper, agent: Agent) -> None:
    script = "for i in 1 2 3; do (sh -c 'sleep 0.2; echo bye' &); done; exec sleep 600"
    start_leased(agent, "sh", "-c", script)
    inside = Inside(keeper)

    wait_until(lambda: keeper.output("7") == 3 * "bye\n", "the orphans say good-bye")
    wait_until(lambda: len(inside.pids()) == 2, "the first process and the last sleep are left")
    first = inside.first()
    wait_until(lambda: zombies_of(first) == [], "nobody waits to be buried")


@can_hold
def test_the_steps_of_an_attempt_share_a_pid_namespace(keeper: Keeper, agent: Agent) -> None:
    steps = [{"name": name, "argv": ["sh", "-c", "readlink /proc/self/ns/pid"]} for name in ("one", "two")]
    renew(agent)
    agent.start("7", "true", **ONE, steps=steps)
    (row,) = agent.wait_ended()
    first, second = keeper.output("7").split()

    assert row[3:5] == ["exited", 0]
    assert first == second != os.readlink("/proc/self/ns/pid")
    assert keeper.work() == []


def test_a_lease_is_required_in_milliseconds(agent: Agent) -> None:
    agent.start("7", "true", run="one_at_a_time")

    assert "spec.lease_ms" in agent.receive_op("error")["reason"]
