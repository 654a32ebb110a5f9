"""A drain is previewed on a copy: which tasks move where, which wait, and which may end."""

import pytest

from rota.engine.state.what_if import WhatIfMirror
from rota.model.ids import NodeId
from rota.model.job import Recovery
from rota.model.node import Eligibility
from rota.model.outlook import DisplacedTasks, DrainOutcome, PlannedPlacement
from rota.model.shape import RunMode
from rota.scheduler.drain_preview import preview_drain
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine


def preview(stage: Stage, *nodes: str, everything: bool = False) -> tuple[DisplacedTasks, ...]:
    names = tuple(NodeId(node) for node in nodes)
    return preview_drain(WhatIfMirror.copy_of(stage.mirror), names, stage.now, everything=everything)


@pytest.fixture
def stage() -> Stage:
    """Node a is full; then b and c join, with free resources for three tasks."""
    made = Stage()
    made.join(StageMachine("a", {"cpu": 5000}, {}))
    made.submit(job_spec(1, count=4))
    made.submit(job_spec(2, run=RunMode.AT_MOST_ONCE))
    made.join(StageMachine("b", {"cpu": 2000}, {}))
    made.join(StageMachine("c", {"cpu": 1000}, {}))
    return made


def test_tasks_that_fit_elsewhere_move_and_the_others_wait(stage: Stage) -> None:
    moved, once = preview(stage, "a")

    assert moved.places == (PlannedPlacement("b", 2), PlannedPlacement("c", 1))
    assert (moved.fate, moved.indices, moved.waits) == (DrainOutcome.MOVES, ((0, 3),), 1)
    assert moved.why is not None
    assert once == DisplacedTasks(job_spec(2).id, "default", DrainOutcome.STAYS, ((0, 0),))


def test_nodes_drained_together_take_nothing_from_each_other(stage: Stage) -> None:
    moved, _ = preview(stage, "a", "b")

    assert (moved.places, moved.waits) == ((PlannedPlacement("c", 1),), 3)


def test_a_forced_drain_ends_at_most_once_tasks_too(stage: Stage) -> None:
    _, once = preview(stage, "a", everything=True)

    assert once.fate is DrainOutcome.ENDS


@pytest.mark.parametrize(
    ("owner", "fate"),
    [
        (Recovery.CANCEL, DrainOutcome.ENDS),
        (Recovery.NONE, DrainOutcome.ENDS),
        (Recovery.CONTROLLER, DrainOutcome.CONTROLLER_DECIDES),
    ],
)
def test_tasks_with_a_recovery_controller_are_not_reported_to_move(
    owner: Recovery, fate: DrainOutcome
) -> None:
    stage = Stage()
    stage.join(StageMachine("a", {"cpu": 1000}, {}))
    stage.submit(job_spec(1, recovery=owner, user="ann", controller="ci"))
    stage.join(StageMachine("b", {"cpu": 1000}, {}))

    assert preview(stage, "a") == (DisplacedTasks(job_spec(1).id, "default", fate, ((0, 0),)),)


def test_a_gang_moves_as_a_whole() -> None:
    stage = Stage()
    for name in "ab":
        stage.join(StageMachine(name, {"cpu": 1000}, {}))
    stage.submit(job_spec(1, count=2, gang=True))
    stage.join(StageMachine("c", {"cpu": 1000}, {}))

    (moved,) = preview(stage, "a")

    assert (moved.indices, moved.waits) == (((0, 1),), 0)
    assert {place.node for place in moved.places} == {"b", "c"}


def test_a_preview_changes_nothing_and_the_drain_does_what_it_said(stage: Stage) -> None:
    before = dict(stage.records)
    moved, _ = preview(stage, "a")
    assert stage.records == before

    stage.drain("a", 0)

    by_node = stage.mirror.jobs[job_spec(1).id].live_by_node
    assert {place.node: place.tasks for place in moved.places} == by_node
    assert stage.mirror.jobs[job_spec(1).id].task_counts.pending == moved.waits


def test_the_eviction_budget_holds_but_one_task_always_moves() -> None:
    events: list[str] = []
    stage = Stage(events.append)
    stage.join(StageMachine("a", {"cpu": 3000}, {}))
    stage.submit(job_spec(1, count=3, evict_at_most=0))

    stage.drain("a", 0)
    assert events.count("task 0 of job 1 stopped on a") == 1
    assert stage.mirror.jobs[job_spec(1).id].live_by_node == {NodeId("a"): 2}

    stage.wait(2_000)
    assert not stage.mirror.jobs[job_spec(1).id].live_by_node
    assert events[-1].startswith("tried again")


def test_an_empty_node_is_drained_immediately_and_opening_it_clears_the_deadline(stage: Stage) -> None:
    stage.drain("a", 60_000)
    stage.set_eligibility("a", Eligibility.OPEN)
    stage.wait(120_000)

    assert stage.mirror.jobs[job_spec(1).id].live_by_node == {NodeId("a"): 4}
