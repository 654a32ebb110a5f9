"""The cluster of the production page, on machines: its leader is cut from etcd, and from its nodes."""

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
BUILT = "## See that it holds"  # the page up to here
TTL_SECONDS, LOST_SECONDS = (10, 30) if MANY else (2, 6)
TIMES = 5 if MANY else 1
NODES, TASKS = 10, 20
PATIENCE_SECONDS = 180.0
AGENT_PORT = 50001  # of the servers of the page
ASK = "curl -fs --max-time 5 --cacert server/ca.crt"
Tell = Callable[[str, object], None]


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
        self.say("d", f"mkdir light; ({lines}) > lines")
        self.say("d", 'setsid "$PYTHON" -m rota.testing.light_agents light < lines > light.log 2>&1 &')
        until(lambda: self.ready() == NODES + 1, "every node is ready", PATIENCE_SECONDS)
        self.say("d", f"rota run --detach --name light --count {TASKS} --where 'light == yes' -- until gate")
        until(lambda: len(self.starts()) == TASKS, "all tasks run", PATIENCE_SECONDS)

    def leader(self) -> str:
        """By its own word, asked from machine d; empty: nobody, for now."""
        return next((name for name in "abc" if self.leads(name)), "")

    def leads(self, machine: str) -> bool:
        """By its own word, asked from machine d."""
        door = f"https://{ADDRESSES[machine]}:3000/readyz"
        asked = f"curl -fs --max-time 5 --cacert ca.crt {door}"
        return self.machines.run("d", asked).returncode == 0

    def leads_by_itself(self, machine: str) -> bool:
        """Asked on its own machine."""
        return self.machines.run(machine, f"{ASK} https://{ADDRESSES[machine]}:3000/readyz").returncode == 0

    def nodes(self, machine: str) -> list[Any]:
        """As the server there knows them."""
        said = self.machines.run(machine, "rota node ls -o jsonl 2>/dev/null").stdout
        return [json.loads(line) for line in said.splitlines()]

    def ready(self) -> int:
        """By the word of the one that leads, and has heard them itself."""
        leader = self.leader()
        heard = [node for node in self.nodes(leader) if node["heard_ms_ago"] is not None] if leader else []
        return sum(node["state"] == "ready" for node in heard)

    def cut_from_nodes(self, *servers: str) -> None:
        for server in servers:
            self.machines.cut(server, "d")

    def mend_to_nodes(self, *servers: str) -> None:
        for server in servers:
            self.machines.mend(server, "d")

    def await_agents(self, *servers: str) -> None:
        """Return when the agents of all nodes are connected to these servers."""
        ways = " or ".join(f"dst {ADDRESSES[name]}:{AGENT_PORT}" for name in servers)
        line = f"ss -Htn state established '( {ways} )'"
        until(
            lambda: len(self.say("d", line).splitlines()) == NODES + 1,
            f"every agent is connected to {' or '.join(servers)}",
            PATIENCE_SECONDS,
        )

    def brake(self, machine: str) -> str:
        token = "authorization: Bearer $(cat server/token)"
        said = self.machines.run(
            machine, f'{ASK} -H "{token}" https://{ADDRESSES[machine]}:3000/v1/brake'
        ).stdout
        return str(json.loads(said)["level"]) if said else ""

    def lost(self) -> str:
        """By the word of the one that leads."""
        line = "rota event ls --kind node.lost -o jsonl 2>/dev/null && echo asked"
        leader = until(self.leader, "one leads", PATIENCE_SECONDS)
        said = until(lambda: self.machines.run(leader, line).stdout, "it answers", PATIENCE_SECONDS)
        return said.removesuffix("asked\n")

    def starts(self) -> dict[int, int]:
        """Of the one job there is on light nodes."""
        found = list(self._directory.glob("d/light/started-*"))
        return dict(Witness(found[0]).starts()) if found else {}

    def say(self, machine: str, line: str) -> str:
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


