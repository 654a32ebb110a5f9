"""Every scenario here happens as written. ROTA_REWRITE_SCENARIOS=1 rewrites them: read the diff."""

import os
from pathlib import Path

import pytest

from rota.testing.scenario import replay

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.stem)
def test_a_scenario_happens_as_written(scenario: Path) -> None:
    expected = scenario.read_text()
    actual = replay(expected)
    if os.environ.get("ROTA_REWRITE_SCENARIOS"):
        scenario.write_text(actual)
        return

    assert actual.splitlines() == expected.splitlines()


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 12
