"""The dev cluster that is soaked: a process with a diary, what it holds, and what is left of it. [I/O]"""

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

LINE = (sys.executable, "-m", "rota.cli.main")
READY_SECONDS = 60.0
ACTS = ("killed", "frozen for", "cut off for")


class Dev:
    """`rota dev` in a directory of its own; whatever is left when we leave is killed."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        self._directory = directory
        self._diary = directory / "dev.log"
        self._options = options
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        own = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
        with self._diary.open("wb") as diary:
            self._process = subprocess.Popen(
                [*LINE, "dev", *self._arguments()],
                env={**own, "ROTA_CONFIG": str(self._directory / "config.toml")},
                stderr=diary,
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
        """Of the server, which is in the same process."""
        return processes.resident_bytes(self._process.pid)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def work(self) -> list[int]:
        """Processes that some task started."""
        marks = [path.read_text().strip() for path in self._directory.glob("data/*/keeper.id")]
        return [pid for mark in marks for pid in processes.with_variable("ROTA_KEEPER", mark)]

    def left(self) -> list[int]:
        return processes.with_argument(f"{self._directory}/")

    def interrupt(self) -> int:
        """As with Ctrl-C; its exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(READY_SECONDS)

    def acts(self) -> int:
        """How often some node was harmed."""
        return sum(any(act in line for act in ACTS) for line in self._told_by("chaos"))

    def surprises(self) -> int:
        """How often an agent ended though nobody had killed it."""
        return sum("of its own accord" in line for line in self._told_by("chaos"))

    def _arguments(self) -> list[str]:
        place = [
            "--nodes",
            str(self._options.nodes),
            "--port",
            "0",
            "--data-dir",
            str(self._directory / "data"),
        ]
        if not self._options.chaos:
            return place
        seed, pace = str(self._options.seed), str(self._options.chaos_pace)
        return [*place, "--chaos", "--chaos-seed", seed, "--chaos-pace", pace]

    def _is_ready(self) -> bool:
        told = self._diary.read_text()
        if self._process.poll() is not None:
            raise ChildProcessError(f"the cluster ended: {told}")
        return "next: rota run" in told

    def _told_by(self, who: str) -> list[str]:
        return [line for line in self._diary.read_text().splitlines() if line.split()[1:2] == [who]]
