"""kill -9 of the server: nothing acknowledged is lost or duplicated, running tasks are not affected."""

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field

import pytest

from rota.client.cluster import connect
from rota.client.errors import Unavailable
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
KILLS = 10


@dataclass
class Submitter:
    """Submits one job after the other, each with its own key, across every restart."""

    cluster: LocalCluster
    acknowledged: dict[str, str] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with connect(f"http://{self.cluster.http}", token=self.cluster.token) as client:
            while not self.stopping.is_set():
                key = f"key-{len(self.acknowledged)}"
                with contextlib.suppress(Unavailable):  # beyond the client's timeout: repeated
                    self.acknowledged[key] = client.submit("true", key=key, name=key).id
                self.stopping.wait(0.05)


def test_ten_kills_lose_nothing_and_run_nothing_twice(cluster: LocalCluster, witness: Witness) -> None:
    job = cluster.submit(*witness.script("sleep 0.2"), count=600, name="array")
    waiting = cluster.start_rota("wait", job)
    submitter = Submitter(cluster)
    thread = threading.Thread(target=submitter.run)
    thread.start()
    try:
        for _ in range(KILLS):
            before = len(witness.seen())
            until(lambda seen=before: len(witness.seen()) > seen, "the array goes on")  # type: ignore[misc]
            known = len(submitter.acknowledged)
            until(lambda seen=known: len(submitter.acknowledged) > seen, "a submit comes through")  # type: ignore[misc]
            cluster.kill_server()
            cluster.start_server()
    finally:
        submitter.stopping.set()
        thread.join()

    assert waiting.wait(120) == 0
    assert witness.starts() == dict.fromkeys(range(600), 1)
    with connect(f"http://{cluster.http}", token=cluster.token) as client:
        for submitted in submitter.acknowledged.values():
            assert client.job(submitted).wait(60).state == "succeeded"
        names = Counter(status.name for status in client.jobs())
    assert len(submitter.acknowledged) >= KILLS
    expected = dict.fromkeys(("array", *submitter.acknowledged), 1)
    unanswered = f"key-{len(submitter.acknowledged)}"  # it may have been stored all the same
    assert names in (expected, expected | {unanswered: 1})


def test_a_followed_run_continues_across_a_server_kill(cluster: LocalCluster, gate: Gate) -> None:
    running = cluster.start_rota(
        "run", "--quiet", "--", "sh", "-c", f"echo one; {gate.wait}; echo two; exit 5"
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"one\n"

    cluster.kill_server()
    gate.open()
    cluster.start_server()

    out, _ = running.communicate(timeout=120)
    assert (running.returncode, out) == (5, b"two\n")


def test_a_key_still_means_the_same_job_after_a_kill(cluster: LocalCluster) -> None:
    body = {"command": ["true"], "name": "once"}
    first = cluster.call("POST", "/v1/jobs", body, **{"idempotency-key": "k"})
    cluster.kill_server()
    cluster.start_server()

    again = cluster.call("POST", "/v1/jobs", body, **{"idempotency-key": "k"})
    other = cluster.call("POST", "/v1/jobs", {"command": ["false"]}, **{"idempotency-key": "k"})

    assert (first.status, again.body["id"]) == (201, first.body["id"])
    assert (other.status, other.body["code"]) == (409, "conflict")
