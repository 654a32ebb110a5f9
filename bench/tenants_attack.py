"""The attacker of `bench/tenants.py` as a client: one process with a submitter's token, one without any.

python bench/tenants_attack.py SETTINGS.json ends when its input is closed, and prints a JSON object:
attempts, answers and loot. Every attack is bounded in number and rate. The process runs with a low priority:
a real attacker has a machine of its own, and the measurement is about what the server and its nodes do to
other tenants, not about a second program on the same cores.
"""

import contextlib
import itertools
import json
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, BinaryIO

from rota.client.cluster import Cluster, connect
from rota.client.errors import RotaError

RAID = Path(__file__).with_name("tenants_raid.py")
PYTHON = "/usr/bin/python3"  # users of jobs cannot read the interpreter of the benchmark
STRANGER = "127.0.0.66"  # connections are limited per address
FOREIGN_AT_ONCE = 40  # requests for resources of others between two pauses
BURST = 3000  # requests in a row: more than the limit of a token
FLOODERS = 4
PIPELINED = 50
IDLE_CONNECTIONS = 200
STREAMS = 20
SHAPES_AT_ONCE = 25
HOARD_AT_ONCE = 25
LOOT_MAX = 500
END_SECONDS = 60.0  # for all attacks together to end; their jobs are canceled in any case
# Harmful jobs: fork bombs, endless output, too much memory, orphans.
ORPHANS = (
    "for n in 1 2 3 4; do setsid env -i sh -c 'sleep 599; : ORPHANS' & done; sleep 0.$((ROTA_INDEX % 10))"
)
# As root it would reach the whole machine, so it does nothing; the raid reports that.
UNLESS_ROOT = "[ $(id -u) -ge 60000 ] || exit 99; ulimit -u 500; "
BOMB = UNLESS_ROOT + "bomb() { bomb | bomb & }; bomb; sleep 3; exit 0"
KILL_ALL = UNLESS_ROOT + "kill -9 -1"
FILLER = "head -c 67108864 /dev/zero > filled; head -c 16777216 /dev/zero | tr '\\0' x; rm filled"
# Each node of the benchmark stands for a machine of its own. Its CPU time is taken from the server's cores,
# too, which no quota covers, so the raid limits itself.
SPARING: dict[str, Any] = {"cpu": 0.25, "limits": {"cpu": 0.1}}
HOG = "x=$(head -c 268435456 /dev/zero | tr '\\0' x); sleep 1"


@dataclass
class Settings:
    """What the attacker knows."""

    http: str
    grpc: str
    agent: str
    token: str
    namespace: str
    mark: str  # of canaries, in hexadecimal
    victims: str  # a file that is rewritten repeatedly
    attacks: list[str]
    tenants: list[str]
    pace: float  # pauses are divided by it
    raid_seconds: float


@dataclass
class Loot:
    """Everything that the attacker has obtained."""

    pattern: "re.Pattern[bytes]"
    caught: dict[str, str] = field(default_factory=dict)  # text -> where it was found
    let_in: Counter[str] = field(default_factory=Counter)  # requests that should have been refused
    answers: Counter[str] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def search(self, where: str, found: bytes) -> None:
        for text in self.pattern.findall(found):
            if len(self.caught) < LOOT_MAX:
                self.caught.setdefault(text.decode(errors="replace"), where)


