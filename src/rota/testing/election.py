"""Several servers on one etcd, each a real process, for tests that kill or stop the leader. [I/O]"""

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rota.testing.cluster import HttpReply, LocalCluster, free_ports
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import is_stopped, until

_START_SECONDS = 90.0
_STANDBY_STATUS = 503


@dataclass(frozen=True)
class ServerAddress:
    """Addresses of a server."""

    http: str
    grpc: str
    agent: str


class ElectedCluster(LocalCluster):
    """A cluster with several servers; servers and nodes are numbered from 1."""

    def __init__(
        self,
        directory: Path,
        etcd: LocalEtcd,
        *,
        servers: int = 3,
        nodes: int = 2,
        ttl_seconds: int = 2,
        never_lead: tuple[int, ...] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        own = {"ROTA_ETCD_TTL_SECONDS": str(ttl_seconds), "ROTA_ETCD_PREFIX": f"{directory}/"}
        super().__init__(directory, nodes, settings={**own, **(settings or {})})
        self.etcd = etcd
        self._never_lead = never_lead
        self.addresses = {
            number: ServerAddress(*(f"127.0.0.1:{port}" for port in free_ports(3)))
            for number in range(1, servers + 1)
        }
        self.servers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addr(self) -> str:
        """The value of ROTA_ADDR that names every server."""
        return ",".join(f"http://{address.http}" for address in self.addresses.values())

    def start_server(self) -> None:
        for number in self.addresses:
            self.launch(number)
        self.wait_for_leader()

    def wait_for_nodes(self) -> None:
        """Wait until each node is ready and knows every server."""
        super().wait_for_nodes()

        def all_know() -> bool:
            files = [self.node_directory(number) / "server" for number in self._agents]
            return all(len(file.read_text().split()) == len(self.addresses) for file in files)

        until(all_know, "every node knows every server", _START_SECONDS)

    def launch(self, number: int) -> None:
        before = self.servers.get(number)
        assert before is None or before.poll() is not None, "the server runs"
        address = self.addresses[number]
        flags = ("--http-addr", address.http, "--grpc-addr", address.grpc, "--agent-addr", address.agent)
        given = ["--data-dir", str(self.directory / f"server-{number}"), "--store", self.etcd.address]
        given += ["--never-lead"] if number in self._never_lead else []
        self.servers[number] = self._start(f"server-{number}", "server", *given, *flags)

    def kill(self, number: int, signum: int = signal.SIGKILL) -> int:
        self.servers[number].send_signal(signum)
        return self.servers[number].wait(_START_SECONDS)

    @contextmanager
    def paused(self, number: int) -> Iterator[None]:
        self.servers[number].send_signal(signal.SIGSTOP)
        try:
            until(lambda: is_stopped(self.servers[number].pid), "it has stopped")
            yield
        finally:
            self.servers[number].send_signal(signal.SIGCONT)

    def leaders(self) -> list[int]:
        """Servers that report ready as leader; one that hangs is left out."""
        return [number for number in self.addresses if self.status_of(number) == 200]

    def wait_for_leader(self, other_than: int = 0) -> int:
        """Wait for a leader and return its number; `http` and `token_file` are its own from then on."""

        def found() -> int:
            for number, process in self.servers.items():
                if process.poll() not in (None, -signal.SIGKILL, 0):
                    raise ChildProcessError(f"server {number} ended: {self.log(number)[-2000:]}")
            return next((number for number in self.leaders() if number != other_than), 0)

        number = until(found, "a server leads", _START_SECONDS)
        self.http, self.token_file = (
            self.addresses[number].http,
            self.directory / f"server-{number}" / "token",
        )
        return number

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> HttpReply:
        """Send a request to the leader, which may change by itself on a busy machine."""

        def answered() -> HttpReply | None:
            try:
                answer = super(ElectedCluster, self).call(method, path, body, **headers)
            except OSError:
                # Only reads are repeated: whether a change was carried out is what some tests are about.
                if method != "GET":
                    raise
                answer = HttpReply(_STANDBY_STATUS, None)
            if answer.status != _STANDBY_STATUS:
                return answer
            self.wait_for_leader()
            return None

        found = until(answered, f"a leader answers {method} {path}", _START_SECONDS)
        assert found is not None
        return found

    def status_of(self, number: int) -> int:
        """The HTTP status of its /readyz; 0 if it does not answer."""
        process = self.servers.get(number)
        if process is None or process.poll() is not None or is_stopped(process.pid):
            return 0
        try:
            return self._ask(self.addresses[number].http, "GET", "/readyz", None, {}).status
        except OSError:
            return 0

    def log(self, number: int) -> str:
        return (self.directory / f"server-{number}.log").read_text()

    def close(self) -> None:
        for process in self.servers.values():
            process.kill()
        for process in self.servers.values():
            process.wait()
        super().close()

    def processes(self) -> list[int]:
        agents = [agent.pid for agent in self._agents.values()]
        return [*(process.pid for process in self.servers.values()), *agents, *self.keepers()]

    def call_server(self, number: int, method: str, path: str, body: Any = None, **headers: str) -> HttpReply:
        """Send a request to that server, whether or not it leads."""
        all_headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json", **headers}
        payload = None if body is None else json.dumps(body).encode()
        return self._ask(self.addresses[number].http, method, path, payload, all_headers)
