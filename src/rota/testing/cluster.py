"""A cluster of real processes on this machine, for tests that kill some of them. [I/O]"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Self

import rota
from rota.config import machines_dir
from rota.keeper.limits.detect import kill_leftover_cgroups
from rota.testing import processes
from rota.testing.processes import until

# Below the range from which the kernel takes ports for outgoing connections, so that a port stays free while
# its server is down. Test processes that run in parallel choose from different parts.
_PORTS = range(15_000, 32_000)
_PARTS = 40
_START_SECONDS = 90.0
_NODE_SECONDS = 10.0  # on top for each node, since all start at once on few cores
_ANSWER_SECONDS = 120.0
_ATTACHED = '"event": "attached"'
_given: deque[int] = deque(maxlen=200)  # ports on which a process may be about to listen


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command line."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class HttpReply:
    """An HTTP response of the server."""

    status: int
    body: Any


class LocalCluster:
    """One `rota server` and some `rota agent`; nodes are numbered from 1. Leaves no process behind."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        cpu: float = 4,
        run_as: str = "self",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.numbers = range(1, nodes + 1)
        self.http, self.grpc, self.agent = (f"127.0.0.1:{port}" for port in free_ports(3))
        self.token_file = directory / "server" / "token"
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(rota.__file__).parents[1]),
            "ROTA_CONFIG": str(directory / "config.toml"),
            "ROTA_RUN_AS": run_as,  # also for machines that a server creates
            **(settings or {}),
        }
        self._cpu = cpu
        self._run_as = run_as
        self._server: subprocess.Popen[bytes] | None = None
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._others: list[subprocess.Popen[bytes]] = []
        self.watchers: dict[int, subprocess.Popen[bytes]] = {}
        self.watcher_addresses: dict[int, str] = {}

    def __enter__(self) -> Self:
        try:
            self.start_server()
            for number in self.numbers:
                self.start_agent(number)
            self.wait_for_nodes()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, the agents, their keepers and tasks, and every command line still running."""
        ours = [*self._others, *self._agents.values(), *self.watchers.values()]
        ours += [self._server] if self._server else []
        for process in ours:
            process.kill()
        for process in ours:
            process.communicate()
        for directory in (*self.directory.glob("node-*/"), *self.machines.glob("*/*/")):
            _end_node(directory)

    @property
    def machines(self) -> Path:
        """The directory of machines that the server itself creates."""
        return machines_dir(self.directory / "server")

    # ---- the server

    def start_server(self) -> None:
        """Start the server, always on the same ports and data directory; return when it is ready."""
        assert self._server is None or self._server.poll() is not None, "the server runs"
        addresses = ("--http-addr", self.http, "--grpc-addr", self.grpc, "--agent-addr", self.agent)
        directory = str(self.directory / "server")
        self._server = self._start("server", "server", "--data-dir", directory, *addresses)
        until(self._server_answers, "the server answers", _START_SECONDS)

    def kill_server(self) -> None:
        self.signal_server(signal.SIGKILL)
        assert self._server is not None
        self._server.wait()

    def end_server(self) -> None:
        """End the server by SIGTERM, as systemd does; return when it has ended."""
        self.signal_server(signal.SIGTERM)
        assert self._server is not None
        self._server.wait(_START_SECONDS)

    def signal_server(self, signum: int) -> None:
        os.kill(self.server_pid, signum)

    @property
    def server_pid(self) -> int:
        assert self._server is not None, "the server was never started"
        return self._server.pid

    # ---- nodes

    def start_agent(self, number: int, **variables: str) -> None:
        """Start an agent; it joins the first time and later resumes from its directory.

        `variables` are environment variables, such as PYTHONPATH for another version. `labels` are further
        labels that it declares, as K=V separated by commas.
        """
        before = self._agents.get(number)
        assert before is None or before.poll() is not None, "the agent runs"
        name = f"node-{number}"
        secrets = {} if before else {"ROTA_JOIN": variables.pop("join", "") or self.join_line()}
        given = ("--data-dir", str(self.node_directory(number)), "--name", name, "--cpu", str(self._cpu))
        declared = [f"number={number}", *filter(None, variables.pop("labels", "").split(","))]
        more = ("--run-as", self._run_as, *(part for label in declared for part in ("--label", label)))
        self._agents[number] = self._start(name, "agent", *given, *more, **secrets, **variables)

    def signal_agent(self, number: int, signum: int) -> None:
        self._agents[number].send_signal(signum)

    def agent_pid(self, number: int) -> int:
        return self._agents[number].pid

    def kill_agent(self, number: int, signum: int = signal.SIGKILL) -> int:
        """Signal the agent and return its exit code; keeper and tasks continue unless told to end."""
        self._agents[number].send_signal(signum)
        return self._agents[number].wait(_START_SECONDS)

    def agent_exit(self, number: int) -> int:
        """Wait for an agent that ends by itself; return its exit code."""
        return self._agents[number].wait(_START_SECONDS)

    def kill_node(self, number: int) -> None:
        """Kill agent, keeper and tasks, as if the machine had lost power."""
        self.kill_agent(number)
        _end_node(self.node_directory(number))

    def wait_for_nodes(self) -> None:
        """Wait until every node started here is ready."""

        def all_are() -> bool:
            for number, agent in self._agents.items():
                if agent.poll() is not None:
                    raise ChildProcessError(f"agent {number} ended: {self._tail(f'node-{number}')}")
            states = [node["state"] for node in self.call("GET", "/v1/nodes").body["nodes"]]
            return states == ["ready"] * len(self._agents)

        until(all_are, "every node is ready", _START_SECONDS + _NODE_SECONDS * len(self._agents))

    def node(self, number: int) -> Any:
        """The node as the server shows it."""
        return self.call("GET", f"/v1/nodes/node-{number}").body

    def node_directory(self, number: int) -> Path:
        return self.directory / f"node-{number}"

    def agent_log(self, number: int) -> str:
        return (self.directory / f"node-{number}.log").read_text()

    def processes(self) -> list[int]:
        """Process ids of server, agents and keepers."""
        return [self.server_pid, *(agent.pid for agent in self._agents.values()), *self.keepers()]

    def keepers(self) -> list[int]:
        return [pid for number in self.numbers for pid in _keepers(self.node_directory(number))]

    def work(self) -> list[int]:
        """Process ids of all tasks."""
        return [pid for number in self.numbers for pid in _work(self.node_directory(number))]

    def join_line(self, valid_seconds: float = 600, role: str = "node") -> str:
        body = {"local": True, "valid_seconds": valid_seconds, "role": role}
        answer = self.call("POST", "/v1/join-tokens", body)
        return str(answer.body["line"]).split("'")[1]

    # ---- watchers

    def start_watcher(self, number: int, **variables: str) -> str:
        """Start a watcher, which joins the first time; return its agent address once it is attached."""
        before = self.watchers.get(number)
        assert before is None or before.poll() is not None, "the watcher runs"
        name = f"watcher-{number}"
        secrets = {} if before else {"ROTA_JOIN": self.join_line(role="watcher")}
        address = self.watcher_addresses.setdefault(number, f"127.0.0.1:{free_ports(1)[0]}")
        attached = self.watcher_log(number).count(_ATTACHED) if before else 0
        given = ("--data-dir", str(self.directory / name), "--name", name, "--agent-addr", address)
        self.watchers[number] = self._start(name, "watcher", *given, **secrets, **variables)
        until(
            lambda: self.watcher_log(number).count(_ATTACHED) > attached,
            "the watcher is attached",
            _START_SECONDS,
        )
        return address

    def watcher_log(self, number: int) -> str:
        return (self.directory / f"watcher-{number}.log").read_text()

    # ---- clients

    def rota(self, *arguments: str | bytes, **variables: str) -> CommandResult:
        """Run `rota` with these arguments to its end."""
        done = subprocess.run(
            self._command(*arguments),
            env=self.environment | variables,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start_rota(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `rota` with these arguments; stdout and stderr are pipes."""
        process = subprocess.Popen(
            self._command(*arguments),
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._others.append(process)
        return process

    def submit(self, *command: str, **spec: Any) -> str:
        """Submit a job and return its id."""
        answer = self.call("POST", "/v1/jobs", {**spec, "command": command})
        assert answer.status == 201, answer
        return str(answer.body["id"])

    def count(self, job: str, state: str) -> int:
        """Number of tasks in that state, as the server reports it."""
        return int(self.call("GET", f"/v1/jobs/{job}").body["counts"].get(state, 0))

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> HttpReply:
        """One HTTP request, with the admin's token unless another `authorization` is given."""
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json", **headers}
        return self._ask(self.http, method, path, payload, {name: v for name, v in all_headers.items() if v})

    def _ask(
        self, address: str, method: str, path: str, payload: bytes | None, headers: dict[str, str]
    ) -> HttpReply:
        with contextlib.closing(HTTPConnection(address, timeout=_ANSWER_SECONDS)) as connection:
            try:
                connection.request(method, path, payload, headers)
                response = connection.getresponse()
                text = response.read()
            except HTTPException as cut:
                raise ConnectionError(f"the server disconnected while it answered: {cut!r}") from cut
            except OSError as error:
                if self._server is not None and self._server.poll() is not None:
                    error.add_note(f"the server ended with {self._server.poll()}: {self._tail('server')}")
                raise
        return HttpReply(response.status, json.loads(text) if text else None)

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def _server_answers(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            raise ChildProcessError(f"the server ended: {self._tail('server')}")
        try:
            return self.call("GET", "/readyz", authorization="").status == 200
        except OSError:
            return False

    def _start(self, name: str, *arguments: str, **secrets: str) -> subprocess.Popen[bytes]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self._command(*arguments),
                env=self.environment | secrets,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _tail(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()[-2000:]

    def _command(self, *arguments: str | bytes) -> list[str | bytes]:
        return [sys.executable, "-m", "rota.cli.main", *arguments]


def free_ports(count: int) -> list[int]:
    ours = _PORTS[_part() :: _PARTS]
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.choice(ours)
            bound = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                # Held until all ports are chosen: otherwise the same one could be chosen twice.
                bound.bind(("127.0.0.1", port))
                # A port may be given out and not yet bound by its server.
                ports += [port] if port not in _given else []
        _given.extend(ports)
        return ports


@cache
def _part() -> int:
    """Reserve a part of the ports for this process.

    The reservation is an abstract socket name, which only one process can bind and which ends with it.
    """
    for part in random.sample(range(_PARTS), _PARTS):
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0rota-test-ports-{part}")
        except OSError:
            name.close()
        else:
            # Never closed: the reservation lasts as long as this process.
            name.detach()
            return part
    raise ChildProcessError(f"{_PARTS} other test processes use ports on this machine")


def _keepers(directory: Path) -> list[int]:
    return processes.with_argument(f"rota.keeper\0{directory}\0")


def _work(directory: Path) -> list[int]:
    marker = directory / "keeper.id"
    return processes.with_variable("ROTA_KEEPER", marker.read_text().strip()) if marker.exists() else []


def _end_node(directory: Path) -> None:
    """Kill the processes of a node.

    Ordering: a live agent would start another keeper, and a live keeper would report the death of its tasks.
    """
    processes.kill_all(lambda: processes.with_argument(f"--data-dir\0{directory}\0"))
    processes.kill_all(lambda: _keepers(directory))
    processes.kill_all(lambda: _work(directory))
    kill_leftover_cgroups(str(directory), _ANSWER_SECONDS)
