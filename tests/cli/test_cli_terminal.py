"""On a terminal there is colour, unless it is not wanted, and a bar for arrays."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.canned_server import CannedServer, Reply, job, statuses


def on_a_terminal(*arguments: str, **environ: str) -> str:
    terminal, inner = pty.openpty()
    paths = os.pathsep.join(path for path in sys.path if path)
    around = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": paths, **environ}
    line = [sys.executable, "-m", "rota.cli.main", *arguments]
    process = subprocess.Popen(line, stdin=inner, stdout=inner, stderr=inner, env=around)
    os.close(inner)
    shown = b""
    while piece := _read(terminal):
        shown += piece
    os.close(terminal)
    process.wait(timeout=60)
    return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux tells that the other side is closed
        return b""


@pytest.fixture(autouse=True)
def _surroundings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_states_are_coloured_and_names_are_not(server: CannedServer) -> None:
    server.on("GET /v1/jobs", {"jobs": [job("failed", name="running")], "next": None})

    shown = on_a_terminal("ls")

    assert "\x1b[31mfailed\x1b[0m" in shown
    assert shown.count("\x1b[3") == 1


def test_no_color_is_respected(server: CannedServer) -> None:
    server.on("GET /v1/jobs", {"jobs": [job("failed")], "next": None})

    assert "\x1b" not in on_a_terminal("ls", NO_COLOR="1")


def test_long_lines_are_cut_to_the_width_of_the_terminal(server: CannedServer) -> None:
    server.on("GET /v1/jobs", {"jobs": [job(sentence="x" * 500)], "next": None})

    shown = on_a_terminal("ls", NO_COLOR="1", COLUMNS="60")

    assert [len(line) for line in shown.splitlines()][1] == 60


def test_an_array_has_a_bar(server: CannedServer) -> None:
    final = job("succeeded", count=100)
    server.on("POST /v1/jobs", Reply(job("submitted", count=100), 201))
    server.on(
        "GET /v1/jobs/12/follow", statuses(job(count=100, counts={"succeeded": 40, "running": 4}), final)
    )

    shown = on_a_terminal("run", "--array", "0-99", "--", "sim")

    assert "━" in shown
    assert "100 of 100 tasks done" in shown
    assert "job 12 “python” succeeded: 100 of 100 tasks succeeded" in shown
