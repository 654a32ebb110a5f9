"""A newer version of a service on real processes: it is rolled out while healthy, and else rolled back."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from rota.client.cluster import Cluster
from rota.client.errors import Conflict
from rota.client.job import Job
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system

TASKS = 10
AWAY = 2  # at one time
# A server on a socket of its own: it answers with its version, or lives and does not answer.
SERVES = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
how = os.environ["HOW"]
if how == "exits":
    sys.exit(3)
if how == "hangs":
    time.sleep(600)
path = f"{sys.argv[1]}/{os.environ['ROTA_INDEX']}"
server = socket.socket(socket.AF_UNIX)
if os.path.exists(path):
    os.unlink(path)
server.bind(path)
server.listen(64)
while True:
    asked, _ = server.accept()
    asked.sendall(how.encode())
    asked.close()
"""
ASKS = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.settimeout(2)
server.connect(f"{sys.argv[1]}/{os.environ['ROTA_INDEX']}")
sys.exit(0 if server.recv(64) else 1)
"""
# Asks every task again and again, and writes down each time how many served. A round that took as long as
# a new task has to be well is no instant: by then others may be away.
COUNTS = """
import socket, sys, time
place, tasks = sys.argv[1], int(sys.argv[2])
while True:
    served = []
    began = time.monotonic()
    for index in range(tasks):
        server = socket.socket(socket.AF_UNIX)
        server.settimeout(5)
        try:
            server.connect(f"{place}/{index}")
            served.append(server.recv(64).decode())
        except OSError:
            pass
        server.close()
    if time.monotonic() - began < 1:
        answers = [one for one in served if one]
        print(len(answers), ",".join(sorted(set(answers))), flush=True)
    time.sleep(0.02)  # the service needs the machine, too
"""


class Load:
    """Requests to the service, all the time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rounds(self) -> list[tuple[int, str]]:
        """How many tasks answered, and with which versions; the last line may be incomplete."""
        lines = self._path.read_text().splitlines(keepends=True)
        rows = [line.rstrip("\n").partition(" ") for line in lines if line.endswith("\n")]
        return [(int(count), versions) for count, _, versions in rows]

    def await_more(self, rounds: int = 3) -> None:
        seen = len(self.rounds())
        until(lambda: len(self.rounds()) >= seen + rounds, "the service was asked some times more")

    @property
    def fewest(self) -> int:
        return min(count for count, _ in self.rounds())


@contextmanager
def asked_all_the_time(place: Path) -> Iterator[Load]:
    state = place / "told"
    with (
        state.open("w") as out,
        Popen([sys.executable, "-c", COUNTS, str(place), str(TASKS)], stdout=out) as asks,
    ):
        try:
            yield Load(state)
        finally:
            asks.kill()


def serve(client: Cluster, place: Path, **more: Any) -> Job:
    check = {"command": [sys.executable, "-c", ASKS, str(place)], "interval": "1s", "timeout": "10s"}
    job = client.submit(
        *(sys.executable, "-c", SERVES, str(place)),
        kind="service",
        count=TASKS,
        cpu=0.1,
        env={"HOW": "first"},
        check=check | {"after": "2s", "failures": 2},
        restart={"attempts": 1, "delay": "100ms", "delay_max": "100ms"},
        rollout={"max_parallel": AWAY, "healthy": "1s", "deadline": "1h"} | more,
    )
    until(lambda: job.refresh().healthy == TASKS, "all are healthy", 120)
    return job


def rollout(job: Job) -> dict[str, Any]:
    return dict(job.refresh().rollout or {})


def end(job: Job) -> None:
    job.kill()
    job.wait(60)


@pytest.mark.parametrize("how", ["exits", "hangs"])
def test_a_failing_version_is_rolled_back_within_the_unavailability_limit(
    client: Cluster, three: LocalCluster, tmp_path: Path, how: str
) -> None:
    job = serve(client, tmp_path)
    with asked_all_the_time(tmp_path) as load:
        load.await_more()
        job.update({"env": {"HOW": how}}, replace=True)
        until(lambda: rollout(job).get("state") == "done", "it went back", 180)
        load.await_more()
        rounds, fewest = load.rounds(), load.fewest
    shown, events = three.rota("show", job.id).out, three.rota("event", "ls").out
    tried = [task for task in job.tasks() if (task.attempt or 0) > 1]
    state = rollout(job)
    end(job)

    assert fewest >= TASKS - AWAY, "never were too many away at once"
    assert rounds[-1] == (TASKS, "first")
    assert {versions for _, versions in rounds} == {"first"}
    assert len(tried) == AWAY, "some were replaced, and what it had not reached was left alone"
    assert (state["version"], state["back_from"]) == (3, 2)
    assert "version 2 was taken back (task " in shown
    assert f"job {job.id} goes back to what it was before version 2, as version 3" in events


def test_a_healthy_version_replaces_all_tasks(client: Cluster, tmp_path: Path) -> None:
    job = serve(client, tmp_path)
    with asked_all_the_time(tmp_path) as load:
        load.await_more()
        job.update({"env": {"HOW": "second"}}, replace=True)
        until(lambda: rollout(job).get("state") == "done", "all are replaced", 180)
        load.await_more()
        job.rollback()
        with pytest.raises(Conflict):
            job.rollback()
        until(lambda: rollout(job).get("state") == "done", "all are as before", 180)
        load.await_more()
        rounds, fewest = load.rounds(), load.fewest
    end(job)

    assert fewest >= TASKS - AWAY
    assert (TASKS, "second") in rounds
    assert rounds[-1] == (TASKS, "first")
    assert job.status.version == 3


def test_a_version_that_never_becomes_healthy_is_rolled_back_in_time(
    client: Cluster, three: LocalCluster, tmp_path: Path
) -> None:
    """It never becomes healthy, and the server is killed in the middle of the rollout."""
    job = serve(client, tmp_path, deadline="8s")
    job.update({"env": {"HOW": "hangs"}, "restart": {"attempts": 1000}}, replace=True)
    three.kill_server()
    three.start_server()
    until(lambda: rollout(job).get("back_from") == 2, "it goes back", 120)
    until(lambda: rollout(job).get("state") == "done", "all are as before", 180)
    state = rollout(job)
    end(job)

    assert "no task became healthy as version 2 within 8 s" in state["back_why"]
