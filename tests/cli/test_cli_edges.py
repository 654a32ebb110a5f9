"""The edge of the program: start-up cost, exit codes, and that no traceback reaches a user."""

import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from rota.cli.main import COMMANDS
from rota.cli.ui.connection import waiting_notice
from rota.client.errors import Unavailable
from rota.config import AgentOptions, DevOptions, ServerOptions
from tests.client.canned_server import CannedServer, job

Rota = Callable[..., int]
Out = pytest.CaptureFixture[str]


def imported_by(code: str) -> set[str]:
    path = [entry for entry in sys.path if entry]
    program = f"import sys; sys.path[:0] = {path!r}\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_heavy() -> None:
    names = imported_by("from rota.cli.main import outcome\nassert outcome(['--help']) == 0")

    heavy = {
        "grpc",
        "httpx",
        "rich",
        "msgspec",
        "numpy",
        "asyncio",
        "http.client",
        "ssl",
        "yaml",
        "rota.cli.run",
    }
    assert "click" in names
    assert names & heavy == set()


def test_an_agent_imports_nothing_of_a_server() -> None:
    names = imported_by("import rota.wiring.agent")

    assert "rota.agent.run" in names
    assert (
        names & {"numpy", "starlette", "uvicorn", "rota.engine", "rota.apiserver", "rota.scheduler"} == set()
    )


def test_ls_imports_nothing_heavier_than_an_http_client() -> None:
    names = imported_by("import rota.cli.ls, rota.cli.run")

    assert "http.client" in names
    assert names & {"grpc", "httpx", "rich", "msgspec", "numpy", "asyncio", "yaml"} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_the_group_equals_that_of_each_command(name: str) -> None:
    command: click.Command = importlib.import_module(f"rota.cli.{name}").command

    assert command.name == name
    assert (command.help or "").splitlines()[0] == COMMANDS[name]


def test_an_unknown_command_suggests_the_nearest_one(rota: Rota, capsys: Out) -> None:
    assert rota("cancle") == 2

    expected = "error: usage: there is no command 'cancle'; did you mean 'cancel'?\nhint: rota --help\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("namespace set default --cpu 4", "there is no option '--cpu'; did you mean 'cpu=...'?"),
        ("namespace set default --wieght 4", "there is no option '--wieght'; did you mean '--weight'?"),
        (
            "namespace set default --defualt cpu=1",
            "there is no option '--defualt'; did you mean '--default'?",
        ),
        ("namespace ls --cpu 4", "there is no option '--cpu'"),
        ("namespace sett default", "No such command 'sett'. Did you mean 'set'?"),
    ],
)
def test_an_unknown_option_suggests_the_nearest_one_if_any(
    rota: Rota, capsys: Out, line: str, said: str
) -> None:
    assert rota(*line.split()) == 2

    assert capsys.readouterr().err.splitlines()[0] == f"error: usage: {said}"


def test_without_a_command_there_is_help_and_exit_code_2(rota: Rota, capsys: Out) -> None:
    assert rota() == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Submit a job" in captured.err


def test_an_unreachable_server_is_reported_with_a_hint(
    server: CannedServer, rota: Rota, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.cli.ui.connection.QUIET_SECONDS", 0.0)
    server.stop()

    assert rota("ls") == 75

    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"waiting: no answer from {server.addr}: connection refused",
        f"error: unavailable: no answer from {server.addr}: connection refused",
        "hint: is the server running? `rota dev` starts one",
    ]


def test_a_waiting_notice_is_printed_once_after_a_moment(
    capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long each step of ours takes."""
    seconds = itertools.count(1.0)
    monkeypatch.setattr("rota.cli.ui.connection.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    notice = waiting_notice()
    told = []
    for _ in range(3):
        notice(Unavailable("unavailable", "it is away"))
        told.append(capsys.readouterr().err)

    assert told == ["", "waiting: it is away\n", ""]


@pytest.mark.parametrize(("ref", "code"), [("nothing", 4), ("8-5", 2)])
def test_a_job_that_does_not_exist_is_4_and_a_wrong_range_is_2(rota: Rota, ref: str, code: int) -> None:
    assert rota("wait", ref) == code


def test_a_wrong_token_is_not_allowed(rota: Rota, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_TOKEN", "wrong")

    assert rota("ls") == 5


def test_an_internal_error_is_one_line_with_details_on_request(
    server: CannedServer, rota: Rota, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("GET /v1/jobs", {"jobs": [job(submitted_at_ms="soon")], "next": None})

    assert rota("ls") == 1
    short = capsys.readouterr().err
    monkeypatch.setenv("ROTA_DEBUG", "1")
    assert rota("ls") == 1
    long = capsys.readouterr().err

    assert short.startswith("error: internal: ")
    assert "ROTA_DEBUG=1" in short
    assert "Traceback" not in short
    assert "Traceback" in long


class Started:
    """Replaces the wiring, which starts processes: records its options."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options: Any = None
        modules = {
            "dev": "rota.devtools.dev_cluster",
            "server": "rota.wiring.server",
            "agent": "rota.wiring.agent",
        }
        for process, module in modules.items():
            wiring = SimpleNamespace(**{f"run_{process}": self._run})
            monkeypatch.setitem(sys.modules, module, wiring)
        free = SimpleNamespace(refusal=lambda _: 0)
        monkeypatch.setitem(sys.modules, "rota.wiring.directory_lock", free)

    def _run(self, options: Any) -> int:
        self.options = options
        return 3


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (["dev"], DevOptions()),
        (["dev", "--port", "0"], DevOptions(http_port=0, grpc_port=0, agent_port=0)),
        (["dev", "--port", "0", "--agent-port", "7"], DevOptions(http_port=0, grpc_port=0, agent_port=7)),
        (["dev", "--nodes", "3", "--listen", "10.0.0.5"], DevOptions(nodes=3, listen="10.0.0.5")),
        (["server", "--config", "s.toml", "--store", "memory"], ServerOptions("s.toml", store="memory")),
        (["server", "--http-addr", "127.0.0.1:1"], ServerOptions(http_addr="127.0.0.1:1")),
        (["server", "--never-lead"], ServerOptions(never_lead=True)),
        (["agent", "--join", "rota://x", "--cpu", "2"], AgentOptions(join="rota://x", cpu=2.0)),
        (["agent", "--label", "a=b", "--label", "c=d"], AgentOptions(labels={"a": "b", "c": "d"})),
    ],
)
def test_commands_that_start_processes_pass_options_and_exit_code_on(
    rota: Rota, monkeypatch: pytest.MonkeyPatch, line: list[str], options: object
) -> None:
    started = Started(monkeypatch)

    assert rota(*line) == 3

    assert started.options == options


def test_a_pipe_that_closes_ends_a_listing_quietly(
    server: CannedServer, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    server.on("GET /v1/jobs", {"jobs": [job(id=str(number)) for number in range(5000)], "next": None})
    process = start("ls", "-a")
    assert process.stdout is not None
    process.stdout.readline()

    process.stdout.close()

    assert process.wait(timeout=60) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stdout = None


def test_an_unreadable_file_is_named(rota: Rota, capsys: Out, tmp_path: Path) -> None:
    assert rota("config", "check", str(tmp_path / "none.toml")) == 2

    assert f"{tmp_path / 'none.toml'} cannot be read" in capsys.readouterr().err