def test_a_leader_cut_from_etcd_steps_down_before_another_leads(site: Site, record_property: Tell) -> None:
    """Its own member of etcd is still there, and so are its nodes."""
    stepped_seconds, led_seconds = [], []
    for _ in range(TIMES):
        leader = until(site.leader, "one leads", PATIENCE_SECONDS)
        others = [name for name in "abc" if name != leader]
        began = time.monotonic()
        site.machines.cut(leader, *others)
        until(lambda who=leader: not site.leads(who), "it has stepped down", PATIENCE_SECONDS)  # type: ignore[misc]
        stepped_seconds.append(round(time.monotonic() - began, 1))
        until(lambda who=leader: site.leader() not in ("", who), "another leads", PATIENCE_SECONDS)  # type: ignore[misc]
        led_seconds.append(round(time.monotonic() - began, 1))

        assert not site.leads(leader)
        until(lambda: site.ready() == NODES + 1, "every node has come", PATIENCE_SECONDS)
        site.machines.mend(leader, *others)
    record_property(FIGURES, f"stepped down after {stepped_seconds} s, another led after {led_seconds} s")
    assert site.lost() == ""
    assert site.starts() == dict.fromkeys(range(TASKS), 1)


def test_nodes_cut_from_the_leader_reach_it_through_a_standby(site: Site, record_property: Tell) -> None:
    heard_seconds = []
    for _ in range(TIMES):
        leader = until(site.leader, "one leads", PATIENCE_SECONDS)
        others = [name for name in "abc" if name != leader]
        site.cut_from_nodes(*others)  # an agent stays with a standby that it has come to
        site.await_agents(leader)
        site.mend_to_nodes(*others)
        began = time.monotonic()
        site.cut_from_nodes(leader)
        site.await_agents(*others)
        until(lambda who=leader: _are_heard(site.nodes(who)), "the leader hears every node", PATIENCE_SECONDS)  # type: ignore[misc]
        heard_seconds.append(round(time.monotonic() - began, 1))

        assert site.leads_by_itself(leader)
        site.mend_to_nodes(leader)
    record_property(FIGURES, f"every node was heard through a standby after {heard_seconds} s")
    assert site.lost() == ""
    assert site.starts() == dict.fromkeys(range(TASKS), 1)


def test_a_leader_that_no_node_can_reach_gives_none_up(site: Site, record_property: Tell) -> None:
    """It leads on, and waits longer than their grace because all of them are silent."""
    for _ in range(TIMES):
        leader = until(site.leader, "one leads", PATIENCE_SECONDS)
        site.cut_from_nodes(*"abc")  # a standby would pass their connections on
        until(lambda who=leader: site.brake(who) == "stopped", "the brake is on", PATIENCE_SECONDS)  # type: ignore[misc]
        until(lambda who=leader: _are_silent(site.nodes(who)), "their grace is long over", PATIENCE_SECONDS)  # type: ignore[misc]

        assert {node["state"] for node in site.nodes(leader)} == {"suspect"}
        assert site.leads_by_itself(leader)
        site.mend_to_nodes(*"abc")
        until(lambda: site.ready() == NODES + 1, "every node is back", PATIENCE_SECONDS)
    record_property(FIGURES, f"{TIMES} times, {NODES + 1} nodes")
    assert site.lost() == ""
    assert site.starts() == dict.fromkeys(range(TASKS), 1)


def _are_heard(nodes: list[Any]) -> bool:
    heard_ms_ago = [node["heard_ms_ago"] for node in nodes if node["state"] == "ready"]
    recently = [ms for ms in heard_ms_ago if ms is not None and ms < 1000 * LOST_SECONDS]
    return len(recently) == NODES + 1


def _are_silent(nodes: list[Any]) -> bool:
    return bool(nodes) and all(node["heard_ms_ago"] > 2000 * LOST_SECONDS for node in nodes)
