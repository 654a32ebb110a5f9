"""`make tenants`, for some seconds; and beside agents that isolate nothing, to see that it would notice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.processes import until, with_argument
from tests.machine import needs

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), needs("root", "control groups")]
ROOT = Path(__file__).parents[2]
ONE_USER = "60999"  # for the jobs of all tenants


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the users of jobs can pass through, unlike that of pytest."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o711)
        yield Path(made)


def tenants(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Time limits are wide, as other tests run at the same time."""
    size = ("--tenants", "4", "--nodes", "2", "--minutes", "0.1", "--baseline", "0.08")
    given = (*size, "--ratio", "30", "--share", "0.3", "--directory", str(directory))
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "tenants.py"), *given, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_an_attacker_among_tenants_reads_kills_and_delays_nothing(directory: Path) -> None:
    ended = tenants(directory)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "BROKEN" not in ended.stdout
    assert "ok      secrets read by the attacker" in ended.stdout
    until(lambda: not with_argument(f"{directory}/"), "nothing is left")


def test_an_attacker_with_the_user_of_others_is_detected(directory: Path) -> None:
    """With one user for all, files are readable; pid namespaces keep processes apart all the same."""
    ended = tenants(directory, "--run-as", ONE_USER, "--attacks", "raid")

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "BROKEN  secrets read by the attacker" in ended.stdout


def test_the_raid_reads_and_kills_a_process_that_nothing_keeps_from_it(directory: Path) -> None:
    """Two processes of one user in one pid namespace: what the raid reports of them is a breach."""
    mark = "canary0badcafe"
    raid = directory / "raid"
    raid.mkdir()
    shutil.copy(ROOT / "bench" / "tenants_raid.py", raid / "raid.py")
    user: dict[str, Any] = {"user": int(ONE_USER), "group": int(ONE_USER), "extra_groups": []}
    with subprocess.Popen(["sleep", "600"], env={"SECRET": f"{mark}-env"}, **user) as victim:
        victims = {"processes": [(victim.pid, [victim.pid])], "nodes": [], "servers": [], "jobs": []}
        (raid / "victims.json").write_text(json.dumps(victims))
        for path in (raid, *raid.iterdir()):
            os.chown(path, int(ONE_USER), int(ONE_USER))
        command = ["/usr/bin/python3", "raid.py", mark.encode().hex(), "0.1"]
        ran = subprocess.run(
            command, cwd=raid, env={}, capture_output=True, text=True, timeout=60, check=True, **user
        )
        findings = [json.loads(line) for line in ran.stdout.splitlines()]

        assert -victim.wait(60) in (signal.SIGTERM, signal.SIGKILL)
    assert f"{mark}-env" in [line.get("text") for line in findings]
    assert findings[-1]["delivered"]["kill SIGTERM"] >= 1
