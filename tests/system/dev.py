"""One `rota dev`, started as a user would; its output goes into a file."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import rota
from rota.client.cluster import Cluster, connect
from rota.testing.processes import kill_all, until, with_argument

LINE = (sys.executable, "-m", "rota.cli.main")
START_SECONDS = STOP_SECONDS = 120


@dataclass
class Dev:
    """A dev cluster whose files, those of its tasks included, are in one directory."""

    directory: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, *given: str) -> None:
        """Start it and wait until it is ready."""
        place = ("--port", "0", "--data-dir", str(self.directory / "data"))
        with self._diary.open("wb") as diary:
            self.process = subprocess.Popen(
                [*LINE, "dev", *given, *place], env=self._environment, stderr=diary, start_new_session=True
            )
        until(self._is_ready, "the cluster is ready", START_SECONDS)

    def _is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise ChildProcessError(f"it ended: {self.output()}")
        return "next: rota run" in self.output()

    def rota(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LINE, *arguments],
            env={**self._environment, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command that keeps running, with its output in a pipe."""
        return subprocess.Popen(
            [*LINE, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def connected(self) -> Cluster:
        context = tomllib.loads((self.directory / "contexts" / "local.toml").read_text())
        return connect(context["addr"], token=Path(context["token_file"]).read_text().strip())

    def output(self) -> str:
        return self._diary.read_text()

    def end(self, signum: int) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(STOP_SECONDS)

    def left(self) -> list[int]:
        """The processes of the cluster and of its tasks."""
        return with_argument(f"{self.directory}/")

    def close(self) -> None:
        """End every process that still runs in it."""
        kill_all(self.left)
        if self.process is not None:
            self.process.wait()

    @property
    def _diary(self) -> Path:
        return self.directory / "dev.log"

    @property
    def _environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(rota.__file__).parents[1]),
            "ROTA_CONFIG": str(self.directory / "config.toml"),
        }
