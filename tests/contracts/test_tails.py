"""TailStore: the last bytes of each output, kept by the server."""

from pathlib import Path

import pytest

from rota.model.ids import JobId
from rota.model.limits import TAIL_BYTES
from rota.model.messages import Tail, TailPiece
from rota.store.tails import TailStore

JOB = JobId("7")


def chunk(offset: int, data: bytes, *, task: int = 0, final: bool = False, job: JobId = JOB) -> TailPiece:
    return TailPiece(job, task, 1, "stdout", offset, data, final)


def found(tails: TailStore, task: int = 0, job: JobId = JOB) -> Tail | None:
    return tails.find(job, task, 1, "stdout")


def test_adjacent_chunks_are_joined_up_to_the_last_bytes(tmp_path: Path) -> None:
    tails = TailStore(tmp_path)
    tails.store([chunk(0, b"a" * 10), chunk(5, b"a" * 5 + b"b" * TAIL_BYTES)])

    assert found(tails) == Tail(10, b"b" * TAIL_BYTES)
    tails.store([chunk(TAIL_BYTES + 100, b"c")])
    assert found(tails) == Tail(TAIL_BYTES + 100, b"c")


def test_live_and_final_tails_survive_a_restart(tmp_path: Path) -> None:
    tails = TailStore(tmp_path)
    tails.store([chunk(0, b"live"), chunk(3, b"ended", task=1, final=True)])
    tails.close()
    again = TailStore(tmp_path)

    assert found(again) == Tail(0, b"live")
    assert found(again, 1) == Tail(3, b"ended", is_final=True)
    assert found(again, 2) is None


def test_a_torn_record_costs_only_itself(tmp_path: Path) -> None:
    TailStore(tmp_path).store([chunk(0, b"first", final=True), chunk(0, b"second", task=1, final=True)])
    path = tmp_path / JOB
    path.write_bytes(path.read_bytes()[:-3])
    tails = TailStore(tmp_path)
    tails.store([chunk(0, b"third", task=2, final=True)])

    assert [found(tails, task) for task in range(3)] == [
        Tail(0, b"first", is_final=True),
        None,
        Tail(0, b"third", is_final=True),
    ]


def test_the_oldest_tails_are_dropped_first_and_no_job_takes_all_space(tmp_path: Path) -> None:
    tails = TailStore(tmp_path, most_bytes=40_000)
    for task in range(20):
        tails.store([chunk(0, b"x" * 1000, task=task, final=True)])
    for number in range(60):
        tails.store([chunk(0, b"y" * 1000, job=JobId(str(100 + number)), final=True)])

    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 40_000
    assert found(tails, 19) is None
    assert found(tails, job=JobId("159")) is not None


def test_the_later_half_of_a_large_job_is_retained(tmp_path: Path) -> None:
    tails = TailStore(tmp_path, most_bytes=40_000)
    for task in range(20):
        tails.store([chunk(0, b"x" * 1000, task=task, final=True)])

    assert found(tails, 0) is None
    assert found(tails, 19) is not None


@pytest.mark.parametrize("final", [True, False])
def test_nothing_of_a_deleted_job_is_retained(tmp_path: Path, final: bool) -> None:
    tails = TailStore(tmp_path)
    tails.store([chunk(0, b"x", final=final)])
    tails.forget(JOB)
    tails.close()

    assert found(tails) is None
    assert list(tmp_path.iterdir()) == []
