"""Which tasks are suspected of taking down nodes."""

import msgspec

from rota.controllers.attempt_end import AttemptEnd
from rota.controllers.quarantine import Blame
from rota.controllers.recovery import BlockRecords
from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLAME_MS
from rota.model.recovery import EndCause
from rota.model.task import TaskBlock
from rota.testing.builders import at
from rota.testing.records import placed

JOB = JobId("1")
DOWN = AttemptEnd(AttemptState.LOST, cause=EndCause.NODE_DOWN)
OLD = TaskBlock(
    JOB, 0, b"\0", b"\0\0", b"\0\0", bytes(8), downed={0: (NodeId("a"), NodeId("b"))}, downed_ms={0: (0, 0)}
)


def lost(task: TaskBlock, node: str, now_ms: int, end: AttemptEnd = DOWN) -> tuple[TaskBlock, bool]:
    """The block after the task was lost with this node, and whether the task is suspect now."""
    attempt = placed(AttemptBlock.new(JOB, 0, 1), [0], node)
    blame = Blame(Mirror(), BlockRecords(task, attempt, StatusBlock.new(JOB, 0, 1)), at(now_ms))
    judged = blame.record(end, 0)
    now = msgspec.structs.replace(task, downed=blame.lost_nodes, downed_ms=blame.lost_at_ms)
    return now, judged.is_suspect


def after(*losses: tuple[str, int]) -> bool:
    task, suspect = TaskBlock.new(JOB, 0, 1), False
    for node, now_ms in losses:
        task, suspect = lost(task, node, now_ms)
    return suspect


def test_three_nodes_within_a_day_are_too_many() -> None:
    assert after(("a", 0), ("b", 1000), ("c", BLAME_MS - 1))
    assert not after(("a", 0), ("b", 1000))


def test_the_same_node_counts_once() -> None:
    assert not after(("a", 0), ("b", 1000), ("a", 2000), ("b", 3000))


def test_old_losses_no_longer_count() -> None:
    assert not after(("a", 0), ("b", 1000), ("c", BLAME_MS))
    assert not after(*((f"n{number}", number * BLAME_MS // 2) for number in range(20)))
    assert after(("a", 0), ("b", BLAME_MS - 1000), ("c", BLAME_MS), ("d", BLAME_MS + 1000))


def test_other_ends_are_not_blamed_on_the_task() -> None:
    task, suspect = lost(OLD, "c", 1000, AttemptEnd(AttemptState.LOST))

    assert not suspect
    assert task.downed == OLD.downed
