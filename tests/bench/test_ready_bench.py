"""The benchmark of a start with many finished tasks runs, and prints a row for each step."""

import sys
from pathlib import Path

import pytest

from bench import ready


def test_each_step_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ready.py", "--jobs", "3", "--tasks", "300", "--dir", str(tmp_path)])

    ready.main()

    printed = capsys.readouterr().out
    assert "900 finished tasks" in printed
    assert "rota server until /readyz" in printed
    assert list(tmp_path.iterdir()) == []
