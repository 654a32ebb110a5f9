"""The placement benchmark runs, and prints a row for each case."""

import sys
from pathlib import Path

import pytest

from bench import placement


def test_each_case_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["placement.py", "--quick", "--dir", str(tmp_path)])

    placement.main()

    printed = capsys.readouterr().out
    assert [case.name for case in placement.CASES if f"\n{case.name} " not in printed] == []
    assert printed.count("\ndurable") == 2
    assert list(tmp_path.iterdir()) == []
