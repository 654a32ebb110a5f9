"""Light nodes of a cluster, in processes of their own, and the starts that they recorded. [I/O]"""

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
TIMEOUT_SECONDS = 180.0
WHERE = [f"{name} == {value}" for name, value in LABEL.items()]
_CONNECTED = re.compile(r"connected .*epoch=(\d+)")
_LABELLED = "&".join(f"label={name}={value}" for name, value in LABEL.items())
_NODES_A_PROCESS = 250  # with more, the process itself becomes the bottleneck


class LightNodes:
    """Nodes that join when the context is entered. Leaves no process behind."""

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
            until(
                lambda: sum(self._connections_by_epoch().values()) >= self.count,
                "every node has connected",
                JOIN_SECONDS,
            )
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
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "rota.testing.light_agents", str(self._directory), str(first)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
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
        """Starts of each task, as recorded by the nodes."""
        return Witness(self._directory / f"started-{job}").starts()

    def fill(self, tasks: int) -> str:
        """Submit a job whose tasks run on the light nodes until the gate opens."""
        job = self._cluster.submit("until", str(self.gate.path), count=tasks, where=WHERE)
        until(lambda: self._cluster.count(job, "running") == tasks, "all tasks run", TIMEOUT_SECONDS)
        return job

    def finish(self, job: str, tasks: int) -> None:
        self.gate.open()
        until(lambda: self._cluster.count(job, "succeeded") == tasks, "all tasks end", TIMEOUT_SECONDS)

    def all_ready(self) -> bool:
        """Whether the leader reports every node as ready; the joins may cost a slow leader its lease."""
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
        """Whether every node has connected to the leader of that epoch."""
        return self._connections_by_epoch()[epoch] >= self.count

    def _connections_by_epoch(self) -> Counter[int]:
        """Number of connections by epoch; reads what was appended to the logs since the last call."""
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
        """Whether every node knows every server; the leader tells them when they send something."""
        servers = len(self._cluster.addresses) if isinstance(self._cluster, ElectedCluster) else 0
        files = [self._directory / str(number) / "server" for number in range(1, self.count + 1)]
        return not servers or all(
            file.exists() and len(file.read_text().split()) == servers for file in files
        )

    def _check(self) -> None:
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.poll() is not None:
                raise ChildProcessError(f"light nodes ended: {log.read_text()[-2000:]}")
