"""Streams over HTTP across a killed server: nothing is lost, nothing is repeated."""

import threading

import pytest

from rota.client.cluster import connect
from rota.client.views import Event
from rota.testing.cluster import LocalCluster

pytestmark = pytest.mark.system
ROUNDS = 3


def test_a_watch_continues_across_a_killed_server_without_loss_or_repeat(cluster: LocalCluster) -> None:
    seen: list[Event] = []
    arrived = threading.Semaphore(0)
    last = threading.Event()

    def watch() -> None:
        with connect(f"http://{cluster.http}", token=cluster.token) as watcher:
            for event in watcher.watch(since="0"):
                seen.append(event)
                if event.kind == "job.ended":
                    arrived.release()
                if last.is_set() and event.kind == "job.ended":
                    return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    with connect(f"http://{cluster.http}", token=cluster.token) as client:
        for number in range(ROUNDS):
            client.run("true", count=5)
            assert arrived.acquire(timeout=60), "the end of a job is told"
            client.submit("true", cpu=100)  # its events occur while no client is connected
            cluster.kill_server()
            cluster.start_server()
            cluster.wait_for_nodes()
            if number == ROUNDS - 1:
                last.set()
        client.run("true")
        watching.join(timeout=60)
        history = client.events(limit=1000, since="0")

    sequences = [event.seq for event in seen]
    assert not watching.is_alive()
    assert sequences == [event.seq for event in history][: len(sequences)]
    assert len(sequences) == len(set(sequences))
    assert [event.kind for event in seen].count("job.submitted") == 2 * ROUNDS + 1
