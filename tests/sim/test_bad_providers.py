"""Whatever a provider does, jobs end or fail with their cluster, and no machine is left behind."""

import pytest

from rota.sim.faults import providers
from rota.sim.faults.fault import SimFault
from rota.sim.scenario import Finding, Scenario, run
from rota.sim.simulation import Size
from rota.sim.workloads.model import Arrival, Behaviour, Elastic, NodeGroup

NODES = (NodeGroup(1, {"cpu": 1000, "memory": 1 << 30}, {}),)
CLOUD = Elastic(
    {"cpu": 1000, "memory": 1 << 30}, 2, make_seconds=5, idle_seconds=5, join_seconds=20, name="cloud"
)
WORK = {"name": "work", "command": ["work"], "count": 6, "cpu": 1, "cluster": "cloud", "retries": 3}
MET = {
    "provider fails": "provider: a remove failed",
    "provider fails after success": "provider: a create failed",
    "provider hangs": "provider: a create hung",
    "provider creates two": "provider: made a machine twice",
    "provider lists fewer": "provider: left machines out of a list",
    "provider lists more": "provider: listed what there is not",
    "provider dies": "cluster: failed permanently",
}


def run_with_fault(kind: str, seed: int) -> Finding:
    """Run with one fault that starts before the job arrives and outlasts it."""
    at_ms = 15_000 if kind == "provider removes a machine" else 1_000
    fault, work = SimFault(at_ms, kind, 0, 58_000, 0.1), Arrival(2_000, WORK, Behaviour(8_000))
    return run(Scenario(seed, Size(NODES, elastic=CLOUD), [work], [fault], safety_ms=60_000))


@pytest.mark.parametrize("kind", providers.KINDS)
def test_every_invariant_holds_with_a_faulty_provider(kind: str) -> None:
    found = run_with_fault(kind, seed=1)

    assert found.broken is None
    assert found.counts[f"fault: {kind}"] == 1
    assert kind not in MET or found.counts.get(MET[kind], 0) > 0


def test_with_a_reliable_provider_a_cluster_grows_and_shrinks_once() -> None:
    case = Scenario(1, Size(NODES, elastic=CLOUD), [Arrival(2_000, WORK, Behaviour(8_000))], [], 60_000)
    found = run(case)
    trace = "\n".join(found.trace)

    assert found.broken is None
    assert (trace.count("adding "), trace.count("taking ")) == (1, 1)
    assert trace.count("has joined as node") == trace.count(" is gone: empty") == 2
