"""Nodes taken out of service and put back: cordon, drain, open."""

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("verb", "eligibility"), [("cordon", ("cordoned", "cordoned")), ("drain", ("draining", "drained"))]
)
def test_a_node_out_of_service_finishes_its_tasks_and_gets_no_others(
    three: LocalCluster, witness: Witness, gate: Gate, verb: str, eligibility: tuple[str, str]
) -> None:
    while_running, when_empty = eligibility
    job = three.submit(*witness.script(gate.wait), where=["number == 1"])
    until(lambda: three.count(job, "running") == 1, "it runs")
    witness.wait_for(1)

    assert three.rota("node", verb, "node-1").code == 0

    assert three.node(1)["eligibility"] == while_running
    elsewhere = three.rota("run", "--array", "0-23", "--", *witness.script())
    assert elsewhere.code == 0
    assert {seen.node for seen in witness.seen()[1:]} == {"node-2", "node-3"}
    gate.open()
    assert three.rota("wait", job).code == 0, "what ran there could end"
    until(lambda: three.node(1)["eligibility"] == when_empty, f"it is {when_empty}")
    assert when_empty in three.rota("node", "ls").out

    assert three.rota("node", "open", "node-1").code == 0

    again = three.rota("run", "--where", "number == 1", "--", *witness.script())
    assert again.code == 0
    assert witness.seen()[-1].node == "node-1"
    assert [seen.index for seen in witness.seen()].count(0) == 3, "nothing was restarted"


def test_a_cordon_survives_the_server(three: LocalCluster) -> None:
    assert three.rota("node", "cordon", "node-2").code == 0

    three.kill_server()
    three.start_server()
    three.wait_for_nodes()

    assert three.node(2)["eligibility"] == "cordoned"
    assert three.rota("node", "open", "node-2").code == 0
