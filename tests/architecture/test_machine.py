"""Tests that are left out are named; with CI=true only a limitation of the machine is a reason."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests import machine
from tests.architecture.table import ROOT
from tests.machine import Cause, Lack, require

LEFT_OUT = """
import pytest
from tests import machine

machine.NEEDS["a moon"] = lambda: machine.Lack(machine.Cause.MACHINE, "there is none")

@machine.needs("a moon")
def test_tides(): ...
"""


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    for cause in Cause:
        monkeypatch.setitem(machine.NEEDS, cause.name, partial(Lack, cause, "for a test"))


@pytest.mark.usefixtures("lacking")
@pytest.mark.parametrize("cause", Cause)
def test_on_a_developers_machine_a_test_is_left_out_with_its_reason(
    cause: Cause, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="for a test"):
        require(cause.name)


@pytest.mark.usefixtures("lacking")
@pytest.mark.parametrize("cause", [Cause.PACKAGE, Cause.USER])
def test_in_ci_what_a_package_or_root_could_provide_must_be_there(
    cause: Cause, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="for a test"):
        require(cause.name)


@pytest.mark.usefixtures("lacking")
def test_in_ci_what_the_machine_cannot_do_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.skip.Exception):
        require(Cause.MACHINE.name)


def test_the_last_lines_of_a_run_name_what_was_left_out(tmp_path: Path) -> None:
    file = tmp_path / "test_left_out.py"
    file.write_text(LEFT_OUT)

    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    ran = subprocess.run(
        [*command, str(file)], cwd=ROOT, env={"CI": "true"}, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stdout
    assert "1 test: a moon: there is none" in ran.stdout.splitlines()[-2]
