"""What fails beside others has one more run, alone; what fails then, or is many, fails the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system  # it starts processes, and takes its time
TOOL = Path(__file__).parents[2] / "tools" / "whole_suite.py"
UNSTEADY = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("number", range({times}))
def test_it(number):
    again = Path(f"again {{number}}")
    ran_before = again.exists()
    again.touch()
    assert ran_before
"""


def run_suite(directory: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (directory / "tests").mkdir()
    (directory / "tests" / "test_one.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -p no:schemathesis -p no:hypothesispytest\n")
    return subprocess.run(
        [sys.executable, TOOL], cwd=directory, capture_output=True, text=True, timeout=250, check=False
    )


def test_what_passes_alone_is_named(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, UNSTEADY.format(times=1))

    assert ran.returncode == 0
    assert ran.stdout.endswith("passed alone\n  tests/test_one.py::test_it[0]\n")


@pytest.mark.parametrize(
    "tests", ["def test_it(): assert False", UNSTEADY.format(times=11)], ids=["broken", "many"]
)
def test_what_is_broken_or_is_many_stays_so(tmp_path: Path, tests: str) -> None:
    ran = run_suite(tmp_path, tests)

    assert ran.returncode == 1
    assert "UNSTEADY" not in ran.stdout
