"""Light nodes of a cluster, in processes of their own, and what their work's own witness says. [I/O]"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Self

from rota.testing import processes
from rota.testing.cluster import HttpReply, LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.light_agents import LABEL
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

JOIN_SECONDS = 600.0
PATIENCE_SECONDS = 180.0
WHERE = [f"{name} == {value}" for name, value in LABEL.items()]
_CONNECTED = re.compile(r"connected .*epoch=(\d+)")
_LABELLED = "&".join(f"label={name}={value}" for name, value in LABEL.items())
_NODES_A_PROCESS = 250  # more would wait for each other, not for the server


class LightNodes:
    """They join when it is entered. Leaves no process behind."""

    def __init__(self, cluster: LocalCluster, directory: Path, count: int) -> None:
        directory.mkdir()
        self.count = count
        self.gate = Gate(directory / "gate")
        self._cluster = cluster
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self._connected: Counter[int] = Counter()  # by epoch
        self._read_bytes: dict[Path, int] = {}

    def __enter__(self) -> Self:
        try:
            for first in range(1, self.count + 1, _NODES_A_PROCESS):
                self._launch(first, min(_NODES_A_PROCESS, self.count + 1 - first))
            until(lambda: sum(self._all_calls().values()) >= self.count, "every node has come", JOIN_SECONDS)
            until(self.all_ready, "every light node is ready", JOIN_SECONDS)
            until(self._all_know, "every light node knows every server", JOIN_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _launch(self, first: int, count: int) -> None:
        lines = [self._cluster.join_line(JOIN_SECONDS) for _ in range(count)]
        log = self._directory.with_name(f"{self._directory.name}-{first}.log")
        with log.open("ab") as diary:
            process = subprocess.Popen(
                [sys.executable, "-m", "rota.testing.light_agents", str(self._directory), str(first)],
                stdin=subprocess.PIPE,
                stdout=diary,
                stderr=diary,
                env=self._cluster.environment,
            )
        self._processes.append(process)
        self._logs.append(log)
        assert process.stdin is not None
        process.stdin.write("\n".join(lines).encode())
        process.stdin.close()

    @property
    def cpu_seconds(self) -> float:
        return sum(processes.cpu_seconds(process.pid) for process in self._processes)

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
        """By the word of whoever leads: so many at once may cost it its lease, on a slow machine."""
        self._check()
        try:
            answer = self._cluster.call("GET", f"/v1/nodes?state=suspect,lost,left&{_LABELLED}")
        except OSError:
            answer = HttpReply(0, None)
        if answer.status == 200:
            return not answer.body["nodes"]
        if isinstance(self._cluster, ElectedCluster):
            self._cluster.wait_for_leader()
        return False

    def all_connected(self, epoch: int) -> bool:
        """Each of them, to the one that leads in that epoch."""
        return self._all_calls()[epoch] >= self.count

    def _all_calls(self) -> Counter[int]:
        """How often one of them was welcomed, by epoch; of each log what has come since the last look."""
        self._check()
        for log in self._logs:
            with log.open() as lines:
                lines.seek(self._read_bytes.get(log, 0))
                while (line := lines.readline()).endswith("\n"):
                    self._read_bytes[log] = lines.tell()
                    if found := _CONNECTED.search(line):
                        self._connected[int(found[1])] += 1
        return self._connected

    def _all_know(self) -> bool:
        """Where the next leader is: this one tells them when they say something."""
        servers = len(self._cluster.places) if isinstance(self._cluster, ElectedCluster) else 0
        files = [self._directory / str(number) / "server" for number in range(1, self.count + 1)]
        return not servers or all(
            file.exists() and len(file.read_text().split()) == servers for file in files
        )

    def _check(self) -> None:
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.poll() is not None:
                raise ChildProcessError(f"light nodes ended: {log.read_text()[-2000:]}")
