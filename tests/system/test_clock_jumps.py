"""The wall clock is set by an hour, back and forth: only shown times and crons follow it."""

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.machine import require
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system

HOUR = 3600
LATER, SAME, EARLIER = HOUR, 0, -HOUR


class WallClock:
    """The wall clock of processes started with it; their boot-time clock is the machine's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_bytes(struct.pack("l", 0))

    def set_ahead(self, seconds: int) -> None:
        with self.path.open("r+b") as file:
            file.write(struct.pack("l", seconds))


def with_wall_clock(directory: Path, clock: WallClock) -> dict[str, str]:
    """The environment of a process that has this clock."""
    require("C compiler")
    library, source = directory / "wall_clock.so", Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "WALL_CLOCK": str(clock.path)}


@pytest.fixture
def server_clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "server-clock")


@pytest.fixture
def node_clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "node-clock")


@pytest.fixture
def alone(tmp_path: Path, server_clock: WallClock, node_clock: WallClock) -> Iterator[LocalCluster]:
    """One node, whose agent and keeper have another clock than the server."""
    settings = with_wall_clock(tmp_path, server_clock)
    cluster = LocalCluster(tmp_path / "cluster", nodes=1, settings=settings)
    try:
        cluster.start_server()
        cluster.start_agent(1, WALL_CLOCK=str(node_clock.path))
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.close()


def test_clock_jumps_end_nothing_repeat_nothing_and_lose_no_node(
    alone: LocalCluster, server_clock: WallClock, node_clock: WallClock, tmp_path: Path, gate: Gate
) -> None:
    """Both clocks or one; the server restarts each time, and the agent once, with a clock put back."""
    assert all(b"wall_clock.so" in Path(f"/proc/{pid}/maps").read_bytes() for pid in alone.processes())
    limited, beats, runs = Witness(tmp_path / "limited"), Beats(tmp_path / "beats"), tmp_path / "runs"
    leases = "leases" in alone.node(1)["labels"]  # where it cannot keep them it takes no such work
    mode = {"run": "one_at_a_time", "lease": "60s"} if leases else {}
    jobs = [
        alone.submit(*limited.script(gate.wait), timeout="10m", queue_timeout="10m", grace=0),
        alone.submit("sh", "-c", f"{beats.command} & {gate.wait}", **mode),
        alone.submit("true", where=["number == 2"], queue_timeout="10m"),
    ]
    hourly = {"command": ["sh", "-c", f"echo $ROTA_CRON_INSTANT >> {runs}"]}
    cron = {"name": "hourly", "schedule": "0 * * * *", "missed": "once", "job": hourly}
    assert alone.call("POST", "/v1/crons", cron).status == 201
    beats.wait_for_more()
    for server, node in ((LATER, LATER), (EARLIER, EARLIER), (LATER, SAME)):
        server_clock.set_ahead(server)
        node_clock.set_ahead(node)
        beats.wait_for_more()
        alone.kill_server()
        if node == EARLIER:
            alone.kill_agent(1)
            alone.start_agent(1, WALL_CLOCK=str(node_clock.path))
        alone.start_server()
        alone.wait_for_nodes()
        assert alone.rota("run", "--no-workdir", "--", "true").code == 0
        if server == LATER:
            until(runs.exists, "the run of the hour that was passed over")
    states = [alone.call("GET", f"/v1/jobs/{job}").body["state"] for job in jobs]
    instants = runs.read_text().split()
    events = {event["kind"] for event in alone.call("GET", "/v1/events?limit=1000").body["events"]}
    gate.open()
    until(lambda: alone.count(jobs[0], "succeeded") == 1, "it ends by itself")

    assert states == ["active"] * 3
    assert len(instants) == len(set(instants)), "no instant has two runs"
    assert limited.starts() == {0: 1}
    assert beats.starts() == 1
    assert "node.joined" in events
    assert "node.lost" not in events


class Beats:
    """A task that records its progress repeatedly."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def command(self) -> str:
        return f"echo start >> {self._path}; while :; do echo beat >> {self._path}; sleep 0.2; done"

    def starts(self) -> int:
        return self._lines().count("start")

    def wait_for_more(self) -> None:
        """Wait for as many records as some heartbeats of the node take."""
        before = len(self._lines())
        until(lambda: len(self._lines()) >= before + 10, "the work goes on", 60)

    def _lines(self) -> list[str]:
        return self._path.read_text().split() if self._path.exists() else []
