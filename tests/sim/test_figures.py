"""figures(), timeline(), table(): equal to values computed by hand."""

import random
from pathlib import Path

import pytest

from rota.sim.workloads.figures import Figures, TaskRun, figures, ran_in_log, show_duration, table, timeline
from rota.sim.workloads.toml_file import BadWorkload

SWF = Path(__file__).parent / "data" / "small.swf"
HALF = TaskRun("1", 0, 1000, 0, 0, 60_000)
QUEUED = TaskRun("2", 0, 2000, 0, 60_000, 100_000, attempts=3)


def drawn(count: int) -> list[TaskRun]:
    rng = random.Random(5)
    rows = []
    for number in range(count):
        submitted_ms = rng.randrange(100_000)
        started_ms = submitted_ms + rng.choice([0, rng.randrange(50_000)])
        ended_ms = started_ms + rng.randrange(20_000)
        rows.append(
            TaskRun(str(number), 0, rng.choice([500, 1000, 4000]), submitted_ms, started_ms, ended_ms)
        )
    return rows


def test_utilisation_is_the_cpu_time_used_of_what_there_was() -> None:
    found = figures([HALF, QUEUED], 2000)

    assert found.span_ms == 100_000
    assert found.utilisation == pytest.approx((60 + 80) / 200)
    assert found.tasks_per_second == pytest.approx(0.02)
    assert found.restarts == 2


def test_waits_have_a_mean_a_median_a_p95_and_a_maximum() -> None:
    rows = [TaskRun("1", task, 1000, 0, wait, wait + 1) for task, wait in enumerate(range(1, 101))]
    found = figures(rows, 1000)

    assert (found.wait_p50_ms, found.wait_p95_ms, found.wait_max_ms) == (50, 95, 100)
    assert found.wait_mean_ms == pytest.approx(50.5)


def test_slowdown_counts_short_runs_as_ten_seconds_and_is_never_below_one() -> None:
    long = TaskRun("1", 0, 1000, 0, 60_000, 120_000)
    short = TaskRun("2", 0, 1000, 0, 39_000, 40_000)
    at_once = TaskRun("3", 0, 1000, 0, 0, 1)

    assert figures([long], 1000).slowdown_mean == pytest.approx(2.0)
    assert figures([short], 1000).slowdown_mean == pytest.approx(4.0)
    assert figures([at_once], 1000).slowdown_mean == 1.0
    assert figures([long, short, at_once], 1000).slowdown_mean == pytest.approx(7 / 3)


def test_figures_of_no_rows_are_zero() -> None:
    assert figures([], 1000).tasks == 0
    assert timeline([], 1000).at_ms == []
    assert figures([TaskRun("1", 0, 1000, 5, 5, 5)], 1000).utilisation == 0.0
    assert "0" in table({"empty": figures([], 0)})


def test_a_timeline_has_the_means_of_running_and_waiting_tasks() -> None:
    found = timeline([HALF, QUEUED], 2000, points=5)

    assert found.at_ms == [10_000, 30_000, 50_000, 70_000, 90_000]
    assert found.utilisation == pytest.approx([0.5, 0.5, 0.5, 1.0, 1.0])
    assert found.waiting == pytest.approx([1, 1, 1, 0, 0])


def test_a_timeline_agrees_with_a_sum_over_every_millisecond() -> None:
    rows = [TaskRun("1", 0, 1000, 0, 3, 17), TaskRun("2", 0, 500, 2, 2, 9), TaskRun("3", 0, 250, 7, 20, 21)]
    found = timeline(rows, 1000, points=4)

    def mean(share: list[float], point: int) -> float:
        """21 ms in 4 parts: quarters of a millisecond are the common measure."""
        return sum(share[at // 4] for at in range(point * 21, (point + 1) * 21)) / 21

    busy = [
        sum(row.cpu_milli for row in rows if row.started_ms <= at < row.ended_ms) / 1000 for at in range(21)
    ]
    queue = [float(sum(row.submitted_ms <= at < row.started_ms for row in rows)) for at in range(21)]
    assert found.utilisation == pytest.approx([mean(busy, point) for point in range(4)])
    assert found.waiting == pytest.approx([mean(queue, point) for point in range(4)])


def test_the_mean_of_a_timeline_is_the_utilisation() -> None:
    rows = drawn(2000)
    found = timeline(rows, 64_000)

    assert sum(found.utilisation) / len(found.utilisation) == pytest.approx(figures(rows, 64_000).utilisation)


def test_a_log_has_the_figures_of_the_times_it_recorded() -> None:
    log = ran_in_log(SWF)
    found = figures(log.rows, log.cpu_milli)

    assert (log.cpu_milli, found.tasks, found.span_ms) == (8000, 4, 102_500)
    assert found.utilisation == pytest.approx((4 * 60 + 8 * 30 + 2 * 12.5) / (8 * 102.5))
    assert found.wait_mean_ms == pytest.approx((0 + 60 + 80 + 50) / 4 * 1000)
    assert found.slowdown_mean == pytest.approx((1 + 3 + 92.5 / 12.5 + 5) / 4)
    assert "1 row: no wait time" in [str(rows) for rows in log.left_out]


def test_a_log_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadWorkload, match=r"gone\.swf: cannot be read"):
        ran_in_log(tmp_path / "gone.swf")


def test_a_table_has_one_column_per_run() -> None:
    first = Figures(1234, 90_061_000, 0.705, 850.4, 0, 12_500, 250_000, 1.5, 7, 0.25)
    lines = table({"Rota": first, "the log itself": first}).splitlines()

    assert lines[0].split() == ["Rota", "the", "log", "itself"]
    assert {len(line) for line in lines} == {len(lines[0])}
    assert "utilisation" in lines[3]
    assert lines[3].count("70.5%") == 2
    assert "1,234" in lines[1]


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0 ms"),
        (850.4, "850 ms"),
        (999.9, "1.0 s"),
        (12_500, "12.5 s"),
        (59_990, "1 m 0 s"),
        (250_000, "4 m 10 s"),
        (3_599_900, "1 h 0 m"),
        (12_000_000, "3 h 20 m"),
        (1_054_800_000, "12 d 5 h"),
    ],
)
def test_durations_are_written_in_two_units(milliseconds: float, shown: str) -> None:
    assert show_duration(milliseconds) == shown
