"""`make soak`, for some seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rota.testing.processes import until, with_argument

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
WORKLOAD = """
[[nodes]]
count = 20
cpu = 8
memory = "32g"

[[load]]
name = "build"
per_hour = 300
count = [1, 8]
run_seconds = { median = 20, p95 = 60 }
cpu = [1, 2]
memory = "1g"
fail = 0.2
deaf = 0.1
retries = 1

[[load]]
name = "check"
per_hour = 60
run_seconds = 10
fail = 0.3
"""


@pytest.mark.parametrize(
    "chaos",
    [
        pytest.param((), id="calm"),
        pytest.param(("--chaos", "--chaos-pace", "0.2"), id="chaos", marks=pytest.mark.nightly),
    ],
)
def test_a_soak_of_some_seconds_holds(tmp_path: Path, chaos: tuple[str, ...]) -> None:
    (tmp_path / "load.toml").write_text(WORKLOAD)

    ended = soak(tmp_path, "--workload", str(tmp_path / "load.toml"), *chaos)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "acknowledged jobs that exist once" in ended.stdout
    assert "BROKEN" not in ended.stdout
    assert ("acts of chaos" in ended.stdout) == bool(chaos)
    until(lambda: not with_argument(f"{tmp_path}/"), "nothing is left")


def test_an_unreadable_workload_is_explained(tmp_path: Path) -> None:
    ended = soak(tmp_path, "--workload", str(tmp_path / "nowhere.toml"))

    assert ended.returncode == 2
    assert "nowhere.toml" in ended.stderr
    assert "Traceback" not in ended.stderr


def soak(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = ("--minutes", "0.1", "--nodes", "3", "--directory", str(directory), "--patience", "150")
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "soak.py"), *given, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
