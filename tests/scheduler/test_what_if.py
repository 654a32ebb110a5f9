"""A what-if plan tells what the next round would do, on a copy, perhaps with other nodes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.engine.state.what_if import WhatIfMirror
from rota.model.cluster import ClusterIntent, ClusterRecord
from rota.model.ids import NodeId
from rota.model.job import JobSpec, Unschedulable
from rota.model.messages import ReportedState
from rota.model.namespace import NamespaceRecord
from rota.model.node import Eligibility, NodeIntent
from rota.model.outlook import (
    NewNode,
    PlannedEviction,
    PlannedPlacement,
    PlannedScaling,
    PlanOutcome,
    PlanResult,
    WhatIf,
)
from rota.scheduler.what_if import plan_job
from rota.testing.builders import GIB, add_job, add_node, at, job_spec, placements, where
from tests.scheduler.rounds import Rounds
from tests.scheduler.test_why_agrees import NODES, QUOTAS, WISHES, cluster, place


def plan(rounds: Rounds, spec: JobSpec, what_if: WhatIf | None = None) -> PlanResult:
    return plan_job(WhatIfMirror.copy_of(rounds.mirror), spec, what_if or WhatIf(), at(0))


@pytest.fixture
def rounds() -> Rounds:
    """One node with two cores, one of them used."""
    made = Rounds()
    add_node(made.mirror, "a", {"cpu": 2000, "memory": 8 * GIB})
    add_job(made.mirror, job_spec(1, expect_seconds=60.0, priority=10))
    made.go()
    made.report("a", 1, ReportedState.RUNNING, (0, 1), started_at_ms=at(0).wall_ms)
    return made


def test_a_job_that_fits_would_start_now(rounds: Rounds) -> None:
    assert plan(rounds, job_spec(9)) == PlanResult(
        PlanOutcome.NOW, "would start now on a", 1, (PlannedPlacement("a", 1),)
    )


def test_a_partly_fitting_array_would_start_in_part_and_explains_the_others(rounds: Rounds) -> None:
    outlook = plan(rounds, job_spec(9, count=3, priority=10))

    assert (outlook.outcome, outlook.starts) == (PlanOutcome.NOW, 1)
    assert outlook.sentence.startswith(
        "1 of 3 tasks would start now on a (1); 2 of 3 tasks wait: 1 of 1 nodes"
    )
    assert outlook.why is not None
    assert [reason.kind for reason in outlook.why.reasons] == ["cpu"]


def test_a_job_that_does_not_fit_now_would_wait_and_says_until_when(rounds: Rounds) -> None:
    outlook = plan(rounds, job_spec(9, needs={"cpu": 2000}, priority=10))

    assert outlook.outcome is PlanOutcome.WAIT
    assert outlook.sentence == "would wait: 1 of 1 nodes has too little free cpu: largest free 1, asked 2"
    assert outlook.why is not None
    assert (outlook.why.position, outlook.why.starts_at_ms) == (1, at(60_000).wall_ms)


def test_a_job_that_fits_on_no_empty_node_would_never_start(rounds: Rounds) -> None:
    small = plan(rounds, job_spec(9, needs={"cpu": 3000}))
    elsewhere = plan(rounds, job_spec(9, where=(where("region", "==", "eu"),)))
    gang = plan(rounds, job_spec(9, count=3, gang=True))
    late = plan(rounds, job_spec(9, deadline_at_ms=at(0).wall_ms - 1))

    outcomes = [outlook.outcome for outlook in (small, elsewhere, gang, late)]
    assert outcomes == [PlanOutcome.NEVER] * 4
    assert small.sentence == ("would never start: 1 of 1 nodes has too little cpu in all: largest 2, asked 3")


def test_a_job_larger_than_its_quota_would_never_start(rounds: Rounds) -> None:
    rounds.mirror.apply(NamespaceRecord("team", {"cpu": 500}))

    assert plan(rounds, job_spec(9, namespace="team")).outcome is PlanOutcome.NEVER


def test_a_job_that_must_start_now_would_be_rejected(rounds: Rounds) -> None:
    outlook = plan(rounds, job_spec(9, needs={"cpu": 2000}, when_unschedulable=Unschedulable.REJECT))

    assert outlook.outcome is PlanOutcome.NEVER
    assert outlook.sentence.startswith("would be rejected: 1 of 1 nodes has too little free cpu")


def test_a_closed_node_makes_a_job_wait_but_not_for_ever(rounds: Rounds) -> None:
    rounds.mirror.apply(NodeIntent(NodeId("a"), Eligibility.CORDONED))

    assert plan(rounds, job_spec(9)).outcome is PlanOutcome.WAIT


def test_without_nodes_nothing_can_run() -> None:
    assert plan(Rounds(), job_spec(9)).sentence == "would never start: no node has joined"


def test_planned_evictions_are_listed(rounds: Rounds) -> None:
    outlook = plan(rounds, job_spec(9, needs={"cpu": 2000}, priority=90))

    assert outlook.outcome is PlanOutcome.NOW
    assert outlook.sentence == "would start as soon as 1 task of lower priority has given way on a"
    assert outlook.evicts == (PlannedEviction(job_spec(1).id, "default", ((0, 0),)),)


def test_hypothetical_nodes_can_be_added(rounds: Rounds) -> None:
    add_node(rounds.mirror, "new-1", {"cpu": 500})
    more = NewNode({"cpu": 8000}, {"region": "eu"}, count=2)
    wanted = job_spec(9, count=2, needs={"cpu": 8000}, where=(where("region", "==", "eu"),))

    outlook = plan(rounds, wanted, WhatIf(add_nodes=(more,)))

    assert outlook.places == (PlannedPlacement("new-2", 1, new=True), PlannedPlacement("new-3", 1, new=True))


def test_jobs_already_pending_use_new_nodes_first(rounds: Rounds) -> None:
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 8000}))
    rounds.go()

    outlook = plan(rounds, job_spec(9, needs={"cpu": 8000}), WhatIf((NewNode({"cpu": 8000}),)))

    assert outlook.outcome is PlanOutcome.WAIT


def test_nodes_can_be_removed_hypothetically(rounds: Rounds) -> None:
    add_node(rounds.mirror, "b")

    assert plan(rounds, job_spec(9), WhatIf(without=(NodeId("b"),))).places == (PlannedPlacement("a", 1),)
    assert plan(rounds, job_spec(9), WhatIf(without=(NodeId("a"), NodeId("b")))).outcome is PlanOutcome.NEVER


@given(st.lists(NODES, max_size=5), st.lists(WISHES, max_size=4), WISHES, QUOTAS)
@settings(max_examples=100, deadline=None)
def test_a_plan_says_what_the_next_round_does(
    nodes: list[dict[str, Any]], others: list[dict[str, Any]], wishes: dict[str, Any], quota: dict[str, int]
) -> None:
    rounds = cluster(nodes, others, quota)
    spec = job_spec(99, **wishes)
    outlook = plan(rounds, spec)
    placed = place(rounds, add_job(rounds.mirror, spec))

    by_node: dict[str, int] = {}
    for node in placements(rounds.mirror, spec.id).values():
        by_node[node] = by_node.get(node, 0) + 1
    if not outlook.evicts:
        assert {place.node: place.tasks for place in outlook.places} == by_node
    assert bool(placed) <= (outlook.outcome is PlanOutcome.NOW)


def test_with_scale_the_plan_names_the_cluster_that_would_grow_and_by_how_much(rounds: Rounds) -> None:
    intent = ClusterIntent("burst", provider="p", capacity={"cpu": 2000}, max_nodes=4)
    for record in (ClusterRecord("burst"), intent, ClusterRecord("hand"), ClusterIntent("hand")):
        rounds.mirror.apply(record)
    spec = job_spec(9, count=5, cluster="burst")
    full = job_spec(9, needs={"cpu": 2000}, priority=10)

    assert plan(rounds, spec, WhatIf(scale=True)).grows == PlannedScaling("burst", 3, 0, 4, 5, 5)
    assert plan(rounds, full, WhatIf(scale=True)).grows == PlannedScaling("burst", 1, 0, 4, 1, 1)
    assert plan(rounds, full).grows is None
    assert plan(rounds, job_spec(9, cluster="hand"), WhatIf(scale=True)).grows is None
    assert plan(rounds, job_spec(9, needs={"cpu": 8000}), WhatIf(scale=True)).grows is None


def test_a_job_that_needs_a_larger_cluster_would_wait_for_it() -> None:
    rounds = Rounds()
    for record in (
        ClusterRecord("default"),
        ClusterIntent("default", provider="p", capacity={"cpu": 2000}, max_nodes=4),
    ):
        rounds.mirror.apply(record)
    outlook = plan(rounds, job_spec(9, count=5))

    assert (outlook.outcome, outlook.sentence) == (
        PlanOutcome.WAIT,
        "would wait until cluster default has grown",
    )
    assert outlook.grows == PlannedScaling("default", 3, 0, 4, 5, 5)
    assert outlook.why is not None
    assert outlook.why.changes == (), "no action is advised"
    assert plan(rounds, job_spec(9, needs={"cpu": 8000})).outcome is PlanOutcome.NEVER
