"""A terminal gets colour, unless disabled, and a progress bar for arrays."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.cli.ui.terminal import HarmlessStream
from tests.client.canned_server import CannedServer, Reply, chunk, job, output, statuses

Start = Callable[..., subprocess.Popen[bytes]]


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


ATTACK = (
    b"plain \x1b]0;title\x07 \x1b[2J\x1b[H \xc2\x9b6n \x9b6n \x1b[31mred\x1b[0m"
    b" \xe2\x80\xaeevil caf\xc3\xa9\n"
)
SHOWN = "plain \ufffd]0;title\ufffd \ufffd[2J\ufffd[H \ufffd6n \ufffd6n \x1b[31mred\x1b[0m \ufffdevil café"


def test_output_of_a_job_does_not_control_the_terminal(server: CannedServer) -> None:
    pieces = [chunk(ATTACK[at : at + 1], offset=at) for at in range(len(ATTACK))]  # cut wherever it can be
    server.on("GET /v1/jobs/12", job("succeeded"))
    server.on("GET /v1/jobs/12/logs", output(*pieces))

    shown = on_a_terminal("logs", "12")

    assert shown == f"{SHOWN}\r\n\x1b[0m"


def test_prefixed_lines_do_not_control_the_terminal(server: CannedServer) -> None:
    server.on("GET /v1/jobs/12", job("succeeded", count=2))
    server.on("GET /v1/jobs/12/logs", output(chunk(ATTACK, index=1), chunk(b"\x1b[3", index=0)))

    shown = on_a_terminal("logs", "12")

    assert shown.splitlines()[0] == f"[1] {SHOWN}"
    assert "[0] \ufffd[3" in shown


def test_output_in_a_pipe_is_what_the_job_wrote(server: CannedServer, start: Start) -> None:
    server.on("GET /v1/jobs/12", job("succeeded"))
    server.on("GET /v1/jobs/12/logs", output(chunk(ATTACK)))

    assert start("logs", "12").communicate(timeout=60) == (ATTACK, b"")


def test_names_and_errors_do_not_control_the_terminal(server: CannedServer) -> None:
    server.on("GET /v1/jobs/12", job(name="\x1b]0;x\x07\u202e"))
    problem = {"code": "not_found", "detail": "there is no job \x1b[2J"}
    server.on("GET /v1/jobs/13", Reply(problem, 404))

    shown = on_a_terminal("show", "12", NO_COLOR="1") + on_a_terminal("show", "13", NO_COLOR="1")

    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_json_escapes_control_characters(server: CannedServer, start: Start) -> None:
    name = "a\x1b\x7f\x9b\u202eé\U0001f600"
    server.on("GET /v1/jobs/12", job(name=name))

    out, _ = start("show", "12", "-o", "json").communicate(timeout=60)

    assert json.loads(out)["name"] == name
    assert not {"\x1b", "\x7f", "\x9b", "\u202e"} & set(out.decode())
    assert "é\U0001f600" in out.decode()


@given(
    st.lists(st.sampled_from(["\x1b", "[", "3", ";", "m", "é", "\x9b", "a", "\n"]), max_size=40), st.data()
)
def test_chunk_borders_do_not_change_the_shown_output(letters: list[str], data: st.DataObject) -> None:
    text = "".join(letters).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    whole, cut = HarmlessStream(), HarmlessStream()

    at_once = whole.feed(text) + whole.close()
    pieces = [cut.feed(text[first:last]) for first, last in pairwise([0, *cuts, len(text)])]

    assert b"".join(pieces) + cut.close() == at_once
