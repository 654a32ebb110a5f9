"""Submits one job after the other to whoever leads: what becomes of those that were acknowledged? [I/O]"""

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from rota.client.cluster import connect
from rota.client.errors import Unavailable
from rota.testing.election import ElectedCluster
from rota.testing.processes import until

PATIENCE_SECONDS = 120


@dataclass
class Submitter:
    """Each with its own key. Several at a time submit about `at_once` / `pause_seconds` a second."""

    cluster: ElectedCluster
    pause_seconds: float = 0.01
    at_once: int = 1
    acknowledged: dict[str, str] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Submitter":
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in range(self.at_once)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def go_on(self, submits: int = 1) -> None:
        wanted = len(self.acknowledged) + submits
        until(lambda: len(self.acknowledged) >= wanted, "submits come through", PATIENCE_SECONDS)

    def check(self) -> None:
        """Each of them is there, once, and ends."""
        with connect(self.cluster.addr, token=self.cluster.token) as client:
            for submitted in self.acknowledged.values():
                assert client.job(submitted).wait(PATIENCE_SECONDS).state == "succeeded"
            names = Counter(status.name for status in client.jobs() if status.name in self.acknowledged)
        assert names == dict.fromkeys(self.acknowledged, 1)

    def _run(self, one: int) -> None:
        numbers = count()
        with connect(self.cluster.addr, token=self.cluster.token) as client:
            key = f"key-{one}-{next(numbers)}"
            while not self.stopping.wait(self.pause_seconds):
                with contextlib.suppress(Unavailable):  # for longer than a client has patience: once more
                    self.acknowledged[key] = client.submit("true", key=key, name=key).id
                    key = f"key-{one}-{next(numbers)}"
