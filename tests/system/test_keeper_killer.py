"""A task that kills the keeper of its node is held after a few attempts, and its neighbour continues."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.model.limits import QUARANTINE_KEEPER_DEATHS_TIED
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
PATIENCE_SECONDS = 120  # several pauses that double


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node: nothing can get out of the way."""
    with LocalCluster(tmp_path, nodes=1) as running:
        yield running


def test_a_poison_task_is_held_with_a_reason_and_its_neighbour_continues(
    lonely: LocalCluster, witness: Witness, gate: Gate
) -> None:
    neighbour = lonely.submit("sh", "-c", gate.wait)
    until(lambda: lonely.count(neighbour, "running") == 1, "the neighbour runs")

    culprit = lonely.submit(*witness.script("kill -9 $PPID"), retries=0)

    until(lambda: lonely.count(culprit, "held") == 1, "it is held", PATIENCE_SECONDS)
    starts = len(witness.seen())
    assert 3 <= starts <= QUARANTINE_KEEPER_DEATHS_TIED
    assert "is held as suspect: the keeper died" in lonely.rota("why", culprit).out
    until(lambda: lonely.count(neighbour, "running") == 1, "the neighbour runs again", PATIENCE_SECONDS)
    gate.open()
    assert lonely.rota("wait", neighbour).code == 0
    assert len(witness.seen()) == starts, "what is held does not start"
