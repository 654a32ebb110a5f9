"""The dev cluster of bench/soak.py: its process, its log, its resources, and what it leaves behind. [I/O]"""

import argparse
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Self

from rota.client.cluster import Cluster, connect
from rota.testing import processes
from rota.testing.processes import until

COMMAND = (sys.executable, "-m", "rota.cli.main")
READY_SECONDS = 60.0
ACTS = ("killed", "frozen for", "cut off for")


class SoakCluster:
    """`rota dev` in its own directory; processes that are left at the end are killed."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        self._directory = directory
        self._log = directory / "dev.log"
        self._options = options
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        own = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "dev", *self._arguments()],
                env={**own, "ROTA_CONFIG": str(self._directory / "config.toml")},
                stderr=log,
                start_new_session=True,
            )
        try:
            until(self._is_ready, "the cluster is ready", READY_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        processes.kill_all(self.left)
        self._process.wait()

    def connect(self) -> Cluster:
        context = tomllib.loads((self._directory / "contexts" / "local.toml").read_text())
        return connect(context["addr"], token=Path(context["token_file"]).read_text().strip())

    def memory_bytes(self) -> int:
        """Memory of `rota dev`, whose process contains the server."""
        return processes.resident_bytes(self._process.pid)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def work(self) -> list[int]:
        """Processes of tasks."""
        markers = [path.read_text().strip() for path in self._directory.glob("data/*/keeper.id")]
        return [pid for marker in markers for pid in processes.with_variable("ROTA_KEEPER", marker)]

    def left(self) -> list[int]:
        return processes.with_argument(f"{self._directory}/")

    def interrupt(self) -> int:
        """Interrupt as by Ctrl-C; return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(READY_SECONDS)

    def acts(self) -> int:
        """Number of faults that were injected."""
        return sum(any(act in line for act in ACTS) for line in self._lines_by("chaos"))

    def surprises(self) -> int:
        """Number of agents that ended without a fault."""
        return sum("ended unexpectedly" in line for line in self._lines_by("chaos"))

    def _arguments(self) -> list[str]:
        arguments = [
            "--nodes",
            str(self._options.nodes),
            "--port",
            "0",
            "--data-dir",
            str(self._directory / "data"),
        ]
        if not self._options.chaos:
            return arguments
        seed, pace = str(self._options.seed), str(self._options.chaos_pace)
        return [*arguments, "--chaos", "--chaos-seed", seed, "--chaos-pace", pace]

    def _is_ready(self) -> bool:
        printed = self._log.read_text()
        if self._process.poll() is not None:
            raise ChildProcessError(f"the cluster ended: {printed}")
        return "next: rota run" in printed

    def _lines_by(self, source: str) -> list[str]:
        return [line for line in self._log.read_text().splitlines() if line.split()[1:2] == [source]]
