"""`rota dev --chaos`: nodes are killed, frozen and cut off all the time, and all jobs succeed."""

import contextlib
import re
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from rota.client.views import Event
from rota.devtools import chaos
from rota.devtools.chaos import ChaosAct, ChaosKind
from rota.testing.processes import until
from tests.system.dev import STOP_SECONDS, Dev
from tests.system.witness_file import Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
TASKS = 300
PACE = 0.2


def test_all_jobs_succeed_under_chaos(dev: "ChaoticDev", witness: Witness) -> None:
    dev.disturb(nodes=5, seed=1)

    ran = dev.rota("run", "--quiet", "--array", f"0-{TASKS - 1}", "--", *witness.script("sleep 0.5"))
    until(lambda: [kind for kind in ChaosKind if not dev.has_done(kind)] == [], "each kind of act", 120)
    with dev.connected() as cluster:
        results = {task.index: task.exit_code for task in cluster.job("last").tasks()}
        ended = cluster.events(1000, kind="task.ended")

    assert ran.returncode == 0, ran.stderr + dev.output()
    assert witness.starts().keys() == set(range(TASKS))
    assert results == dict.fromkeys(range(TASKS), 0)
    assert successes(ended) == dict.fromkeys(range(TASKS), 1)
    until(lambda: "is suspect: silent for" in dev.output(), "what Rota does is told beside it")

    assert dev.end(signal.SIGINT) == 0
    assert "Traceback" not in dev.output()
    until(lambda: dev.left() == [], "nothing is left", STOP_SECONDS)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_no_process_of_a_frozen_node_is_left_however_dev_ends(
    dev: "ChaoticDev", witness: Witness, signum: signal.Signals
) -> None:
    dev.disturb(nodes=2, seed=seed_that_starts_with(ChaosKind.FREEZE_BOTH))
    dev.rota("run", "--detach", "--array", "0-3", "--", *witness.script("sleep 1000"))
    until(lambda: dev.has_done(ChaosKind.FREEZE_BOTH), "an agent and a keeper are frozen")

    dev.end(signum)

    until(lambda: dev.left() == [], "nothing is left", STOP_SECONDS)


def test_no_process_is_left_of_a_node_whose_agent_is_dead(dev: "ChaoticDev", witness: Witness) -> None:
    dev.disturb(nodes=2, seed=seed_that_starts_with(ChaosKind.KILL_AGENT))
    dev.rota("run", "--detach", "--array", "0-3", "--", *witness.script("sleep 1000"))
    until(lambda: dev.has_done(ChaosKind.KILL_AGENT), "an agent is killed")

    assert dev.end(signal.SIGINT) == 0
    until(lambda: dev.left() == [], "nothing is left", STOP_SECONDS)


class ChaoticDev(Dev):
    """A dev cluster with chaos."""

    def disturb(self, *, nodes: int, seed: int) -> None:
        """Wait until chaos has started."""
        self.start("--nodes", str(nodes), "--chaos", "--chaos-seed", str(seed), "--chaos-pace", str(PACE))
        until(lambda: f"--chaos-seed {seed}" in self.output(), "its nodes are disturbed")

    def has_done(self, kind: ChaosKind) -> bool:
        """Whether the sentence of this fault was printed, for any node and duration."""
        sentence = re.escape(chaos.describe_harm(ChaosAct(kind, "NODE", 0.0)))
        pattern = sentence.replace("NODE", r"\S+").replace(re.escape("0.0 s"), r"[\d.]+ s")
        return re.search(f"{pattern}$", self.output(), re.MULTILINE) is not None


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[ChaoticDev]:
    with contextlib.closing(ChaoticDev(tmp_path)) as chaotic:
        yield chaotic


def seed_that_starts_with(kind: ChaosKind) -> int:
    """A seed whose first fault is of this kind, and long enough to be observed."""
    for seed in count():
        first = chaos.decide(chaos.ChaosState(seed), {"node-1": True, "node-2": True}, 0).harm
        if first is not None and first.kind is kind and first.seconds > chaos.LOST_SECONDS:
            return seed
    raise AssertionError("there is always one more")


def successes(events: list[Event]) -> Counter[int]:
    """How often each task's success was recorded."""
    ranges = [event.indices or () for event in events if "succeeded" in event.why]
    return Counter(index for pairs in ranges for first, last in pairs for index in range(first, last + 1))
