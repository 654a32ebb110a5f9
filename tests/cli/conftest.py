"""The command line as a user has it: a config directory, a context for a canned server, and a runner."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.cli.main import outcome
from tests.client.canned_server import TOKEN, CannedServer
from tests.client.secret_files import write_secret

Rota = Callable[..., int]


@pytest.fixture
def server() -> Iterator[CannedServer]:
    canned = CannedServer()
    yield canned
    canned.stop()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: CannedServer) -> Path:
    """A config directory whose context `local` points to the server."""
    for name in [name for name in os.environ if name.startswith("ROTA_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "rota"
    (folder / "contexts").mkdir(parents=True)
    write_secret(folder / "token", TOKEN + "\n")
    (folder / "contexts" / "local.toml").write_text(
        f'addr = "{server.addr}"\ntoken_file = "{folder / "token"}"\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return folder


@pytest.fixture
def rota(home: Path) -> Rota:
    """Runs a command line in this process; capfdbinary or capsys has what it wrote."""
    return lambda *arguments: outcome(list(arguments))


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command line as a process of its own."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "rota.cli.main", *arguments]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
