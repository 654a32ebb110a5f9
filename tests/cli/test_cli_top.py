"""`rota top`: one table without a terminal, a live screen with one."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from rota.cli.ui.top_view import JOBS, NODES, TopSnapshot, Typed, lines, press
from rota.client.server_views import Node
from rota.client.views import JobStatus
from tests.client.canned_server import CannedServer, job, node

Out = pytest.CaptureFixture[str]


def machine(name: str, used: float) -> Node:
    amounts = {"cpu": 8.0, "memory": 100.0, "gpu": 2.0}
    return Node(
        "n1", name, "ready", capacity=amounts, reserved={"cpu": 4.0}, used={"cpu": used, "memory": 10}
    )


def work(number: str, name: str) -> JobStatus:
    return JobStatus(number, "active", name, count=10, counts={"succeeded": 5, "running": 2, "pending": 3})


CLUSTER = TopSnapshot([machine("idle", 0.1), machine("busy", 7.6)], [work("2", "train"), work("1", "test")])


def screen(typed: Typed = Typed(), width: int = 120, height: int = 30) -> list[str]:  # noqa: B008  it is frozen
    return ["".join(piece.text for piece in line) for line in lines(CLUSTER, typed, width, height)]


def keys(*pressed: str) -> Typed:
    typed = Typed()
    for key in pressed:
        typed = press(typed, key)
    return typed


def test_the_cluster_as_a_whole_stands_above() -> None:
    title, cpu, memory, gpu = screen()[:4]

    assert title == "rota   2 of 2 nodes ready   4 tasks running, 6 waiting"
    assert cpu.endswith("] 8 requested   7.7 used   of 16")
    assert memory.split()[0] == "memory"
    assert gpu.endswith("] 0 requested   0 used   of 4")


def test_the_busiest_node_stands_first_and_jobs_show_how_far_they_are() -> None:
    shown = screen()
    names = [line.split()[0] for line in shown if line.startswith(("idle", "busy"))]

    assert names == ["busy", "idle"]
    assert "95%" in next(line for line in shown if line.startswith("busy"))
    assert "50%" in next(line for line in shown if " train " in line)


def test_keys_move_switch_filter_and_end() -> None:
    assert keys("j", "down", "k").at == 1
    assert keys("up").at == 0
    assert (keys("\t").pane, keys("\t", "\t").pane, keys("J").pane, keys("J", "n").pane) == (
        JOBS,
        NODES,
        JOBS,
        NODES,
    )
    typing = keys("J", "/", "t", "r", "q", "\x7f")
    assert (typing.filter, typing.typing, typing.over) == ("tr", True, False)
    assert keys("/", "x", "escape") == Typed()
    assert keys("q").over


def test_a_filter_applies_to_the_active_pane() -> None:
    shown = screen(keys("J", "/", "t", "r", "\r"))

    assert any(" train " in line for line in shown)
    assert not any(" test " in line for line in shown)
    assert any(line.startswith("idle") for line in shown)
    assert shown[-1].startswith("filter: tr")


@pytest.mark.parametrize("size", [(80, 12), (40, 5), (200, 60)])
def test_every_size_is_filled_without_an_error(size: tuple[int, int]) -> None:
    assert screen(keys("J", "j", "j", "j"), *size)


def test_without_a_terminal_it_is_one_table_or_json(server: CannedServer, rota: object, capsys: Out) -> None:
    server.on("GET /v1/nodes", {"nodes": [node(used={"cpu": 0.7})]})
    server.on("GET /v1/jobs", {"jobs": [job("active")], "next": None})

    rota("top")  # type: ignore[operator]
    assert "laptop" in capsys.readouterr().out
    rota("top", "-o", "json")  # type: ignore[operator]
    shown = json.loads(capsys.readouterr().out)
    assert (len(shown["nodes"]), len(shown["jobs"])) == (1, 1)


def test_on_a_terminal_it_is_live_until_q(server: CannedServer, home: Path) -> None:
    server.on("GET /v1/nodes", {"nodes": [node()]})
    server.on("GET /v1/jobs", {"jobs": [job("active")], "next": None})
    terminal, inner = pty.openpty()
    paths = os.pathsep.join(path for path in sys.path if path)
    around = {**os.environ, "TERM": "xterm", "PYTHONPATH": paths}
    line = [sys.executable, "-m", "rota.cli.main", "top"]
    with subprocess.Popen(line, stdin=inner, stdout=inner, stderr=inner, env=around) as process:
        shown = b""
        while b"laptop" not in shown:
            shown += os.read(terminal, 65536)
        os.write(terminal, b"q")
        assert process.wait() == 0
    os.close(inner)
    os.close(terminal)
