"""A provider dies with its machines: each job of its cluster ends as its owner decides, and none is stuck."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rota.client.controller import Controller
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until, with_argument, with_variable
from rota.wiring import node_processes
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
SECONDS = 200.0

BEGIN = """#!/bin/sh
[ -e {here}/dead ] && {{ echo the account is closed >&2; exit 1; }}
"""
CREATE = """
mkdir -p {here}/$ROTA_MACHINE && cd {here}/$ROTA_MACHINE
setsid {python} -m rota.cli.main agent --data-dir $PWD --name $ROTA_MACHINE --cpu $ROTA_MACHINE_CPU \\
    --run-as self </dev/null >agent.log 2>&1 &
echo $! > pid
"""
LIST = """
for pid in {here}/*/pid; do [ -e $pid ] && basename $(dirname $pid); done
exit 0
"""
REMOVE = """
[ -e {here}/$ROTA_MACHINE ] || exit 0
kill -INT $(cat {here}/$ROTA_MACHINE/pid)
rm -r {here}/$ROTA_MACHINE
"""


@dataclass(frozen=True)
class Case:
    """A job that runs or waits in the cluster when its provider dies."""

    ends: str  # the job
    starts: tuple[int, ...]  # each of its tasks that was started: in which attempts
    spec: Mapping[str, Any] = field(default_factory=dict)
    says: str | None = None  # decision of its controller on a lost task
    by_cluster: bool = False  # its reason is that the cluster has failed


BOUND = {"cluster": "cloud"}
OWNED = {"recovery": "controller", "controller": "ci"}
UNOWNED = {"recovery": "controller", "controller": "away", "when_no_controller": "scheduler"}
HALF = {"count": 2, "parallel": 1}  # one runs, the other waits
ONCE, AGAIN, NEVER = (1,), (1, 2), ()  # in which attempts its tasks were started

RUNNING = {
    "scheduler": Case("succeeded", AGAIN),
    "bound": Case("canceled", ONCE, BOUND, by_cluster=True),
    "stays": Case("canceled", ONCE, {"move_pending": False}, by_cluster=True),
    "cancel": Case("canceled", ONCE, {"recovery": "cancel"}),
    "none": Case("failed", ONCE, {"recovery": "none"}),
    "once": Case("failed", ONCE, {"run": "at_most_once"}),
    "again": Case("succeeded", AGAIN, OWNED, says="again"),
    "fail": Case("failed", ONCE, OWNED, says="fail"),
    "stop": Case("canceled", ONCE, OWNED, says="cancel"),
    "lost": Case("failed", ONCE, OWNED, says="lost"),
    "silent": Case("canceled", ONCE, {**OWNED, **BOUND}, by_cluster=True),
    "late": Case("succeeded", AGAIN, OWNED),
    "away": Case("succeeded", AGAIN, {**UNOWNED, "controller_wait": 1}),
    "half-moves": Case("succeeded", (1, 2, 1), HALF),
    "half-canceled": Case("canceled", ONCE, {**HALF, "recovery": "cancel"}, by_cluster=True),
    "half-lost": Case("canceled", ONCE, {**HALF, "recovery": "none"}, by_cluster=True),
}
WAITING = {
    "later": Case("succeeded", ONCE),
    "later-owned": Case("succeeded", ONCE, OWNED),
    "later-bound": Case("canceled", NEVER, BOUND, by_cluster=True),
    "later-stays": Case("canceled", NEVER, {"move_pending": False}, by_cluster=True),
    "later-cancel": Case("canceled", NEVER, {"recovery": "cancel"}, by_cluster=True),
    "later-none": Case("canceled", NEVER, {"recovery": "none"}, by_cluster=True),
}
CASES = RUNNING | WAITING
MOVED = [name for name, case in CASES.items() if case.ends == "succeeded"]


@dataclass(frozen=True)
class Cloud:
    """A provider whose machines are directories with an agent each."""

    here: Path

    def __post_init__(self) -> None:
        self.here.mkdir()
        for name, text in (("create", CREATE), ("list", LIST), ("remove", REMOVE)):
            script = self.here / name
            script.write_text((BEGIN + text).format(here=self.here, python=sys.executable))
            script.chmod(0o755)

    def die(self) -> None:
        """Every call fails from now on."""
        (self.here / "dead").touch()

    def come_back(self) -> None:
        (self.here / "dead").unlink()

    def kill(self, machine: str) -> None:
        node_processes.kill_node(self.here / machine)

    def send(self, machine: str, signum: int) -> None:
        """Send a signal to every process there."""
        directory = self.here / machine
        for one in (*node_processes.agents_of(directory), *node_processes.keepers_of(directory)):
            one.send(signum)
        for pid in self.work(machine):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def work(self, machine: str) -> list[int]:
        return with_variable("ROTA_KEEPER", (self.here / machine / "keeper.id").read_text().strip())

    def close(self) -> None:
        node_processes.end_nodes(list(self.here.glob("*/")))


