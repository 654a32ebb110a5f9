"""Attempt blocks that a round writes."""

from hypothesis import given
from hypothesis import strategies as st

from rota.engine.state.entries import JobEntry
from rota.model.attempt import LOOKAHEAD, AttemptBlock, Choice
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.scheduler.placement.attempt_blocks import AttemptBlockWriter, PlacedTasks
from rota.scheduler.placement.place import Assignments

HERE = NodeId("here")


@given(st.sampled_from([0, LOOKAHEAD]), st.integers(0, 255), st.integers(-1, 2**62))
def test_a_job_of_one_task_is_written_as_one_of_many_is(flags: int, devices: int, wall_ms: int) -> None:
    """The fast path for one task and the general path write the same columns."""
    (short,), (long,) = (written(count, flags, devices, wall_ms) for count in (1, 2))

    for name in AttemptBlock.COLUMNS:
        of_one, of_two = getattr(short, name), getattr(long, name)

        assert of_two == of_one + bytes(len(of_one)), name
    assert (short.nodes, short.gpus, short.choice) == (long.nodes, long.gpus, long.choice)


def written(count: int, flags: int, devices: int, wall_ms: int) -> tuple[AttemptBlock, ...]:
    """Place the first task of a job with this many tasks."""
    job = JobEntry(JobSpec(JobId("1"), "true", ("true",), 0, count=count))
    blocks = AttemptBlockWriter()
    blocks.add(
        PlacedTasks(job, [0], [HERE], [devices], flags, Assignments([])),
        Choice("it is there", HERE, 1),
        wall_ms,
    )
    return blocks.records()
