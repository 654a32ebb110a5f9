"""One or three members of etcd on this machine, for tests that kill some of them. [I/O]"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

from rota.testing.cluster import free_ports
from rota.testing.processes import until

_START_SECONDS = 90.0
_ANSWER_SECONDS = 3.0


class LocalEtcd:
    """An etcd cluster; members are numbered from 1. Leaves no process behind."""

    def __init__(self, directory: Path, members: int = 1, *options: str, scheme: str = "http") -> None:
        self.directory = directory
        self.numbers = range(1, members + 1)
        ports = free_ports(2 * members)
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:members]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[members:]]
        self._options = options
        self._scheme = scheme
        # Without TLS the client listener serves /health; with TLS a plain metrics listener does.
        self._health = self.endpoints if scheme == "http" else [f"127.0.0.1:{p}" for p in free_ports(members)]
        self._members: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for number in self.numbers:
                self.launch(number)
            self.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The value of `--store` for this cluster."""
        return f"etcd://{','.join(self.endpoints)}"

    def close(self) -> None:
        for process in self._members.values():
            process.kill()
        for process in self._members.values():
            process.wait()

    def launch(self, number: int) -> None:
        """Start or restart a member on its data directory; does not wait for it."""
        before = self._members.get(number)
        assert before is None or before.poll() is not None, "the member runs"
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"etcd-{number}.log").open("ab") as log:
            self._members[number] = subprocess.Popen(
                self._command(number),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        self._members[number].kill()
        self._members[number].wait()

    @contextlib.contextmanager
    def paused(self, number: int) -> Iterator[None]:
        """Stop the member: it neither answers nor closes its connections."""
        self._members[number].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._members[number].send_signal(signal.SIGCONT)

    def wait(self) -> None:
        """Wait until every live member serves requests."""
        for number, process in self._members.items():
            if process.poll() is None:
                until(lambda member=number: self._is_healthy(member), f"etcd {number} serves", _START_SECONDS)  # type: ignore[misc]

    def leader(self) -> int:
        """The number of the etcd leader; 0 if none is known."""
        leaders = {number: self._leader_of(number) for number in self.numbers}
        return next((number for number, (own, leads) in leaders.items() if own and own == leads), 0)

    def _leader_of(self, number: int) -> tuple[str, str]:
        """The member's own id and the leader's; both empty if it does not answer."""
        connection = HTTPConnection(self.endpoints[number - 1], timeout=_ANSWER_SECONDS)
        try:
            connection.request("POST", "/v3/maintenance/status", "{}")
            status = json.loads(connection.getresponse().read())
            return status["header"]["member_id"], status.get("leader", "0")
        except (OSError, HTTPException, ValueError, KeyError):
            return "", ""
        finally:
            connection.close()

    def _is_healthy(self, number: int) -> bool:
        if self._members[number].poll() is not None:
            log = (self.directory / f"etcd-{number}.log").read_text()[-2000:]
            raise ChildProcessError(f"etcd {number} ended: {log}")
        connection = HTTPConnection(self._health[number - 1], timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", "/health")
            return bool(json.loads(connection.getresponse().read())["health"] == "true")
        except (OSError, HTTPException, ValueError):
            return False
        finally:
            connection.close()

    def _command(self, number: int) -> list[str]:
        client, peer = f"{self._scheme}://{self.endpoints[number - 1]}", self._peers[number - 1]
        cluster = ",".join(f"m{n}={url}" for n, url in zip(self.numbers, self._peers, strict=True))
        flags = {
            "--name": f"m{number}",
            "--data-dir": str(self.directory / f"etcd-{number}"),
            "--listen-client-urls": client,
            "--advertise-client-urls": client,
            "--listen-peer-urls": peer,
            "--initial-advertise-peer-urls": peer,
            "--initial-cluster": cluster,
            "--initial-cluster-token": str(self.directory),
        }
        if self._health is not self.endpoints:
            flags["--listen-metrics-urls"] = f"http://{self._health[number - 1]}"
        return ["etcd", *(part for pair in flags.items() for part in pair), *self._options]
