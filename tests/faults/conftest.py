"""Prints what each fault test has counted and measured at the end of the run, for `make faults`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from tests.faults.tally import Tally

PROPERTY = "faults"
FIGURES = "figures"
running: dict[str, tuple[Tally, dict[str, Any]]] = {}  # by test id


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Counts of one test; they are part of its report, so they arrive from workers and on failure, too."""
    found = Tally()
    row: dict[str, Any] = {}
    request.node.user_properties.append((PROPERTY, row))
    running[request.node.nodeid] = (found, row)
    yield found
    del running[request.node.nodeid]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> None:
    if item.nodeid in running:
        found, row = running[item.nodeid]
        row.update(asdict(found))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ended = [
        (report, state)
        for state in ("passed", "failed")
        for report in terminalreporter.getreports(state)
        if report.when == "call"
    ]
    _print_tallies(terminalreporter, ended)
    figures = [
        (report, text) for report, _ in ended for name, text in report.user_properties if name == FIGURES
    ]
    if figures:
        terminalreporter.section("figures")
    for report, text in figures:
        terminalreporter.write_line(f"{_case(report.nodeid)} ({report.duration:.0f} s)\n    {text}")


def _print_tallies(terminalreporter: pytest.TerminalReporter, ended: list[tuple[Any, str]]) -> None:
    rows = [
        (_case(report.nodeid), counts, state)
        for report, state in ended
        if (counts := dict(report.user_properties).get(PROPERTY))
    ]
    if not rows:
        return
    width = max(len(case) for case, *_ in rows)
    names = list(asdict(Tally()))
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'case':<{width}}  {'  '.join(f'{name:>11}' for name in names)}")
    for case, counts, state in sorted(rows, key=lambda row: row[0]):
        cells = "  ".join(f"{counts[name]:>11}" for name in names)
        terminalreporter.write_line(f"{case:<{width}}  {cells}{'' if state == 'passed' else '  FAILED'}")


def _case(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
