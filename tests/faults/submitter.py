"""Submits jobs one after the other to the leader and records which were acknowledged. [I/O]"""

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from rota.client.cluster import Cluster, connect
from rota.client.context import Endpoint
from rota.client.errors import Unavailable
from rota.testing.election import ElectedCluster
from rota.testing.processes import until

TIMEOUT_SECONDS = 120


@dataclass
class LoadSubmitter:
    """Submits jobs with keys of their own, about `at_once` / `pause_seconds` of them per second."""

    cluster: ElectedCluster
    pause_seconds: float = 0.01
    at_once: int = 1
    acknowledged: dict[str, str] = field(default_factory=dict)
    sent_at: dict[str, float] = field(default_factory=dict)  # of the request that was acknowledged
    stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "LoadSubmitter":
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(self.at_once)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, submits: int = 1) -> None:
        target = len(self.acknowledged) + submits
        until(lambda: len(self.acknowledged) >= target, "submits are acknowledged", TIMEOUT_SECONDS)

    def acknowledged_of_those_sent_after(self, instant: float) -> list[str]:
        """Keys whose request was sent after that instant of the monotonic clock."""
        return [key for key, sent_at in list(self.sent_at.items()) if sent_at > instant]

    def check(self) -> None:
        """Check that each acknowledged job exists once and succeeds."""
        with connect(self.cluster.addr, token=self.cluster.token) as client:
            for submitted in self.acknowledged.values():
                assert client.job(submitted).wait(TIMEOUT_SECONDS).state == "succeeded"
            names = Counter(status.name for status in client.jobs() if status.name in self.acknowledged)
        assert names == dict.fromkeys(self.acknowledged, 1)

    def _run(self, number: int) -> None:
        numbers = count()
        # Without a retry timeout a call asks each server at most once, so that `sent_at` is only seconds old.
        with Cluster(Endpoint(self.cluster.addr, self.cluster.token), patience_seconds=0) as client:
            key = f"key-{number}-{next(numbers)}"
            while not self.stopping.wait(self.pause_seconds):
                sent_at = time.monotonic()
                with contextlib.suppress(Unavailable):
                    job = client.submit("true", key=key, name=key).id
                    self.sent_at[key], self.acknowledged[key] = sent_at, job
                    key = f"key-{number}-{next(numbers)}"