@dataclass
class Story:
    """The jobs of the cluster, and what really ran of each."""

    cluster: LocalCluster
    directory: Path
    jobs: dict[str, str] = field(default_factory=dict)

    def submit(self, name: str, then: str) -> None:
        command = self.witness(name).script(then)
        self.jobs[name] = self.cluster.submit(*command, name=name, **CASES[name].spec)

    def witness(self, name: str) -> Witness:
        return Witness(self.directory / f"{name}.seen")

    def count(self, name: str, state: str) -> int:
        return self.cluster.count(self.jobs[name], state)

    def answer(self) -> None:
        """Decide on the lost tasks as the controller of each job would."""
        says = {self.jobs[name]: case.says for name, case in RUNNING.items() if case.says}
        with Controller(self.cluster.grpc, self.cluster.token, "ci") as controller:
            for event in controller.events(after="0.0"):
                if event.kind == "task.unresolved" and event.job in says:
                    controller.resolve(event, says.pop(event.job) or "")
                if not says:
                    return

    def alive(self) -> dict[str, int]:
        """The processes of each job on this machine."""
        found = {name: len(with_argument(f"{self.witness(name).path}")) for name in CASES}
        return {name: number for name, number in found.items() if number}

    def became(self, name: str) -> Case:
        shown = self.cluster.call("GET", f"/v1/jobs/{self.jobs[name]}").body
        seen = sorted((start.index, start.attempt) for start in self.witness(name).seen())
        attempts = tuple(attempt for _, attempt in seen)
        by_cluster = str(shown["reason"]).startswith("cluster-failed: cloud, ")
        case = CASES[name]
        return Case(shown["state"], attempts, case.spec, case.says, by_cluster=by_cluster)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=0, cpu=len(CASES), settings={"ROTA_LOST_SECONDS": "10"}) as made:
        yield made


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with contextlib.closing(Cloud(tmp_path / "cloud")) as made:
        yield made


def shown(cluster: LocalCluster) -> Any:
    return cluster.call("GET", "/v1/clusters/cloud").body


def test_each_job_ends_as_its_owner_says_when_a_provider_dies_with_its_machines(
    cluster: LocalCluster, cloud: Cloud, gate: Gate, tmp_path: Path
) -> None:
    story = Story(cluster, tmp_path)
    sizes = ("--node", f"cpu={len(RUNNING) // 2}", "--min", "2", "--max", "2", "--pause", "0.3s")
    settings = (f"--setting={verb}={cloud.here / verb}" for verb in ("create", "list", "remove"))
    made = cluster.rota("cluster", "create", "cloud", "--provider", "command", *sizes, *settings)
    for name in RUNNING:
        story.submit(name, gate.wait)
    until(lambda: all(story.count(name, "running") == 1 for name in RUNNING), "they run", SECONDS)
    for name in WAITING:
        story.submit(name, gate.wait)
    cluster.start_agent(1)
    until(lambda: cluster.node(1).get("state") == "ready", "there is a node elsewhere", SECONDS)

    cloud.die()
    cloud.kill("cloud-1")
    cloud.send("cloud-2", signal.SIGSTOP)
    story.answer()
    until(lambda: shown(cluster)["state"] == "failed", "the cluster has failed", SECONDS)
    until(lambda: story.count("late", "unresolved") == 1, "one waits for its controller", SECONDS)
    cluster.call("POST", f"/v1/jobs/{story.jobs['late']}/resolve", {"word": "again"})
    until(lambda: all(story.count(name, "running") == 1 for name in MOVED), "they run elsewhere", SECONDS)
    cloud.send("cloud-2", signal.SIGCONT)

    until(lambda: cloud.work("cloud-2") == [], "what ran there ends when its machine is back", SECONDS)
    until(lambda: story.alive().keys() == set(MOVED), "what the record says runs, and no more", SECONDS)
    gate.open()
    until(lambda: all(story.became(name).ends == "succeeded" for name in MOVED), "they end", SECONDS)
    output = cluster.rota("cluster", "why", "cloud", "--limit", "1000").out
    cloud.come_back()
    deleted = cluster.rota("cluster", "delete", "cloud")
    until(lambda: shown(cluster).get("state") is None, "nothing is left of the cluster", SECONDS)

    assert made.code == 0, made.err
    assert {name: story.became(name) for name in CASES} == CASES
    assert {story.witness(name).seen()[-1].node for name in MOVED} == {"node-1"}
    assert (
        "cluster cloud has failed: no node is left, and its provider has failed 6 times in a row; " in output
    )
    assert " jobs are canceled: cluster cloud has failed" in output
    assert deleted.code == 0, deleted.err
    assert list(cloud.here.glob("*/")) == []
