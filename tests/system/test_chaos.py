"""`rota dev --chaos`: nodes are killed, frozen and cut off all the time, and everything ends well."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

import rota
from rota.client.cluster import Cluster, connect
from rota.client.views import Event
from rota.testing.processes import kill_all, until, with_argument
from rota.wiring import chaos
from rota.wiring.chaos import Act, Kind
from tests.system.witness import Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
LINE = (sys.executable, "-m", "rota.cli.main")
START_SECONDS = STOP_SECONDS = 120
TASKS = 300
PACE = 0.2


def test_everything_ends_well_whatever_happens_to_the_nodes(dev: "ChaoticDev", witness: Witness) -> None:
    dev.start(nodes=5, seed=1, pace=PACE)

    ran = dev.rota("run", "--quiet", "--array", f"0-{TASKS - 1}", "--", *witness.script("sleep 0.5"))
    until(lambda: [kind for kind in Kind if not dev.has_done(kind)] == [], "each kind of act", 120)
    with dev.connected() as cluster:
        results = {task.index: task.exit_code for task in cluster.job("last").tasks()}
        ended = cluster.events(1000, kind="task.ended")

    assert ran.returncode == 0, ran.stderr + dev.told()
    assert witness.starts().keys() == set(range(TASKS))
    assert results == dict.fromkeys(range(TASKS), 0)
    assert successes(ended) == dict.fromkeys(range(TASKS), 1)
    until(lambda: "is suspect: silent for" in dev.told(), "what Rota does is told beside it")

    assert dev.end(signal.SIGINT) == 0
    assert "Traceback" not in dev.told()
    until(lambda: dev.left() == [], "nothing is left", STOP_SECONDS)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_frozen_nodes_however_dev_ends(
    dev: "ChaoticDev", witness: Witness, signum: signal.Signals
) -> None:
    dev.start(nodes=2, seed=seed_that_begins_with(Kind.FREEZE_BOTH), pace=PACE)
    dev.rota("run", "--detach", "--array", "0-3", "--", *witness.script("sleep 1000"))
    until(lambda: dev.has_done(Kind.FREEZE_BOTH), "an agent and a keeper are frozen")

    dev.end(signum)

    until(lambda: dev.left() == [], "nothing is left", STOP_SECONDS)


def test_nothing_is_left_of_a_node_whose_agent_is_dead(dev: "ChaoticDev", witness: Witness) -> None:
    dev.start(nodes=2, seed=seed_that_begins_with(Kind.KILL_AGENT), pace=PACE)
    dev.rota("run", "--detach", "--array", "0-3", "--", *witness.script("sleep 1000"))
    until(lambda: dev.has_done(Kind.KILL_AGENT), "an agent is killed")

    assert dev.end(signal.SIGINT) == 0
    until(lambda: dev.left() == [], "nothing is left", STOP_SECONDS)


@dataclass
class ChaoticDev:
    """One dev cluster that harms itself; what it tells goes into a file."""

    directory: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, nodes: int, seed: int, pace: float) -> None:
        """Returns when it is ready."""
        given = ("--nodes", str(nodes), "--chaos", "--chaos-seed", str(seed), "--chaos-pace", str(pace))
        place = ("--port", "0", "--data-dir", str(self.directory / "data"))
        with self._diary.open("wb") as diary:
            self.process = subprocess.Popen(
                [*LINE, "dev", *given, *place], env=self._environment, stderr=diary, start_new_session=True
            )
        until(lambda: f"--chaos-seed {seed}" in self.told(), "the cluster is ready", START_SECONDS)

    def rota(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LINE, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )

    def connected(self) -> Cluster:
        context = tomllib.loads((self.directory / "contexts" / "local.toml").read_text())
        return connect(context["addr"], token=Path(context["token_file"]).read_text().strip())

    def told(self) -> str:
        return self._diary.read_text()

    def has_done(self, kind: Kind) -> bool:
        """Whether its sentence stands there, whichever the node and however long."""
        sentence = re.escape(chaos.said_of_harm(Act(kind, "NODE", 0.0)))
        pattern = sentence.replace("NODE", r"\S+").replace(re.escape("0.0 s"), r"[\d.]+ s")
        return re.search(f"{pattern}$", self.told(), re.MULTILINE) is not None

    def end(self, signum: int) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(STOP_SECONDS)

    def left(self) -> list[int]:
        """Of the cluster and of the work."""
        return with_argument(f"{self.directory}/")

    @property
    def _diary(self) -> Path:
        return self.directory / "dev.log"

    @property
    def _environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(rota.__file__).parents[1]),
            "ROTA_CONFIG": str(self.directory / "config.toml"),
        }


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[ChaoticDev]:
    """Whatever still runs in it when the test is over is ended."""
    chaotic = ChaoticDev(tmp_path)
    yield chaotic
    kill_all(chaotic.left)
    if chaotic.process is not None:
        chaotic.process.wait()


def seed_that_begins_with(kind: Kind) -> int:
    """And gives enough time to look."""
    for seed in count():
        first = chaos.decide(chaos.Chaos(seed), {"node-1": True, "node-2": True}, 0).harm
        if first is not None and first.kind is kind and first.seconds > chaos.LOST_SECONDS:
            return seed
    raise AssertionError("there is always one more")


def successes(events: list[Event]) -> Counter[int]:
    """How often each task's success was recorded."""
    ranges = [event.indices or () for event in events if "succeeded" in event.why]
    return Counter(index for pairs in ranges for first, last in pairs for index in range(first, last + 1))
