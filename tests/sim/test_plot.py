"""Plots: valid SVG, all points within the panels, and each run with its line, colour and name."""

import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from rota.sim.workloads.figures import TaskRun, Timeline, timeline
from rota.sim.workloads.plot import COLOURS, log_log, over_time

SVG = "{http://www.w3.org/2000/svg}"
RAN = timeline([TaskRun("1", 0, 1000, 0, 0, 7_200_000), TaskRun("2", 0, 1000, 0, 3_600_000, 7_200_000)], 2000)
COST = {"deciding": [(100.0, 0.5), (1000.0, 6.0), (10000.0, 70.0)], "all": [(100.0, 2.0), (10000.0, 300.0)]}


def texts(picture: str) -> list[str]:
    return [str(element.text) for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def lines(picture: str) -> list[ElementTree.Element]:
    """The drawn lines, without the grid and the legend."""
    return [
        path for path in ElementTree.fromstring(picture).iter(f"{SVG}path") if path.get("stroke-linejoin")
    ]


def points(picture: str) -> Iterator[tuple[float, float]]:
    for line in lines(picture):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", str(line.get("d")))]
        yield from zip(numbers[::2], numbers[1::2], strict=True)


def test_a_plot_over_time_names_its_axes_its_runs_and_itself() -> None:
    found = texts(over_time("a day", {"Rota": RAN}))

    assert {"a day", "Rota", "utilisation", "tasks waiting", "100 %", "minutes"} <= set(found)


def test_each_run_has_a_line_in_both_panels_in_the_colour_of_its_name() -> None:
    picture = over_time("two", {"nothing yet": Timeline([], [], []), "one": RAN, "other": RAN})

    assert [line.get("stroke") for line in lines(picture)] == [COLOURS[1], COLOURS[2]] * 2
    assert all(f'stroke="{colour}" stroke-width="3"' in picture for colour in COLOURS[:3])


def test_a_single_run_is_filled() -> None:
    assert over_time("one", {"Rota": RAN}).count("fill-opacity") == 2
    assert over_time("two", {"one": RAN, "other": RAN}).count("fill-opacity") == 0


@pytest.mark.parametrize(
    ("span_ms", "unit", "last"),
    [
        (5_000, "seconds", "5"),
        (90_000, "seconds", "90"),
        (3_600_000, "minutes", "60"),
        (86_400_000, "hours", "24"),
        (30 * 86_400_000, "days", "30"),
        (40_000 * 86_400_000, "days", "40,000"),
    ],
)
def test_the_time_axis_has_a_suitable_unit(span_ms: int, unit: str, last: str) -> None:
    found = texts(over_time("time", {"Rota": timeline([TaskRun("1", 0, 1000, 0, 0, span_ms)], 1000)}))

    assert found[-1] == unit
    assert found[-3] == last


@pytest.mark.parametrize("waiting", [0, 1, 3, 7, 99, 12_345, 1_000_000])
def test_everything_drawn_lies_within_its_panel(waiting: int) -> None:
    picture = over_time("full", {"Rota": Timeline([500.0, 1500.0], [0.0, 1.0], [0.0, float(waiting)])})

    assert all(72 <= x <= 724 and 96 <= y <= 400 for x, y in points(picture))


def test_a_plot_of_no_rows_is_valid() -> None:
    picture = over_time("nothing", {"Rota": timeline([], 1000)})

    assert lines(picture) == []
    assert "nothing" in texts(picture)
    assert lines(over_time("no run", {})) == []


def test_names_are_escaped() -> None:
    assert "<a & b>" in texts(over_time("<a & b>", {'"quoted"': RAN}))


def test_proportion_is_a_straight_line_when_both_axes_are_logarithmic() -> None:
    straight = {"line": [(100.0, 1.0), (1000.0, 10.0), (10000.0, 100.0)]}
    (first, middle, last) = points(log_log("cost", ("nodes", "seconds"), straight))

    assert middle == pytest.approx(((first[0] + last[0]) / 2, (first[1] + last[1]) / 2), abs=0.1)


def test_a_logarithmic_plot_shows_each_point_and_whole_decades() -> None:
    picture = log_log("cost", ("nodes", "seconds"), COST)

    assert {"nodes", "seconds", "deciding", "all", "100", "1,000", "10,000", "0.1"} <= set(texts(picture))
    assert picture.count("<circle") == 5
    assert [line.get("stroke") for line in lines(picture)] == list(COLOURS[:2])


def test_points_that_have_no_logarithm_are_left_out() -> None:
    picture = log_log(
        "cost", ("nodes", "seconds"), {"line": [(0.0, 1.0), (10.0, 0.0), (10.0, 1.0)], "none": []}
    )

    assert picture.count("<circle") == 1
