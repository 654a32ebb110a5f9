"""What each fault test has seen, as one table at the end: `make faults` is read there."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from tests.faults.tally import Tally

PROPERTY = "faults"
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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = []
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if report.when == "call":
                told = dict(report.user_properties).get(PROPERTY)
                rows += [] if not told else [(_case(report.nodeid), told, outcome)]
    if not rows:
        return
    width = max(len(case) for case, *_ in rows)
    names = list(asdict(Tally()))
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'case':<{width}}  {'  '.join(f'{name:>11}' for name in names)}")
    for case, told, outcome in sorted(rows, key=lambda row: row[0]):
        cells = "  ".join(f"{told[name]:>11}" for name in names)
        terminalreporter.write_line(f"{case:<{width}}  {cells}{'' if outcome == 'passed' else '  FAILED'}")


def _case(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
