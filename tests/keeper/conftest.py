"""A keeper process in a temporary directory, and a minimal agent that talks to it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rota.keeper
from rota.keeper.directory_pool import MOST
from rota.keeper.limits.detect import kill_leftover_cgroups
from rota.keeper.output.index import find_end, find_start
from rota.keeper.protocol import wire

Row = list[Any]
Message = dict[str, Any]
PATIENCE_SECONDS = float(os.environ.get("ROTA_TEST_PATIENCE_SECONDS", "180"))  # enough for a busy machine
AMOUNTS = {"cpu": 4000, "memory": 1 << 30}
# The fields that every spec has.
SPEC: dict[str, Any] = {
    "name": "test",
    "env": {},
    "workdir": None,
    "needs": {"cpu": 1000},
    "count": 1,
    "grace_ms": 5000,
    "timeout_ms": None,
    "run": "at_least_once",
    "limits": {},
    "version": 1,
    "stop_signal": 15,
}


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, f"never came: {what}"
        time.sleep(0.01)


class Agent:
    """One connection to a keeper, and all events received on it."""

    def __init__(self, root: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_SECONDS)
        handle = os.open(root, os.O_RDONLY)
        try:
            self._socket.connect(f"/proc/self/fd/{handle}/keeper.sock")
        except OSError:
            self._socket.close()
            raise
        finally:
            os.close(handle)
        self._lines = self._socket.makefile("rb")
        self.started: list[Row] = []
        self.ended: list[Row] = []
        self.refused: list[Row] = []
        self.shortages: list[str | None] = []  # of the disk; None: it has free space again
        self.steps: dict[tuple[str, int, int], list[Row]] = {}
        self.lives: dict[tuple[str, int, int], Row] = {}

    def send(self, **message: Any) -> None:
        self.send_line(json.dumps(message).encode())

    def send_line(self, line: bytes) -> None:
        self._socket.sendall(line + b"\n")

    def receive(self) -> Message:
        line = self._lines.readline()
        assert line, "the keeper has hung up"
        message: Message = json.loads(line)
        if message["op"] == "events":
            self.started += message["started"]
            self.ended += message["ended"]
            self.refused += message["refused"]
            self.steps |= {(job, index, n): rows for job, index, n, rows in message.get("steps", [])}
            self.lives |= {(job, index, n): row for job, index, n, row in message.get("lives", [])}
        if message["op"] == "space":
            self.shortages.append(message["shortage"])
        return message

    def receive_op(self, op: str) -> Message:
        while (message := self.receive())["op"] != op:
            pass
        return message

    def hello(self, **fields: Any) -> Message:
        self.send(op="hello", protocol=wire.PROTOCOL)
        state = self.receive_op("state")
        self.send(op="configure", node="n1", **{"amounts": AMOUNTS, "gpus": []} | fields)
        return state

    def start(self, job: str, *argv: str, tasks: list[Row] | None = None, **spec: Any) -> None:
        self.send(op="start", job=job, spec={**SPEC, "argv": list(argv), **spec}, tasks=tasks or [[0, 1, 1]])

    def stop(self, *keys: Row) -> None:
        self.send(op="stop", attempts=keys)

    def wait_started(self, count: int = 1) -> list[Row]:
        while len(self.started) < count:
            self.receive()
        return self.started

    def wait_ended(self, count: int = 1) -> list[Row]:
        while len(self.ended) < count:
            self.receive()
        return self.ended

    def wait_refused(self, count: int = 1) -> list[Row]:
        while len(self.refused) < count:
            self.receive()
        return self.refused

    def wait_shortages(self, count: int = 1) -> list[str | None]:
        while len(self.shortages) < count:
            self.receive()
        return self.shortages

    def sync(self) -> None:
        """Wait until the keeper has applied all orders so far and sent its events."""
        self.send_line(b"?")
        self.receive_op("error")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Keeper:
    """A real keeper process; after a kill it can be started again in the same directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._agents: list[Agent] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.root / "keeper.sock").unlink()
        with open(self.root / "keeper.log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(), stderr=log, start_new_session=True, env=keeper_env()
            )
        try:
            wait_until(self.answers, "an answering keeper")
        except BaseException:
            self.kill()
            raise

    def command(self) -> list[str]:
        return keeper_command(self.root)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            Agent(self.root).close()
        except OSError:
            return False
        return True

    def wait_preallocated(self) -> None:
        """Wait until the keeper has filled its pool of directories."""
        wait_until((self.root / "spare" / "tasks" / str(MOST - 1) / "0" / "out").is_dir, "a full pool")

    def agent(self) -> Agent:
        agent = Agent(self.root)
        self._agents.append(agent)
        return agent

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def log(self) -> str:
        return (self.root / "keeper.log").read_text()

    def output(self, job: str, index: int = 0, attempt: int = 1, stream: str = "out") -> str:
        """The output of an attempt so far."""
        logs = self.root / "logs" / job
        lines = (logs / "index").read_bytes()
        begun, end = find_start(lines, index, attempt), find_end(lines, index, attempt)
        assert begun is not None, f"attempt {attempt} of task {index} has not started"
        which = f"{stream}_bytes"
        data = (logs / f"{begun.segment}.{stream}").read_bytes()
        until = len(data) if end is None else getattr(end, which)
        return data[getattr(begun.at, which) : until].decode()

    def segments(self, job: str) -> list[str]:
        return [path.name for path in (self.root / "logs" / job).iterdir() if path.suffix in (".out", ".err")]

    def mark(self) -> bytes:
        return b"ROTA_KEEPER=" + (self.root / "keeper.id").read_bytes().strip()

    def work(self) -> list[int]:
        """The pids of living processes with this keeper's marker."""
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if self.mark() in Path(f"/proc/{int(name)}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found

    def children(self) -> list[int]:
        """The pids of the keeper's children, zombies included."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = path.read_text().rpartition(")")[2].split()[1]
                found += [int(path.parent.name)] if int(parent) == self.process.pid else []
        return found

    def cmdlines(self) -> list[bytes]:
        """The command lines of the keeper's attempts that are alive."""
        return list(self._cmdlines().values())

    def running(self, *argv: str) -> set[int]:
        """The pids of processes with exactly this command line."""
        command_line = "".join(f"{argument}\0" for argument in argv).encode()
        return {pid for pid, line in self._cmdlines().items() if line == command_line}

    def _cmdlines(self) -> dict[int, bytes]:
        found = {}
        for pid in self.work():
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        return found

    def close(self) -> None:
        for agent in self._agents:
            agent.close()
        self.kill()
        for pid in self.work():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kill_leftover_cgroups(str(self.root), PATIENCE_SECONDS)


def keeper_command(root: Path) -> list[str]:
    return [sys.executable, "-m", "rota.keeper", str(root)]


def keeper_env() -> dict[str, str]:
    """The environment in which a subprocess finds the package, installed or not."""
    return os.environ | {"PYTHONPATH": str(Path(rota.keeper.__file__).parents[2])}


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path)
    try:
        yield keeper
    finally:
        keeper.close()


@pytest.fixture
def agent(keeper: Keeper) -> Agent:
    agent = keeper.agent()
    agent.hello()
    return agent
