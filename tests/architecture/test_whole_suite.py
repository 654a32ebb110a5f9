"""What fails beside others has one more run, alone; what fails then, or is many, fails the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "whole_suite.py"
UNSTEADY = """
from pathlib import Path
def test_it():
    again = Path("again")
    ran_before = again.exists()
    again.touch()
    assert ran_before
"""


def run_suite(directory: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (directory / "tests").mkdir()
    (directory / "tests" / "test_one.py").write_text(tests)
    return subprocess.run(
        [sys.executable, TOOL], cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )


def test_what_passes_alone_is_named(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, UNSTEADY)

    assert ran.returncode == 0
    assert ran.stdout.endswith("passed alone\n  tests/test_one.py::test_it\n")


@pytest.mark.parametrize(
    ("tests", "code"),
    [
        ("def test_it(): assert False", 1),
        ("import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test_it(n): assert False", 1),
        ("import nothing_of_this_name", 2),
        ("", 5),
    ],
)
def test_what_is_broken_stays_so(tmp_path: Path, tests: str, code: int) -> None:
    ran = run_suite(tmp_path, tests)

    assert ran.returncode == code
    assert "UNSTEADY" not in ran.stdout
