"""`parallel` and quota while tasks of a job move between two nodes."""

import pytest

from rota.model.ids import JobId, NodeId
from rota.model.job import JobIntent, JobSpec, MoveOrder
from rota.model.limits import MOVE_WAIT_MS
from rota.model.messages import ReportedState
from rota.model.namespace import NamespaceRecord
from rota.model.node import Connection, Eligibility, NodeIntent
from rota.testing.builders import add_job, add_node, job_spec, placements
from tests.scheduler.rounds import Rounds


def started(spec: JobSpec, **cpu: int) -> tuple[Rounds, JobId]:
    """Nodes with this much CPU each, and a job whose tasks were placed as far as `parallel` permits."""
    rounds = Rounds()
    for name, amount in cpu.items():
        add_node(rounds.mirror, name, {"cpu": amount})
    job = add_job(rounds.mirror, spec)
    rounds.go()
    return rounds, job


def move(rounds: Rounds, job: JobId, targets: dict[int, str]) -> None:
    """Order the first attempts to move to these nodes, and let them stop on their current ones."""
    sources = placements(rounds.mirror, job)
    moves = {
        index: MoveOrder(1, 0, NodeId(sources[index]), NodeId(target), 0) for index, target in targets.items()
    }
    rounds.mirror.apply(JobIntent(job, restart=dict.fromkeys(targets, 1), moves=moves))
    for index in targets:
        rounds.report(sources[index], int(job), ReportedState.STOPPED, (index, 1))


def test_a_moved_task_and_a_queued_one_share_the_parallel_limit() -> None:
    rounds, job = started(job_spec(1, count=3, parallel=1), a=4000, b=4000)
    move(rounds, job, {0: "b"})
    rounds.go()

    assert placements(rounds.mirror, job) == {0: "b"}


def test_queued_tasks_start_beside_a_moved_one_up_to_the_parallel_limit() -> None:
    rounds, job = started(job_spec(1, count=4, parallel=1), a=8000, b=500)
    move(rounds, job, {0: "b"})
    rounds.mirror.apply(job_spec(1, count=4, parallel=3))
    rounds.go()
    meanwhile = placements(rounds.mirror, job)
    rounds.go(MOVE_WAIT_MS)

    assert meanwhile == {1: "a", 2: "a"}  # the third slot is kept for task 0, which does not fit on b
    assert placements(rounds.mirror, job) == {0: "a", 1: "a", 2: "a"}


def test_tasks_moving_to_different_nodes_share_the_parallel_limit() -> None:
    rounds, job = started(job_spec(1, count=2, parallel=2), a=4000, b=1000, c=1000)
    sources = placements(rounds.mirror, job)
    targets = [name for name in ("a", "b", "c") if name not in sources.values()]
    move(rounds, job, {0: targets[0], 1: sources[0]})
    rounds.mirror.apply(job_spec(1, count=2, parallel=1))
    rounds.go()

    assert placements(rounds.mirror, job) == {0: targets[0]}


@pytest.mark.parametrize(("quota", "first"), [(2, [0, 1]), (1, [0])])
def test_moved_tasks_respect_the_quota_of_their_namespace(quota: int, first: list[int]) -> None:
    rounds, job = started(job_spec(1, count=2), a=4000, b=1000, c=1000)
    sources = placements(rounds.mirror, job)
    targets = [name for name in ("a", "b", "c") if name not in sources.values()]
    move(rounds, job, {0: targets[0], 1: sources[0]})
    other = add_job(rounds.mirror, job_spec(2))
    rounds.mirror.apply(NamespaceRecord("default", quota={"tasks": quota}))
    rounds.go()

    assert list(placements(rounds.mirror, job)) == first
    assert placements(rounds.mirror, other) == {}


@pytest.mark.parametrize("link", [Connection.DOWN, Connection.UNKNOWN])
def test_a_move_waits_for_a_target_that_is_disconnected_but_not_lost(link: Connection) -> None:
    """After a restart of the server nodes reconnect one by one: the target may not be the first of them."""
    rounds, job = started(job_spec(1), a=1000, b=1000, c=1000)
    (source,) = placements(rounds.mirror, job).values()
    target = next(name for name in ("a", "b", "c") if name != source)
    rounds.mirror.connect(NodeId(target), link)
    move(rounds, job, {0: target})
    rounds.go()
    meanwhile = placements(rounds.mirror, job)
    rounds.mirror.connect(NodeId(target), Connection.UP)
    rounds.go()

    assert meanwhile == {}
    assert placements(rounds.mirror, job) == {0: target}


def test_a_move_goes_elsewhere_when_its_target_is_cordoned_while_disconnected() -> None:
    rounds, job = started(job_spec(1), a=1000, b=1000, c=1000)
    (source,) = placements(rounds.mirror, job).values()
    target, other = (name for name in ("a", "b", "c") if name != source)
    rounds.mirror.connect(NodeId(target), Connection.DOWN)
    move(rounds, job, {0: target})
    rounds.mirror.apply(NodeIntent(NodeId(target), Eligibility.CORDONED))
    rounds.go()

    assert placements(rounds.mirror, job) == {0: other}


def test_resources_that_a_moved_task_took_first_were_not_tried_by_the_jobs_behind_it() -> None:
    """The queue behind the moved task never saw them: it is tried when they are free again."""
    rounds, moved = started(job_spec(1), a=1000)
    add_node(rounds.mirror, "b", {"cpu": 1000})
    other = add_job(rounds.mirror, job_spec(2))
    rounds.go()
    rounds.mirror.apply(NodeIntent(NodeId("a"), Eligibility.CORDONED))
    waiting = add_job(rounds.mirror, job_spec(3))
    move(rounds, moved, {0: "b"})
    rounds.go()
    rounds.report("b", int(other), ReportedState.EXITED, (0, 1))
    rounds.go()
    after_the_move = placements(rounds.mirror, moved), placements(rounds.mirror, waiting)
    rounds.report("b", int(moved), ReportedState.EXITED, (0, 2))
    rounds.go()

    assert after_the_move == ({0: "b"}, {})
    assert placements(rounds.mirror, waiting) == {0: "b"}
