"""Packed columns, drafts of records that have them, and ranges of task indices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import Draft, Ranges, column
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.limits import BLOCK_TASKS
from rota.model.task import TaskBlock
from rota.testing.records import job

JOB = JobId("1")
KINDS: list[type[TaskBlock] | type[AttemptBlock] | type[StatusBlock]] = [TaskBlock, AttemptBlock, StatusBlock]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, BLOCK_TASKS])
def test_a_new_block_has_a_zero_per_task_in_each_column(
    kind: type[TaskBlock] | type[AttemptBlock] | type[StatusBlock], size: int
) -> None:
    block = kind.new(JOB, 0, size)

    for name in kind.COLUMNS:
        assert column(block, name).tolist() == [0] * size


@pytest.mark.parametrize("kind", KINDS)
def test_every_bytes_field_is_a_column(
    kind: type[TaskBlock] | type[AttemptBlock] | type[StatusBlock],
) -> None:
    assert {name for name, type_ in kind.__annotations__.items() if type_ is bytes} == set(kind.COLUMNS)


def test_a_column_cannot_be_written() -> None:
    cells = column(TaskBlock.new(JOB, 0, 4), "state")

    with pytest.raises(ValueError, match="read-only"):
        cells[0] = 1


@given(st.data())
def test_a_draft_changes_only_what_was_set(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, BLOCK_TASKS))
    before = StatusBlock.new(JOB, 0, size)
    cell = st.tuples(
        st.sampled_from(sorted(StatusBlock.COLUMNS)), st.integers(0, size - 1), st.integers(0, 127)
    )
    writes = data.draw(st.lists(cell, max_size=20))
    expected = {name: [0] * size for name in StatusBlock.COLUMNS}

    draft = Draft(before)
    for name, position, value in writes:
        draft[name][position] = value
        expected[name][position] = value
    after = draft.done(reasons={0: "said"})

    assert {name: column(after, name).tolist() for name in StatusBlock.COLUMNS} == expected
    assert after.reasons == {0: "said"}
    assert before == StatusBlock.new(JOB, 0, size)


def test_a_draft_without_changes_is_the_same_record() -> None:
    block = TaskBlock.new(JOB, 0, 4)
    draft = Draft(block)

    assert draft["state"].tolist() == [0] * 4
    assert draft.done() == block


def test_a_column_holds_the_largest_number_of_its_type() -> None:
    draft = Draft(AttemptBlock.new(JOB, 0, 2))
    largest = {name: int(np.iinfo(dtype).max) for name, dtype in AttemptBlock.COLUMNS.items()}
    for name, value in largest.items():
        draft[name][1] = value
    after = draft.done()

    assert {name: int(column(after, name)[1]) for name in largest} == largest


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([5, 6], "5-6"),
        ([*range(100), 103], "0-99, 103"),
        ([3, 1, 2], "1-3"),
    ],
)
def test_ranges_are_formatted(indices: list[int], text: str) -> None:
    assert str(Ranges(indices)) == text


@given(st.sets(st.integers(0, 300)))
def test_ranges_cover_exactly_their_indices_in_as_few_pairs_as_possible(indices: set[int]) -> None:
    ranges = Ranges.of(np.array(sorted(indices, reverse=True), np.int64))

    assert [index for low, high in ranges.pairs for index in range(low, high + 1)] == sorted(indices)
    assert all(high + 1 < low for (_, high), (low, _) in zip(ranges.pairs, ranges.pairs[1:], strict=False))


@given(st.integers(1, 10 * BLOCK_TASKS))
def test_the_blocks_of_a_job_hold_each_of_its_tasks_once(count: int) -> None:
    spec: JobSpec = job(count=count)
    sizes = [spec.block_size(block) for block in range(spec.blocks)]

    assert sum(sizes) == count
    assert all(size == BLOCK_TASKS for size in sizes[:-1])
    assert 1 <= sizes[-1] <= BLOCK_TASKS
