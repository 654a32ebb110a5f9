"""`make tenants`, for some seconds; and beside agents that isolate nothing, to see that it would notice."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
