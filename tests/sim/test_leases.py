"""Leases in virtual time: renewed while nothing fails, and never held by two attempts at a time."""

from rota.sim.faults.fault import SimFault
from rota.sim.scenario import Finding, Scenario, run
from rota.sim.simulation import Size
from rota.sim.workloads.model import Arrival, Behaviour, NodeGroup

NODES = (NodeGroup(3, {"cpu": 2000, "memory": 1 << 33}, {"zone": "a"}),)


def long_work(lease: str) -> Arrival:
    spec = {"name": "long", "command": ["work"], "run": "one_at_a_time", "lease": lease, "count": 3}
    return Arrival(1_000, spec, Behaviour(120_000))


def run_leases(*faults: SimFault, lease: str = "3s", servers: int = 1) -> Finding:
    return run(Scenario(1, Size(NODES, servers), [long_work(lease)], sorted(faults)), keep_trace=False)


def test_without_faults_nothing_loses_its_lease() -> None:
    finding = run_leases()

    assert finding.broken is None
    assert finding.attempts == 3
    assert "attempt: running to lost" not in finding.counts


def test_a_node_cut_off_for_longer_than_a_lease_costs_one_more_attempt_and_no_overlap() -> None:
    finding = run_leases(*(SimFault(30_000, "cut off", target, 20_000, 0.0) for target in range(3)))

    assert finding.broken is None
    assert finding.counts["attempt: running to lost"] >= 3
    assert "task: two attempts alive at once" not in finding.counts


def test_a_lone_server_back_within_the_lease_costs_nothing() -> None:
    finding = run_leases(SimFault(30_000, "server killed", 0, 1, 0.0), lease="20s")

    assert finding.broken is None
    assert finding.attempts == 3
