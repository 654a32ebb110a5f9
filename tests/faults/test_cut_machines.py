"""The cluster of the production guide on machines: its leader is cut from etcd and from its nodes."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.processes import until
from tests.docs.machines import ADDRESSES, PRODUCTION, Machines
from tests.docs.snippets import blocks
from tests.faults.conftest import FIGURES
from tests.faults.sizes import MANY
from tests.machine import needs
from tests.system.witness_file import Witness

pytestmark = [pytest.mark.system, needs("etcd", "networks", "openssl", "curl"), pytest.mark.timeout(1700)]
BUILT = "## Test the failover"  # the guide is followed up to this heading
TTL_SECONDS, LOST_SECONDS = (10, 30) if MANY else (2, 6)
TIMES = 5 if MANY else 1
NODES, TASKS = 10, 20
TIMEOUT_SECONDS = 180.0
AGENT_PORT = 50001  # of the servers of the page
ASK = "curl -fs --max-time 5 --cacert server/ca.crt"
RecordProperty = Callable[[str, object], None]


class Site:
    """Three servers, a real node and light ones, all of the nodes on machine d."""

    def __init__(self, machines: Machines, directory: Path) -> None:
        self.machines = machines
        self._directory = directory

    def build(self) -> None:
        page = PRODUCTION.read_text()
        height = page[: page.index(BUILT)].count("\n")
        for block in blocks(page):
            if block.line < height:
                self.machines.type(block)
        lines = f"for _ in $(seq {NODES}); do rota node token 2>/dev/null | cut -d\\' -f2; done"
        self.run("d", f"mkdir light; ({lines}) > lines")
        self.run("d", 'setsid "$PYTHON" -m rota.testing.light_agents light < lines > light.log 2>&1 &')
        until(lambda: self.ready() == NODES + 1, "every node is ready", TIMEOUT_SECONDS)
        self.run("d", f"rota run --detach --name light --count {TASKS} --where 'light == yes' -- until gate")
        until(lambda: len(self.starts()) == TASKS, "all tasks run", TIMEOUT_SECONDS)

    def leader(self) -> str:
        """The machine whose server reports ready as leader, asked from machine d; empty if none does."""
        return next((name for name in "abc" if self.leads(name)), "")

    def leads(self, machine: str) -> bool:
        """Whether its server reports ready as leader, asked from machine d."""
        url = f"https://{ADDRESSES[machine]}:3000/readyz"
        command = f"curl -fs --max-time 5 --cacert ca.crt {url}"
        return self.machines.run("d", command).returncode == 0

    def leads_locally(self, machine: str) -> bool:
        """Whether its server reports ready as leader, asked on its own machine."""
        return self.machines.run(machine, f"{ASK} https://{ADDRESSES[machine]}:3000/readyz").returncode == 0

    def nodes(self, machine: str) -> list[Any]:
        """The nodes as the server of that machine lists them."""
        listed = self.machines.run(machine, "rota node ls -o jsonl 2>/dev/null").stdout
        return [json.loads(line) for line in listed.splitlines()]

    def ready(self) -> int:
        """Number of ready nodes that have reported to the leader itself."""
        leader = self.leader()
        connected = (
            [node for node in self.nodes(leader) if node["heard_ms_ago"] is not None] if leader else []
        )
        return sum(node["state"] == "ready" for node in connected)

    def cut_from_nodes(self, *servers: str) -> None:
        for server in servers:
            self.machines.cut(server, "d")

    def heal_to_nodes(self, *servers: str) -> None:
        for server in servers:
            self.machines.heal(server, "d")

    def await_agents(self, *servers: str) -> None:
        """Return when the agents of all nodes are connected to these servers."""
        destinations = " or ".join(f"dst {ADDRESSES[name]}:{AGENT_PORT}" for name in servers)
        line = f"ss -Htn state established '( {destinations} )'"
        until(
            lambda: len(self.run("d", line).splitlines()) == NODES + 1,
            f"every agent is connected to {' or '.join(servers)}",
            TIMEOUT_SECONDS,
        )

    def brake(self, machine: str) -> str:
        token = "authorization: Bearer $(cat server/token)"
        body = self.machines.run(
            machine, f'{ASK} -H "{token}" https://{ADDRESSES[machine]}:3000/v1/brake'
        ).stdout
        return str(json.loads(body)["level"]) if body else ""

    def lost(self) -> str:
        """The node.lost events, as the leader lists them."""
        line = "rota event ls --kind node.lost -o jsonl 2>/dev/null && echo asked"
        leader = until(self.leader, "a server leads", TIMEOUT_SECONDS)
        printed = until(lambda: self.machines.run(leader, line).stdout, "the leader answers", TIMEOUT_SECONDS)
        return printed.removesuffix("asked\n")

    def starts(self) -> dict[int, int]:
        """Starts of each task of the job on the light nodes."""
        found = list(self._directory.glob("d/light/started-*"))
        return dict(Witness(found[0]).starts()) if found else {}

    def run(self, machine: str, line: str) -> str:
        ended = self.machines.run(machine, line)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("machines")
    settings = {"ROTA_ETCD_TTL_SECONDS": str(TTL_SECONDS), "ROTA_LOST_SECONDS": str(LOST_SECONDS)}
    with Machines(directory, ADDRESSES, **settings) as machines:
        built = Site(machines, directory)
        built.build()
        yield built


def test_a_leader_cut_from_etcd_steps_down_before_another_leads(
    site: Site, record_property: RecordProperty
) -> None:
    """Its own etcd member and its nodes are still connected."""
    stepped_seconds, led_seconds = [], []
    for _ in range(TIMES):
        leader = until(site.leader, "a server leads", TIMEOUT_SECONDS)
        others = [name for name in "abc" if name != leader]
        began = time.monotonic()
        site.machines.cut(leader, *others)
        until(lambda old=leader: not site.leads(old), "the leader has stepped down", TIMEOUT_SECONDS)  # type: ignore[misc]
        stepped_seconds.append(round(time.monotonic() - began, 1))
        until(lambda old=leader: site.leader() not in ("", old), "another leads", TIMEOUT_SECONDS)  # type: ignore[misc]
        led_seconds.append(round(time.monotonic() - began, 1))

        assert not site.leads(leader)
        until(lambda: site.ready() == NODES + 1, "every node has connected", TIMEOUT_SECONDS)
        site.machines.heal(leader, *others)
    record_property(FIGURES, f"stepped down after {stepped_seconds} s, another led after {led_seconds} s")
    assert site.lost() == ""
    assert site.starts() == dict.fromkeys(range(TASKS), 1)


def test_nodes_cut_from_the_leader_reach_it_through_a_standby(
    site: Site, record_property: RecordProperty
) -> None:
    seen_seconds = []
    for _ in range(TIMES):
        leader = until(site.leader, "a server leads", TIMEOUT_SECONDS)
        others = [name for name in "abc" if name != leader]
        site.cut_from_nodes(*others)  # an agent stays with the standby to which it has connected
        site.await_agents(leader)
        site.heal_to_nodes(*others)
        began = time.monotonic()
        site.cut_from_nodes(leader)
        site.await_agents(*others)
        until(
            lambda name=leader: _are_connected(site.nodes(name)),  # type: ignore[misc]
            "the leader has seen every node",
            TIMEOUT_SECONDS,
        )
        seen_seconds.append(round(time.monotonic() - began, 1))

        assert site.leads_locally(leader)
        site.heal_to_nodes(leader)
    record_property(FIGURES, f"every node was seen through a standby after {seen_seconds} s")
    assert site.lost() == ""
    assert site.starts() == dict.fromkeys(range(TASKS), 1)


def test_a_leader_that_no_node_can_reach_declares_none_lost(
    site: Site, record_property: RecordProperty
) -> None:
    """It keeps leading, and the brake keeps all silent nodes from being lost."""
    for _ in range(TIMES):
        leader = until(site.leader, "a server leads", TIMEOUT_SECONDS)
        site.cut_from_nodes(*"abc")  # a standby would forward their streams
        until(lambda name=leader: site.brake(name) == "stopped", "the brake is on", TIMEOUT_SECONDS)  # type: ignore[misc]
        until(
            lambda name=leader: _are_silent(site.nodes(name)),  # type: ignore[misc]
            "they are silent for twice the grace",
            TIMEOUT_SECONDS,
        )

        assert {node["state"] for node in site.nodes(leader)} == {"suspect"}
        assert site.leads_locally(leader)
        site.heal_to_nodes(*"abc")
        until(lambda: site.ready() == NODES + 1, "every node has returned", TIMEOUT_SECONDS)
    record_property(FIGURES, f"{TIMES} times, {NODES + 1} nodes")
    assert site.lost() == ""
    assert site.starts() == dict.fromkeys(range(TASKS), 1)


def _are_connected(nodes: list[Any]) -> bool:
    heard_ms_ago = [node["heard_ms_ago"] for node in nodes if node["state"] == "ready"]
    recently = [ms for ms in heard_ms_ago if ms is not None and ms < 1000 * LOST_SECONDS]
    return len(recently) == NODES + 1


def _are_silent(nodes: list[Any]) -> bool:
    return bool(nodes) and all(node["heard_ms_ago"] > 2000 * LOST_SECONDS for node in nodes)
