"""What each fault test has seen and measured, told at the end: `make faults` is read there."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from tests.faults.tally import Tally

PROPERTY = "faults"
FIGURES = "figures"
found_by: dict[str, tuple[Tally, dict[str, Any]]] = {}  # of tests that run


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """It is told with the test's result, also when that fails: so it comes from workers, too."""
    found = Tally()
    row: dict[str, Any] = {}
    request.node.user_properties.append((PROPERTY, row))
    found_by[request.node.nodeid] = (found, row)
    yield found
    del found_by[request.node.nodeid]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> None:
    if item.nodeid in found_by:
        found, row = found_by[item.nodeid]
        row.update(asdict(found))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ended = [
        (report, state)
        for state in ("passed", "failed")
        for report in terminalreporter.getreports(state)
        if report.when == "call"
    ]
    _tell_tallies(terminalreporter, ended)
    figures = [
        (report, told) for report, _ in ended for name, told in report.user_properties if name == FIGURES
    ]
    if figures:
        terminalreporter.section("figures")
    for report, told in figures:
        terminalreporter.write_line(f"{_case(report.nodeid)} ({report.duration:.0f} s)\n    {told}")


def _tell_tallies(terminalreporter: pytest.TerminalReporter, ended: list[tuple[Any, str]]) -> None:
    rows = [
        (_case(report.nodeid), told, state)
        for report, state in ended
        if (told := dict(report.user_properties).get(PROPERTY))
    ]
    if not rows:
        return
    width = max(len(case) for case, *_ in rows)
    names = list(asdict(Tally()))
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'case':<{width}}  {'  '.join(f'{name:>11}' for name in names)}")
    for case, told, state in sorted(rows, key=lambda row: row[0]):
        cells = "  ".join(f"{told[name]:>11}" for name in names)
        terminalreporter.write_line(f"{case:<{width}}  {cells}{'' if state == 'passed' else '  FAILED'}")


def _case(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
