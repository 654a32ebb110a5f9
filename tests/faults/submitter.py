"""Submits one job after the other to whoever leads: what becomes of those that were acknowledged? [I/O]"""

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field

from rota.client.cluster import connect
from rota.client.errors import Unavailable
from rota.testing.election import ElectedCluster
from rota.testing.processes import until

PATIENCE_SECONDS = 120


@dataclass
class Submitter:
    """Each with its own key."""

    cluster: ElectedCluster
    pause_seconds: float = 0.01
    acknowledged: dict[str, str] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Submitter":
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join()

    def go_on(self) -> None:
        known = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > known, "a submit comes through", PATIENCE_SECONDS)

    def check(self) -> None:
        """Each of them is there, once, and ends."""
        with connect(self.cluster.addr, token=self.cluster.token) as client:
            for submitted in self.acknowledged.values():
                assert client.job(submitted).wait(PATIENCE_SECONDS).state == "succeeded"
            names = Counter(status.name for status in client.jobs() if status.name in self.acknowledged)
        assert names == dict.fromkeys(self.acknowledged, 1)

    def _run(self) -> None:
        with connect(self.cluster.addr, token=self.cluster.token) as client:
            while not self.stopping.wait(self.pause_seconds):
                key = f"key-{len(self.acknowledged)}"
                with contextlib.suppress(Unavailable):  # for longer than a client has patience: once more
                    self.acknowledged[key] = client.submit("true", key=key, name=key).id
