"""`rota dev --elastic`: its size follows the load, and no task is killed for it."""

import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rota.client.cluster import Cluster
from rota.testing.processes import until
from tests.system.dev import STOP_SECONDS, Dev
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
SECONDS = 300.0
TASKS, NODES, PERIODS = 200, 4, 3
SMALL = 0.1  # cores: ten of them run on one node


@dataclass
class ElasticDev:
    """A dev cluster that creates its own nodes, and a client."""

    dev: Dev
    cluster: Cluster

    def machines(self) -> list[str]:
        return [str(machine["name"]) for machine in self.cluster.clusters.get("default").machines]

    def ledger(self) -> list[str]:
        return [event.why for event in self.cluster.events(1000, cluster="default")]

    def resizes(self) -> list[str]:
        return [why.partition(":")[0] for why in self.ledger() if why.startswith(("adding ", "taking "))]

    def load(self, gate: Gate) -> None:
        """Run more tasks than its nodes can hold at once, to their end."""
        job = self.cluster.submit("sh", "-c", gate.wait, count=NODES + 2)
        until(lambda: job.refresh().counts.get("running") == NODES, "every node is at work", SECONDS)
        gate.open()
        job.wait(SECONDS)


@pytest.fixture
def elastic(dev: Dev) -> Iterator[ElasticDev]:
    dev.start("--elastic", f"0-{NODES}")
    with dev.connected() as cluster:
        yield ElasticDev(dev, cluster)


def test_nodes_scale_up_for_two_hundred_tasks_and_down_without_killing_any(
    elastic: ElasticDev, witness: Witness, gate: Gate, tmp_path: Path
) -> None:
    cluster, late = elastic.cluster, Witness(tmp_path / "late")
    cluster.clusters.change("default", idle="2s")
    planned = elastic.dev.rota("plan", "--scale", "--array", f"0-{TASKS - 1}", "--cpu", str(SMALL), "--", "x")
    job = cluster.submit(*witness.script("sleep 5"), cpu=SMALL, count=TASKS)
    last = cluster.submit(*late.script(gate.wait), cpu=SMALL)
    job.wait(SECONDS)
    until(lambda: len(elastic.machines()) == 1, "those on which nothing runs are gone", SECONDS)
    while_others_go = last.refresh().counts
    gate.open()
    last.wait(SECONDS)
    until(lambda: elastic.machines() == [], "the last one is gone", SECONDS)
    entries = elastic.ledger()

    assert f"cluster default would get {NODES} nodes more: {TASKS} tasks would wait there" in planned.stdout
    assert Counter((task.state, task.attempt) for task in job.tasks()) == {("succeeded", 1): TASKS}
    assert witness.starts() == dict.fromkeys(range(TASKS), 1)
    assert {seen.node for seen in witness.seen()} == {f"default-{number}" for number in range(1, NODES + 1)}
    assert (while_others_go["running"], last.exit_code, late.starts()) == (1, 0, {0: 1})
    assert (
        "adding 4 nodes to default: 200 tasks wait, 40 of them would start; it has 0, its limit is 4"
        in entries
    )
    assert steps(entries) == dict.fromkeys(("added", "joined", "taken", "gone"), NODES)
    assert elastic.dev.end(signal.SIGINT) == 0
    until(lambda: elastic.dev.left() == [], "nothing is left", STOP_SECONDS)


@pytest.mark.nightly
def test_a_square_wave_of_load_causes_one_resize_per_edge(elastic: ElasticDev, tmp_path: Path) -> None:
    elastic.cluster.clusters.change("default", idle="8s")
    for number in range(PERIODS):
        elastic.load(Gate(tmp_path / str(number)))
        until(lambda: elastic.machines() == [], "all machines are gone", SECONDS)

    assert elastic.resizes() == ["adding 4 nodes to default", "taking 4 nodes from default"] * PERIODS


def test_load_that_returns_soon_finds_its_nodes_again(elastic: ElasticDev, tmp_path: Path) -> None:
    elastic.cluster.clusters.change("default", idle="5m")
    for number in range(PERIODS):
        elastic.load(Gate(tmp_path / str(number)))

    assert elastic.resizes() == ["adding 4 nodes to default"]


def steps(ledger: list[str]) -> Counter[str]:
    """The number of nodes that were added and removed, by their events."""
    sentences = {
        "added": r"adding (\d) nodes? to default: .+",
        "joined": r"machine \S+ (has) joined as node \S+ after .+",
        "taken": r"taking (\d) nodes? from default: empty for 2 s; .+",
        "gone": r"machine \S+ (is) gone: empty for 2 s",
    }
    found: Counter[str] = Counter()
    for step, sentence in sentences.items():
        for why in ledger:
            if match := re.fullmatch(sentence, why):
                found[step] += int(match[1]) if match[1].isdecimal() else 1
    return found
