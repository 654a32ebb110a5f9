"""Removal of a container by a process of its own, for the keeper that started it."""

import json
import os
import subprocess
import sys
from pathlib import Path

PATIENCE_SECONDS = 60


def clear(program: Path, keeper: int) -> int:
    task = {"program": str(program), "name": "rota-m-7-0-1", "image": "alpine", "keeper": keeper}
    record = json.dumps({**task, "code": 1, "group": None, "was_made": True})
    line = [sys.executable, "-m", "rota.keeper.container.clear", record]
    return subprocess.run(line, timeout=PATIENCE_SECONDS, check=False).returncode


def runtime(path: Path, answer: str) -> Path:
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o700)
    return path


def test_removal_gives_up_if_its_keeper_has_died(tmp_path: Path) -> None:
    broken = runtime(tmp_path / "broken", "exit 1")

    assert clear(broken, keeper=1 if os.getpid() != 1 else 2) == 1


def test_removal_is_retried_while_its_keeper_lives(tmp_path: Path) -> None:
    """The runtime fails until its fifth call."""
    asked = tmp_path / "asked"
    mends = runtime(tmp_path / "mends", f"echo x >> {asked}; test $(wc -l < {asked}) -gt 5")

    assert clear(mends, keeper=os.getpid()) == 0
