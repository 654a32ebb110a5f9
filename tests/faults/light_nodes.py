"""Light nodes of a cluster, in a process of their own, and what their work's own witness says. [I/O]"""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

from rota.testing.cluster import Answer, LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.light import LABEL
from rota.testing.processes import until
from tests.system.witness import Gate, Witness

JOIN_SECONDS = 600.0
PATIENCE_SECONDS = 180.0
WHERE = [f"{name} == {value}" for name, value in LABEL.items()]


class LightNodes:
    """They join when it is entered. Leaves no process behind."""

    def __init__(self, cluster: LocalCluster, directory: Path, count: int) -> None:
        directory.mkdir()
        self.count = count
        self.gate = Gate(directory / "gate")
        self._cluster = cluster
        self._directory = directory
        self._log = directory.with_suffix(".log")

    def __enter__(self) -> Self:
        lines = [self._cluster.join_line(JOIN_SECONDS) for _ in range(self.count)]
        with self._log.open("ab") as diary:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rota.testing.light", str(self._directory)],
                stdin=subprocess.PIPE,
                stdout=diary,
                stderr=diary,
                env=self._cluster.environment,
            )
        try:
            assert self._process.stdin is not None
            self._process.stdin.write("\n".join(lines).encode())
            self._process.stdin.close()
            until(self.all_ready, "every light node is ready", JOIN_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def starts(self, job: str) -> Counter[int]:
        """How often each task was started, by those who did."""
        return Witness(self._directory / f"started-{job}").starts()

    def fill(self, tasks: int) -> str:
        """A job whose tasks run on them until the gate opens."""
        job = self._cluster.submit("until", str(self.gate.path), count=tasks, where=WHERE)
        until(lambda: self._cluster.count(job, "running") == tasks, "all tasks run", PATIENCE_SECONDS)
        return job

    def finish(self, job: str, tasks: int) -> None:
        self.gate.open()
        until(lambda: self._cluster.count(job, "succeeded") == tasks, "all tasks end", PATIENCE_SECONDS)

    def all_ready(self) -> bool:
        if self._process.poll() is not None:
            raise ChildProcessError(f"the light nodes ended: {self._log.read_text()[-2000:]}")
        return self.states().count("ready") == self.count

    def states(self) -> list[str]:
        """None where whoever led does not: so many at once may cost it its lease, on a slow machine."""
        try:
            answer = self._cluster.call("GET", "/v1/nodes")
        except OSError:
            answer = Answer(0, None)
        if answer.status != 200:
            if isinstance(self._cluster, ElectedCluster):
                self._cluster.wait_for_leader()
            return []
        nodes: list[Any] = answer.body["nodes"]
        return [node["state"] for node in nodes if node["name"].startswith("light-")]

    def all_connected(self, epoch: int) -> bool:
        """Each of them, to the one that leads in that epoch."""
        return self._log.read_text().count(f"epoch={epoch} ") >= self.count
