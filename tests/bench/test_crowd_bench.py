"""The benchmark of waiting jobs runs, and prints a row for each kind and a plot."""

import sys
from pathlib import Path

import pytest

from bench import crowd

pytestmark = pytest.mark.system


def test_each_kind_of_waiting_job_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "crowd.svg"
    few = ["crowd.py", "--jobs", "20", "--runs", "10", "--dir", str(tmp_path), "--plot", str(plot)]
    monkeypatch.setattr(sys, "argv", few)

    crowd.main()

    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [[kind, "20"] for kind in crowd.KINDS]
    assert plot.read_text().startswith("<svg")
