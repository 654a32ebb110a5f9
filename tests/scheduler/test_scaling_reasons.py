"""An elastic cluster advises only what it does not do automatically."""

from typing import Any

import pytest

from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.ids import JobId
from rota.model.job import JobCluster
from rota.model.lifecycle import MachineState
from rota.model.shape import AffinityTerm, Constraint, Op
from rota.scheduler.explain.why import explain_job
from rota.testing.builders import add_job, add_node, at, job_spec
from tests.scheduler.rounds import Rounds

ONE_CPU = {"cpu": 1000}
COMES, THERE, GOES = MachineState.CREATED, MachineState.JOINED, MachineState.DRAINING


def elastic(*states: MachineState, nodes: int | None = None, **cluster: Any) -> Rounds:
    """A cluster of at most two machines with one core each."""
    rounds = Rounds()
    intent = ClusterIntent("default", provider="p", capacity=ONE_CPU, max_nodes=2, nodes=nodes)
    rounds.mirror.apply(intent)
    rounds.mirror.apply(ClusterRecord("default", **cluster))
    for number, state in enumerate(states):
        rounds.mirror.apply(Machine(f"m{number}", "default", state))
    return rounds


def changes(rounds: Rounds, job: int) -> tuple[str, ...]:
    return explain_job(rounds.mirror, JobId(str(job)), at(0)).changes


@pytest.mark.parametrize(
    ("rounds", "advice"),
    [
        (elastic(), None),
        (elastic(COMES), None),
        (elastic(THERE, GOES), None),
        (elastic(THERE, THERE), "rota cluster resize default --max 3"),
        (elastic(THERE, THERE, like="first"), "rota cluster resize first --max 3"),
        (elastic(THERE, nodes=1), "rota cluster resize default --nodes auto"),
        (elastic(reason="machine m1 was given up: no quota left"), "rota node token"),
    ],
)
def test_an_unplaced_job_gets_the_command_for_a_new_node_unless_one_is_added_automatically(
    rounds: Rounds, advice: str | None
) -> None:
    add_node(rounds.mirror, "a", ONE_CPU)
    for spec in (job_spec(1), job_spec(2), job_spec(3, needs={"cpu": 8000})):
        add_job(rounds.mirror, spec)
    rounds.go()

    explanation = () if advice is None else (f"would start on a new node with room for it ({advice})",)
    assert changes(rounds, 2) == explanation
    assert "rota cluster" not in " ".join(changes(rounds, 3)), "its machines are too small for that"


@pytest.mark.parametrize(
    ("fields", "helps"),
    [
        ({}, True),
        ({"where": (Constraint("node", Op.EQUAL, ("a",)),)}, False),
        ({"where": (Constraint("node", Op.IN, ("a", "b")),)}, True),
        ({"where": (Constraint("node", Op.UNEQUAL, ("b",)),)}, True),
        ({"near": (AffinityTerm(Constraint("job", Op.EQUAL, ("db",))),)}, False),
        ({"near": (AffinityTerm(Constraint("job", Op.EQUAL, ("db",)), weight=5),)}, True),
    ],
)
def test_a_new_node_is_advised_only_if_it_would_help(fields: dict[str, Any], helps: bool) -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    db = job_spec(1, name="db", needs=ONE_CPU, count=1)
    for spec in (db, job_spec(2, needs=ONE_CPU, **fields)):
        add_job(rounds.mirror, spec)
    rounds.go()

    assert any("rota node token" in change for change in changes(rounds, 2)) == helps


def test_an_elastic_cluster_without_nodes_advises_no_join() -> None:
    rounds = elastic()
    explanation = explain_job(rounds.mirror, add_job(rounds.mirror, job_spec(1)), at(0))

    assert explanation.sentence == "waits: no node has joined; cluster default grows by itself"
    assert explanation.changes == ()


def test_the_advised_join_command_names_the_cluster_of_the_job() -> None:
    rounds = Rounds()
    rounds.mirror.apply(ClusterRecord("build"))
    rounds.mirror.apply(JobCluster(add_job(rounds.mirror, job_spec(1)), "build"))

    assert changes(rounds, 1) == ("join a node (rota node token --cluster build)",)
