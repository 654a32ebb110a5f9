"""The server dies at each step of a commit: nothing acknowledged is lost, nothing is done twice."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.client.cluster import connect
from rota.client.errors import Unavailable
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.contracts.processes import ROOT, SOURCE
from tests.faults.sizes import MANY
from tests.system.witness_file import Witness

pytestmark = pytest.mark.system
POINTS = ("before", "written", "synced", "marked", "answered", "spoken", "sent")
ROUNDS = 20 if MANY else 2


class MortalCluster(LocalCluster):
    """A cluster whose server dies at the given point."""

    def _command(self, *arguments: str | bytes) -> list[str | bytes]:
        line = super()._command(*arguments)
        return ["tests.system.dying_server" if part == "rota.cli.main" else part for part in line]

    def die_at(self, point: str) -> None:
        partial = self.directory / "die-at.new"
        partial.write_text(point)
        partial.replace(self.directory / "die-at")

    def has_died(self) -> bool:
        return self._server is not None and self._server.poll() is not None


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalCluster]:
    with MortalCluster(tmp_path, settings={"PYTHONPATH": f"{SOURCE}:{ROOT}"}) as running:
        yield running


@pytest.mark.timeout(600)
def test_a_crash_at_any_point_of_a_commit_loses_and_repeats_nothing(
    mortal: MortalCluster, witness: Witness
) -> None:
    job = mortal.submit(*witness.script("sleep 0.1"), count=400, name="array")
    acknowledged: list[str] = []
    stopping = threading.Event()

    def submit() -> None:
        with connect(f"http://{mortal.http}", token=mortal.token) as client:
            while not stopping.is_set():
                name = f"job-{len(acknowledged)}"
                with contextlib.suppress(Unavailable):  # beyond the client's timeout: repeated
                    acknowledged.append(client.submit("true", key=name, name=name).id)

    thread = threading.Thread(target=submit)
    thread.start()
    epochs = [_epoch(mortal)]
    try:
        for point in POINTS * ROUNDS:
            mortal.die_at(point)
            until(mortal.has_died, f"it died at {point}")
            mortal.start_server()
            epochs.append(_epoch(mortal))
            known = len(acknowledged)
            until(lambda seen=known: len(acknowledged) > seen, "a submit comes through")  # type: ignore[misc]
    finally:
        stopping.set()
        thread.join()

    assert mortal.rota("wait", job).code == 0
    assert witness.starts() == dict.fromkeys(range(400), 1)
    with connect(f"http://{mortal.http}", token=mortal.token) as client:
        for one in acknowledged:
            assert client.job(one).wait(60).state == "succeeded"
        names = Counter(status.name for status in client.jobs())
    expected = dict.fromkeys(("array", *(f"job-{n}" for n in range(len(acknowledged)))), 1)
    unanswered = f"job-{len(acknowledged)}"  # it may have been stored all the same
    assert names in (expected, expected | {unanswered: 1})
    assert epochs == sorted(set(epochs))
    mortal.kill_server()
    assert mortal.rota("store", "check", "--data-dir", "server").code == 0


def _epoch(cluster: LocalCluster) -> int:
    return int(cluster.call("GET", "/v1/server").body["epoch"])
