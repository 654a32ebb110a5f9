"""A standby sees only the last values of a commit, and reaches the state that a full load would give."""

from rota.engine.state.mirror import Mirror
from rota.engine.state.replay import replay_commit
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.ids import Key, NodeId
from rota.model.job import JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.model.node import NodeSpec
from rota.model.plan import Record
from rota.model.task import TaskBlock
from rota.testing.records import decided, job, node, placed, reported

SPEC = job(1, count=2, needs={"cpu": 1000})
ATTEMPTS = AttemptBlock.new(SPEC.id, 0, 2)
BEGUN: tuple[Record, ...] = (
    *(record for name in ("n1", "n2") for record in (NodeSpec(NodeId(name), name), node(name))),
    SPEC,
    JobStatus(SPEC.id, JobState.ACTIVE),
    placed(ATTEMPTS, [0, 1], "n1"),
)


def reserved(mirror: Mirror) -> dict[str, int]:
    table = mirror.node_table
    return {name: int(table.reserved[table.rows["cpu"], slot]) for name, slot in table.slot.items()}


def replayed(*commits: tuple[tuple[Record, ...], tuple[str, ...]]) -> Mirror:
    mirror = Mirror()
    for puts, deletes in commits:
        replay_commit(mirror, puts, map(Key, deletes))
    return mirror


def test_an_attempt_that_ended_and_started_elsewhere_in_one_commit_holds_resources_there_only() -> None:
    ended = reported(StatusBlock.new(SPEC.id, 0, 2), [0], AttemptState.FAILED)
    again = decided(TaskBlock.new(SPEC.id, 0, 2), [0], wanted=1)
    moved = placed(placed(ATTEMPTS, [0, 1], "n1"), [0], "n2", tries=1)
    mirror = replayed((BEGUN, ()), ((again, moved, ended), ()))

    assert reserved(mirror) == {"n1": 1000, "n2": 1000}
    assert [dict(entry.assigned) for entry in mirror.nodes.values()] == [
        {(SPEC.id, 1): 1},
        {(SPEC.id, 0): 2},
    ]


def test_a_job_deleted_in_the_next_commit_leaves_nothing_behind() -> None:
    mirror = replayed((BEGUN, ()), ((), (f"attempt/{SPEC.id}/0", f"job/{SPEC.id}/spec")))

    assert reserved(mirror) == {"n1": 0, "n2": 0}
    assert (list(mirror.pending_queues()), mirror.unfinished, mirror.jobs) == ([], 0, {})


def test_a_job_may_be_updated_and_its_attempts_end_in_one_commit() -> None:
    ended = reported(StatusBlock.new(SPEC.id, 0, 2), [0], AttemptState.SUCCEEDED)
    mirror = replayed((BEGUN, ()), ((job(1, count=2, needs={"cpu": 500}, version=2), ended), ()))

    assert reserved(mirror) == {"n1": 500, "n2": 0}
