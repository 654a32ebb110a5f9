"""Allocation of output segments, and their index."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.keeper.output import segments as module
from rota.keeper.output.segments import Segment, SegmentStore
from rota.keeper.resources.reservations import AttemptKey

FIRST: AttemptKey = ("7", 0, 1)
SECOND: AttemptKey = ("7", 1, 1)
THIRD: AttemptKey = ("7", 2, 1)


@pytest.fixture
def outputs(tmp_path: Path) -> SegmentStore:
    return SegmentStore(str(tmp_path))


def index(root: Path, job: str = "7") -> list[str]:
    """The index without its time lines."""
    lines = (root / "logs" / job / "index").read_text().splitlines()
    return [line for line in lines if not line.startswith("T ")]


def write(segment: Segment, out: bytes = b"", err: bytes = b"") -> None:
    for ending, data in (("out", out), ("err", err)):
        with open(f"{os.fsdecode(segment.path)}.{ending}", "ab") as file:
            file.write(data)


def end(outputs: SegmentStore, key: AttemptKey, segment: Segment) -> None:
    outputs.release(key, segment, outputs.measure(segment))


def test_attempts_of_a_job_use_a_segment_one_after_the_other(outputs: SegmentStore, tmp_path: Path) -> None:
    [segment] = outputs.allocate([FIRST])
    write(segment, b"hello\n", b"oh\n")
    end(outputs, FIRST, segment)

    assert outputs.allocate([SECOND]) == [segment]
    assert index(tmp_path) == ["S 0 1 0 0 0", "E 0 1 6 3", "S 1 1 0 6 3"]


def test_concurrent_attempts_and_other_jobs_share_no_segment(outputs: SegmentStore) -> None:
    taken = outputs.allocate([FIRST, SECOND, ("8", 0, 1)])

    assert len({segment.path for segment in taken}) == 3


def test_a_segment_that_is_open_for_writing_is_not_reused(outputs: SegmentStore) -> None:
    [segment] = outputs.allocate([FIRST])
    write(segment)
    with open(os.fsdecode(segment.path) + ".err", "ab"):
        end(outputs, FIRST, segment)

    assert outputs.allocate([SECOND])[0].number == 1


def test_a_long_segment_is_not_reused(outputs: SegmentStore) -> None:
    [segment] = outputs.allocate([FIRST])
    write(segment)
    os.truncate(segment.path + b".out", module.REUSE_BYTES_MAX + 1)
    end(outputs, FIRST, segment)

    assert outputs.allocate([SECOND])[0].number == 1


@pytest.mark.parametrize("harm", [os.unlink, lambda path: os.truncate(path, 0)])
def test_a_truncated_segment_is_not_reused(outputs: SegmentStore, harm: Callable[[bytes], None]) -> None:
    [segment] = outputs.allocate([FIRST])
    write(segment, b"hello\n")
    end(outputs, FIRST, segment)
    [segment] = outputs.allocate([SECOND])
    harm(segment.path + b".out")
    end(outputs, SECOND, segment)

    assert outputs.allocate([THIRD])[0].number == 1


def test_an_end_without_a_next_start_is_written_by_the_flush(outputs: SegmentStore, tmp_path: Path) -> None:
    [segment] = outputs.allocate([FIRST])
    write(segment, b"hello\n")
    end(outputs, FIRST, segment)
    outputs.flush()

    assert index(tmp_path) == ["S 0 1 0 0 0", "E 0 1 6 0"]


def test_the_next_keeper_records_lost_ends_and_uses_new_segments(
    outputs: SegmentStore, tmp_path: Path
) -> None:
    for segment in outputs.allocate([FIRST, SECOND]):
        write(segment, b"hello\n")
    with open(tmp_path / "logs/7/index", "a") as file:
        file.write("S 2 1 0 6")  # torn
    following = SegmentStore(str(tmp_path))
    following.record_lost_ends([FIRST, SECOND, THIRD, ("8", 0, 1)])

    assert index(tmp_path) == ["S 0 1 0 0 0", "S 1 1 1 0 0", "S 2 1 0 6?", "E 0 1 6 0", "E 1 1 6 0"]
    assert following.allocate([THIRD])[0].number == 2


@pytest.fixture
def small_disk() -> Iterator[None]:
    """A limit on the file size replaces a full disk: the write that exceeds it is short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (36, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_no_segment_is_allocated_and_no_line_is_torn(
    outputs: SegmentStore, tmp_path: Path, small_disk: None
) -> None:
    [segment] = outputs.allocate([FIRST])
    end(outputs, FIRST, segment)
    with pytest.raises(OSError, match="No space left"):
        outputs.allocate([SECOND, THIRD])
    assert index(tmp_path) == ["S 0 1 0 0 0"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    outputs.flush()

    lines = index(tmp_path)
    assert lines[:2] == ["S 0 1 0 0 0", "E 0 1 0 0"]
    assert {line for line in lines if line.startswith("E")} == {"E 0 1 0 0", "E 1 1 0 0", "E 2 1 0 0"}


def test_open_files_are_bounded_and_closed_for_forgotten_jobs(
    outputs: SegmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_FILES", 4)
    keys: list[AttemptKey] = [(str(job), 0, 1) for job in range(20)]
    for attempt in (1, 2):
        for job, task, _ in keys:
            [segment] = outputs.allocate([(job, task, attempt)])
            write(segment, b"hello\n")
            end(outputs, (job, task, attempt), segment)
    outputs.flush()

    assert len(open_below(tmp_path)) == 4
    assert index(tmp_path, "0") == ["S 0 1 0 0 0", "E 0 1 6 0", "S 0 2 0 6 0", "E 0 2 12 0"]
    for job, _, _ in keys:
        outputs.forget(job)
    assert open_below(tmp_path) == []


def open_below(directory: Path) -> list[str]:
    """The files there that this process holds open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(f"{directory}/")]
