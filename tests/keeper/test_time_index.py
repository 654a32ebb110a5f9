"""Time marks of output: monotonic, robust against crashes, thinned out with age."""

from pathlib import Path

import pytest

from rota.keeper.output import index, time_index
from rota.keeper.output.index import Extent
from rota.keeper.output.time_index import AGE_SHARE, MARK, thinned
from tests.keeper.conftest import Agent, Keeper, wait_until

DAY_MS = 24 * 3600 * 1000


def marks(keeper: Keeper, stream: str = "out") -> time_index.TimeIndex:
    path = keeper.root / f"logs/7/0.{stream}.times"
    return time_index.parse_marks(path.read_bytes()) if path.exists() else time_index.TimeIndex()


def test_a_stream_gets_a_time_mark_when_it_has_grown(keeper: Keeper, agent: Agent) -> None:
    go = keeper.root / "go"
    agent.start(
        "7", "sh", "-c", f"printf 12345; until [ -e {go} ]; do sleep 0.02; done; printf 678; sleep 600"
    )
    wait_until(lambda: marks(keeper).positions == [5], "a mark of the first words")
    go.touch()
    wait_until(lambda: marks(keeper).positions == [5, 8], "a mark of the last words")

    first, second = marks(keeper).at_ms
    begun = index.start_ms((keeper.root / "logs/7/index").read_bytes(), 0, 1)
    assert begun is not None
    assert begun <= first <= second
    assert marks(keeper, "err").positions == []


def test_a_short_attempt_without_marks_has_the_time_of_its_end(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "echo", "hello", tasks=[[number, 1, 0] for number in range(40)])
    agent.wait_ended(40)
    wait_until(lambda: (keeper.root / "logs/7/index").read_bytes().count(b"E ") == 40, "all ends")

    lines = (keeper.root / "logs/7/index").read_bytes()
    for number in range(40):
        begun, ended = index.start_ms(lines, number, 1), index.end_ms(lines, number, 1)
        assert begun is not None
        assert ended is not None
        assert begun <= ended


def test_time_lines_do_not_hide_other_lines() -> None:
    at = Extent(3, 4)
    lines = (
        index.time_line(10) + index.start_line(1, 1, 0, at) + index.time_line(20) + index.end_line(1, 1, at)
    )

    assert index.find_end(lines, 1, 1) == at
    assert [entry[:2] for entry in index.read_all(lines)] == [(1, 1), (1, 1)]
    assert (index.start_ms(lines, 1, 1), index.end_ms(lines, 1, 1)) == (10, 20)
    assert index.start_ms(lines, 2, 1) is None
    assert index.last_ms(b"S 1 1 0 3 4\n") is None


def test_a_partial_mark_is_ignored_and_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "0.out.times"
    path = bytes(file)
    time_index.append_mark(path, 5, 100)
    with file.open("ab") as torn:
        torn.write(b"half")

    assert time_index.parse_marks(file.read_bytes()).positions == [5]
    assert time_index.append_mark(path, 9, 200) == 2
    assert time_index.parse_marks(file.read_bytes()).positions == [5, 9]


def test_positions_and_marks_are_looked_up_by_time() -> None:
    found = time_index.parse_marks(
        b"".join(MARK.pack(position, at_ms) for position, at_ms in ((5, 100), (9, 200), (12, 300)))
    )

    assert [found.position_at(at_ms) for at_ms in (99, 100, 250, 1000)] == [0, 5, 9, 12]
    assert found.marks_between(5, 12) == [(9, 200), (12, 300)]
    assert time_index.TimeIndex().position_at(100) == 0


def test_old_marks_are_thinned_out_and_the_latest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_index, "MARKS_MOST", 3000)
    path = bytes(tmp_path / "0.out.times")
    counts = [time_index.append_mark(path, second, second * 1000) for second in range(1, 20_000)]
    found = time_index.parse_marks((tmp_path / "0.out.times").read_bytes())

    assert max(counts) <= 3000
    assert found.positions[-100:] == list(range(19_900, 20_000))
    for before, after in zip(found.at_ms, found.at_ms[1:], strict=False):
        assert after - before <= max(1000, (20_000_000 - before) / AGE_SHARE)


def test_marks_of_a_month_are_bounded_and_dense_for_their_age() -> None:
    all_of_them = [(second, second * 1000) for second in range(0, 30 * 24 * 3600, 60)]
    kept = thinned(all_of_them, 30 * DAY_MS)

    assert len(kept) < 6000
    assert kept[-1] == all_of_them[-1]
    assert set(kept) <= set(all_of_them)
