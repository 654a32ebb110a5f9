"""`rota dev`: a whole cluster from one command, also without anything on disk to come back to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rota
from rota.testing.processes import with_argument

pytestmark = pytest.mark.system


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_dev_cluster_runs_work_and_leaves_nothing_behind(tmp_path: Path, store: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(rota.__file__).parents[1]),
        "ROTA_CONFIG": str(tmp_path / "config.toml"),
    }
    line = [sys.executable, "-m", "rota.cli.main"]
    given = ["dev", "--port", "0", "--nodes", "2", "--store", store, "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen([*line, *given], env=environment, stderr=subprocess.PIPE, text=True) as dev:
        try:
            assert dev.stderr is not None
            until_ready = iter(dev.stderr.readline, "")
            assert any("next: rota run" in told for told in until_ready)
            ran = subprocess.run(
                [*line, "run", "--quiet", "--array", "0-9", "--logs", "--", "echo", "hi"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
            version = subprocess.run(
                [*line, "version"], env=environment, capture_output=True, text=True, check=False, timeout=30
            )
        finally:
            dev.send_signal(signal.SIGINT)
            dev.wait(40)

    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == sorted(f"[{index}] hi" for index in range(10))
    assert f"store {store}" in version.stdout
    assert dev.returncode == 0
    assert with_argument(str(tmp_path / "data")) == []