class Attacker:
    """Runs the chosen attacks in threads until its input is closed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        secrets = rb"[\w-]+|(?:rota|join|task)_[\w.-]{32,}|PRIVATE KEY-+\s+[\w+/]{40}"
        self.loot = Loot(re.compile(re.escape(bytes.fromhex(settings.mark)) + secrets))
        self.stopped = threading.Event()

    def run(self) -> None:
        attacks: dict[str, Callable[[], None]] = {
            "raid": self.raid,
            "harm": self.harm,
            "foreign": self.request_foreign,
            "flood": self.flood,
            "shapes": self.submit_shapes,
            "refused": self.submit_refused,
            "hoard": self.hoard,
            "squat": self.squat,
            "streams": self.hold_streams,
            "stranger": self.attack_without_token,
        }
        chosen = {name: attacks[name] for name in self.settings.attacks}
        threads = [
            threading.Thread(target=self._repeat, args=(name, attack), daemon=True)
            for name, attack in chosen.items()
        ]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self.stopped.set()
        until = time.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _repeat(self, name: str, attack: Callable[[], None]) -> None:
        while not self.stopped.is_set():
            self.loot.tried[name] += 1
            try:
                attack()
            except (RotaError, OSError, HTTPException, ValueError) as error:
                self.loot.errors[f"{name}: {type(error).__name__} {str(error)[:80]}"] += 1
            self.pause(1)

    def pause(self, seconds: float) -> None:
        self.stopped.wait(seconds / self.settings.pace)

    def cluster(self) -> Cluster:
        return connect(f"http://{self.settings.http}", token=self.settings.token)

    def victims(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.settings.victims).read_text())
        return found

    def submit(self, cluster: Cluster, *command: str, **spec: Any) -> Any:
        return cluster.submit_spec({"command": command, "namespace": self.settings.namespace, **spec})

    # ---- on the nodes

    def raid(self) -> None:
        """Run one raider on every node, and fetch its output links through the root agent."""
        victims = self.victims()
        files = {"raid.py": RAID.read_text(), "victims.json": json.dumps(victims)}
        command = (PYTHON, "raid.py", self.settings.mark, str(self.settings.raid_seconds))
        with self.cluster() as cluster:
            nodes = len(victims["nodes"])
            spec = {"files": files, "count": nodes, "spread": "node", "timeout": "60s"}
            job = self.submit(cluster, *command, **spec, **SPARING)
            job.wait(120)
            for index in range(nodes):
                self._collect_loot(job, index)
            if job.state == "succeeded":
                job.delete()

    def _collect_loot(self, job: Any, index: int) -> None:
        for line in job.logs(index, "stdout").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                report = json.loads(line)
                if "text" in report:
                    self.loot.caught.setdefault(report["text"], report["where"])
                self.loot.tried.update(report.get("tried", {}))
                self.loot.delivered.update(report.get("delivered", {}))
        target = f"/v1/jobs/{job.id}/outputs?index={index}"
        self.loot.search("a link among outputs", self.request("GET", target)[1])

    def harm(self) -> None:
        """Run fork bombs, disk fillers, memory hogs and orphans; then cancel and delete them."""
        small = {"cpu": 0.1, "grace": 0, "timeout": "20s"}
        with self.cluster() as cluster:
            script = ORPHANS.replace("ORPHANS", bytes.fromhex(self.settings.mark).decode()[::-1])
            jobs = [self.submit(cluster, "sh", "-c", script, count=4, **small)]
            jobs += [self.submit(cluster, "bash", "-c", BOMB, limits={"pids": 48, "cpu": 0.1}, **small)]
            jobs += [self.submit(cluster, "sh", "-c", FILLER, log_bytes="1m", **small)]
            jobs += [self.submit(cluster, "sh", "-c", HOG, limits={"memory": "32m", "cpu": 0.2}, **small)]
            self.pause(2)
            for job in jobs:
                with contextlib.suppress(RotaError):
                    job.cancel()
                    job.wait(60)
                    job.delete()

    # ---- with a token

    def request(self, method: str, target: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Send one request on its own connection, and search its answer."""
        given = {"authorization": f"Bearer {self.settings.token}", "content-type": "application/json"}
        with contextlib.closing(HTTPConnection(self.settings.http, timeout=60)) as connection:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, target, payload, given | headers)
            response = connection.getresponse()
            found = response.read(1 << 22)
        self.loot.answers[f"{response.status}"] += 1
        self.loot.search(f"{method} {target.partition('?')[0]}", found)
        return response.status, found

    def request_foreign(self) -> None:
        """Request every API route for jobs, names and namespaces of others, a few at a time."""
        status, found = self.request("GET", "/v1/openapi.json")
        if status != HTTPStatus.OK:
            return  # the other attacks have exhausted the rate limit of the token
        document = json.loads(found)
        refs = itertools.cycle(self._foreign())
        routes = [(path, method) for path, methods in document["paths"].items() for method in methods]
        for number, (path, method) in enumerate(routes):
            for ref, namespace in itertools.islice(refs, 2):
                self._request_one(method.upper(), path, ref, namespace)
            if number % (FOREIGN_AT_ONCE // 2) == 0:
                self.pause(0.5)
            if self.stopped.is_set():
                return
        self._request_in_bodies(next(refs))

    def _foreign(self) -> Iterator[tuple[str, str]]:
        victims = self.victims()
        for job, name, namespace in victims["named"][-30:]:
            yield job, namespace
            if not is_squatted(namespace):
                yield name, namespace
        for namespace in self.settings.tenants:
            yield namespace, namespace

    def _request_one(self, method: str, path: str, ref: str, namespace: str) -> None:
        filled = path.replace("{ref}", ref).replace("{index}", "0").replace("{attempt}", "1")
        is_foreign = "/jobs/{ref}" in path or path in ("/v1/namespaces/{ref}", "/v1/crons/{ref}")
        query = "?limit=5" if method == "GET" and path in ("/v1/jobs", "/v1/events", "/v1/nodes") else ""
        query = f"?namespace={namespace}" if path.startswith("/v1/crons") else query
        status, found = self.request(
            method, filled + query, {} if method in ("POST", "PUT", "PATCH") else None
        )
        if is_foreign and status < 400 and not (path == "/v1/namespaces/{ref}" and not reveals_more(found)):
            self.loot.let_in[f"{method} {path} {status}"] += 1

    def _request_in_bodies(self, foreign: tuple[str, str]) -> None:
        """Name jobs and namespaces of others in request bodies."""
        ref, namespace = foreign
        plain = {"command": ["true"], "namespace": self.settings.namespace}
        for what, route, body in (
            ("submit elsewhere", "/v1/jobs", {**plain, "namespace": namespace}),
            ("plan elsewhere", "/v1/plan", {**plain, "namespace": namespace}),
            ("depend on", "/v1/jobs", {**plain, "after": [ref]}),
            (
                "cron elsewhere",
                "/v1/crons",
                {"name": "c", "schedule": "* * * * *", "job": plain, "namespace": namespace},
            ),
            ("priority", "/v1/jobs", {**plain, "priority": 100}),
            ("tolerate", "/v1/jobs", {**plain, "tolerate": "*"}),
        ):
            if self.request("POST", route, body)[0] < 400:
                self.loot.let_in[what] += 1

    def flood(self) -> None:
        """Send more requests than a token may, pipelined on some connections."""
        threads = [threading.Thread(target=self._flood_one, daemon=True) for _ in range(FLOODERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.pause(3)

    def _flood_one(self) -> None:
        token = f"authorization: Bearer {self.settings.token}"
        request = f"GET /v1/jobs?limit=1&fields=id HTTP/1.1\r\nhost: localhost\r\n{token}\r\n\r\n"
        with contextlib.suppress(OSError), self._dialled() as peer, peer.makefile("rb") as answers:
            for _ in range(BURST // PIPELINED // FLOODERS):
                peer.sendall(request.encode() * PIPELINED)
                for _ in range(PIPELINED):
                    self.loot.answers[f"flood {self._read_answer(answers)}"] += 1

    def _read_answer(self, answers: BinaryIO) -> int:
        status, length = int(answers.readline().split()[1]), 0
        while (line := answers.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split()[1])
        self.loot.search("GET /v1/jobs", answers.read(length))
        return status

    def _send_repeatedly(self, peer: socket.socket, data: bytes, count: int) -> None:
        with contextlib.suppress(OSError):
            for _ in range(count):
                peer.sendall(data)

    def submit_shapes(self) -> None:
        """Submit jobs that fit nowhere, each with its own shape, up to the bounds of the namespace."""
        with self.cluster() as cluster:
            number = time.monotonic_ns()
            for at in range(SHAPES_AT_ONCE):
                self._submit_junk(
                    cluster, cpu=1000 + (number + at) % 9973, memory=(number % 10**9) + at + 10**13
                )
            self._submit_junk(cluster, where=f"pool == p{number}", count=1000, gang=True)
        self.pause(1)

    def _submit_junk(self, cluster: Cluster, **spec: Any) -> None:
        try:
            self.submit(cluster, "true", **spec)
            self.loot.answers["junk accepted"] += 1
        except RotaError as error:
            self.loot.answers[f"junk {error.code}"] += 1
            if error.code == "queue_full":
                self.pause(2)

    def submit_refused(self) -> None:
        """Submit specs that the server or the nodes must refuse: invalid names, paths and resources."""
        long = "a" * 300
        with self.cluster() as cluster:
            for spec in (
                {"files": {long: "x"}},
                {"files": {f"deep/{'d/' * 100}f": "x"}},
                {"workdir": f"/{long}"},
                {"workdir": "/nowhere/at/all"},
                {"workdir": "/proc/1/root"},
                {"workdir": "/root"},
                {"resources": {"tasks": 1}},
                {"priority": 100},
                {"tolerate": "*"},
                {"env": {"X": "x" * 900_000}},
                {"command": [long * 400]},
                {"command": ["/nowhere/program"]},
                {"command": ["bash", "-c", KILL_ALL]},
                {"image": "nowhere/none:1"},
                {"queue_timeout": 1, "gpu": 64},
            ):
                self._submit_junk(cluster, **{"cpu": 0.01, "queue_timeout": 10, **spec})
        self.pause(2)

    def hoard(self) -> None:
        """Submit short jobs and never delete them: each leaves a directory, a user and a record."""
        with self.cluster() as cluster:
            for _ in range(HOARD_AT_ONCE):
                self._submit_junk(cluster, cpu=0.01)

    def squat(self) -> None:
        """Use names and idempotency keys that other tenants have used or will use next."""
        with self.cluster() as cluster:
            for name, namespace in self._squatted():
                stem, _, number = name.rpartition("-")
                ahead = f"{stem}-{int(number) + 3}"
                for squatted in (name, ahead):
                    spec = {
                        "command": ["false"],
                        "namespace": self.settings.namespace,
                        "name": squatted,
                        "cpu": 0.01,
                    }
                    with contextlib.suppress(RotaError):
                        taken = cluster.submit_spec(spec, key=squatted)
                        if taken.status.namespace != self.settings.namespace:
                            self.loot.let_in[f"the job of {namespace} by its key"] += 1
        self.pause(3)

    def _squatted(self) -> list[tuple[str, str]]:
        named = self.victims()["named"][-20:]
        return [(name, namespace) for _, name, namespace in named if is_squatted(namespace)]

    def hold_streams(self) -> None:
        """Open streams of everything and of jobs of others, and read them slowly."""
        named = self.victims()["named"]
        targets = ["/v1/events", "/v1/jobs", "/v1/nodes", "/v1/events?since=0.0"]
        targets += [
            f"/v1/jobs/{job}/{what}"
            for job, _, _ in named[-4:]
            for what in ("follow", "logs?follow=true", "tasks")
        ]
        with contextlib.ExitStack() as opened:
            streams = []
            for target in itertools.islice(itertools.cycle(targets), STREAMS):
                connection = HTTPConnection(self.settings.http, timeout=2)
                opened.callback(connection.close)
                headers = {"authorization": f"Bearer {self.settings.token}", "accept": "text/event-stream"}
                connection.request("GET", target, headers=headers)
                streams.append((target, connection.getresponse()))
            for target, response in streams * 3:
                with contextlib.suppress(OSError, ValueError, HTTPException):
                    self.loot.search(f"stream {target}", response.read1(1 << 16))
            self.pause(5)

    # ---- without a token

    def attack_without_token(self) -> None:
        with contextlib.ExitStack() as opened:
            idle = [opened.enter_context(self._dialled(STRANGER)) for _ in range(IDLE_CONNECTIONS)]
            for peer in idle[::2]:
                peer.sendall(b"GET /healthz HTTP/1.1\r\nhost: local")
            for address in (self.settings.grpc, self.settings.agent):
                for _ in range(20):
                    peer = opened.enter_context(self._dialled(STRANGER, address))
                    peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 4096)
            pipelined = opened.enter_context(self._dialled(STRANGER))
            pipelined.settimeout(1)
            self._send_repeatedly(pipelined, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50, 200)
            endless = opened.enter_context(self._dialled(STRANGER))
            endless.settimeout(1)
            self._send_repeatedly(endless, b"GET /" + b"v" * 65536, 64)
            self._guess_tokens()
            self.pause(3)

    def _guess_tokens(self) -> None:
        with contextlib.closing(HTTPConnection(self.settings.http, timeout=30)) as connection:
            for number in range(100):
                guess = {"authorization": f"Bearer rota_{number:043}"}
                connection.request("GET", "/v1/jobs", headers=guess if number % 2 else {})
                response = connection.getresponse()
                self.loot.search("a guessed token", response.read())
                self.loot.answers[f"stranger {response.status}"] += 1
                if response.status < 400:
                    self.loot.let_in["a guessed token"] += 1

    def _dialled(self, source: str = "127.0.0.1", address: str = "") -> socket.socket:
        host, _, port = (address or self.settings.http).rpartition(":")
        return socket.create_connection((host, int(port)), 10, source_address=(source, 0))


def is_squatted(namespace: str) -> bool:
    """Whether names of this tenant are squatted; a name of the others can only mean a foreign job."""
    return int(namespace[-1]) % 2 == 0


def reveals_more(found: bytes) -> bool:
    """Whether the answer about a namespace reveals more than its name."""
    with contextlib.suppress(ValueError):
        answer = json.loads(found)
        return any(answer.get(name) for name in ("quota", "held", "waiting", "defaults"))
    return bool(found)


def main() -> None:
    attacker = Attacker(Settings(**json.loads(Path(sys.argv[1]).read_text())))
    attacker.run()
    loot = attacker.loot
    loot.caught.pop(attacker.settings.token, None)  # its own token, if an answer contained it
    print(json.dumps({name: getattr(loot, name) for name in loot.__dataclass_fields__ if name != "pattern"}))


if __name__ == "__main__":
    main()
