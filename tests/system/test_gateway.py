"""Workers made from the contract alone serve as nodes, and their faults affect no other node."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.identity.authority import CertificateAuthority
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60
KILLED = {"done": True, "error": True, "error_text": "signal: killed"}
SILENT = (500, {"error": "the worker does not answer"})
NOBODY = str(uuid.UUID(int=7, version=4))
LOST_SECONDS = 15  # a worker may answer late on a busy machine, and what ran on a lost one has failed
GATEWAY = {"ROTA_WORKER_GATEWAY_ENABLED": "true", "ROTA_LOST_SECONDS": str(LOST_SECONDS)}


class Foreign:
    """A process of its own that has the contract's stubs, and nothing of Rota."""

    def __init__(self, scheduler: str, stubs: Path, *manners: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/system/foreign_worker.py"), scheduler, *manners],
            env={"PYTHONPATH": str(stubs), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.calls: list[str] = []
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()
        self.port = self.id = ""

    def greet(self) -> None:
        self.port = self.printed("port")
        self.id = self.printed("registered True")

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self.calls.append(line.strip())
            self._lines.put(line.strip())

    def printed(self, head: str) -> str:
        """What follows in the next line that begins so."""
        while not (line := self._lines.get(timeout=PATIENCE_SECONDS)).startswith(head):
            pass
        return line.removeprefix(head).strip()

    def until_called(self, head: str) -> list[str]:
        """Every call that begins so, at least one: what it prints is read a moment later."""
        return until(lambda: [call for call in self.calls if call.startswith(head)], f"it was called: {head}")

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        """With all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listening.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        with contextlib.suppress(OSError):  # nobody has read the last line
            self._process.stdin.close()


class Gateway:
    """A cluster whose worker gateway is on, and the workers that have come to it."""

    def __init__(self, cluster: LocalCluster, stubs: Path, *tls: str) -> None:
        self.cluster = cluster
        self._stubs = stubs
        self._tls = tls
        self._workers: list[Foreign] = []

    def worker(self, *manners: str) -> Foreign:
        address = self.cluster.grpc.replace("127.0.0.1", "localhost") if self._tls else self.cluster.grpc
        self._workers.append(Foreign(address, self._stubs, *self._tls, *manners))
        self._workers[-1].greet()
        return self._workers[-1]

    def ready(self, *manners: str) -> Foreign:
        worker = self.worker(*manners)
        self.until_state(worker, "ready")
        return worker

    def node(self, worker: Foreign) -> Any:
        nodes = self.cluster.call("GET", "/v1/nodes").body["nodes"]
        return next(node for node in nodes if node["name"].endswith(f"-{worker.port}"))

    def until_state(self, worker: Foreign, *states: str) -> None:
        until(lambda: self.node(worker)["state"] in states, f"it is {states}", PATIENCE_SECONDS)

    def say(self, verb: str, worker: Foreign | str, **body: Any) -> tuple[int, Any]:
        """As the contract has it: without a token."""
        worker_id = worker if isinstance(worker, str) else worker.id
        answer = self.cluster.call("POST", f"/{verb}", {"worker_id": worker_id, **body}, authorization="")
        return answer.status, answer.body

    def start(self, worker: Foreign, command: str, path: str = "") -> str:
        status, body = self.say("start", worker, command=command, path=path)
        assert status == 201, body
        return str(body["job_id"])

    def until_done(self, worker: Foreign, job: str) -> Any:
        until(lambda: self.say("query", worker, job_id=job)[1]["done"], "it is done", PATIENCE_SECONDS)
        return self.say("query", worker, job_id=job)[1]

    @contextlib.contextmanager
    def stream(self, worker: Foreign, job: str) -> Iterator[Any]:
        with contextlib.closing(HTTPConnection(self.cluster.http, timeout=PATIENCE_SECONDS)) as connection:
            body = f'{{"worker_id": "{worker.id}", "job_id": "{job}"}}'
            connection.request("POST", "/stream", body)
            yield connection.getresponse()

    def close(self) -> None:
        """In good order: many nodes that fall silent together would be the cluster's fault, not theirs."""
        for worker in self._workers:
            worker.close()
        with grpc.insecure_channel(self.cluster.grpc) as channel:
            deregister: Any = channel.unary_unary("/Scheduler/DeregisterWorker")
            for worker in self._workers if not self._tls else ():
                deregister(b"\x0a\x24" + worker.id.encode(), timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("gateway"), nodes=1, settings=GATEWAY) as cluster:
        yield cluster


@pytest.fixture
def gateway(running: LocalCluster, stubs: Path) -> Iterator[Gateway]:
    with contextlib.closing(Gateway(running, stubs)) as opened:
        yield opened


def test_a_worker_serves_by_its_own_contract_and_as_a_node(gateway: Gateway, tmp_path: Path) -> None:
    worker = gateway.ready()
    job = gateway.start(worker, "sh -c 'echo hello from $PWD'", str(tmp_path))
    done = gateway.until_done(worker, job)
    with gateway.stream(worker, job) as response:
        streamed = response.read().decode()
    failed = gateway.until_done(worker, gateway.start(worker, "sh -c 'exit 3'"))
    sleeping = gateway.start(worker, "sleep 600")
    stopped = gateway.say("stop", worker, job_id=sleeping)
    node = gateway.node(worker)

    assert str(uuid.UUID(worker.id)) == worker.id
    assert (node["labels"]["dialled"], node["taints"]) == ("jobscheduler", ["dialled"])
    assert done == {"done": True, "error": False, "error_text": ""}
    assert streamed == f"hello from {tmp_path}\n"
    assert failed == {"done": True, "error": True, "error_text": "exit status 3"}
    assert str(uuid.UUID(job)) == job
    assert gateway.cluster.call("GET", f"/v1/jobs/{job}").body["name"] == job
    assert stopped == (200, {"success": True})
    assert gateway.say("query", worker, job_id=sleeping) == (200, KILLED)
    assert "stop job-3" in worker.until_called("stop")
    assert gateway.say("start", worker, command="/nowhere/at/all") == (
        500,
        {"error": "the worker did not start it: cannot run: No such file or directory"},
    )


def test_an_unknown_job_is_reported_as_the_contract_says(gateway: Gateway) -> None:
    worker = gateway.ready()
    nobody = (500, {"error": "worker not found"})

    assert gateway.say("start", NOBODY, command="true") == nobody
    assert gateway.say("query", "", job_id="1") == nobody
    for job in ("1", "999", NOBODY, 7, None):
        assert gateway.say("query", worker, job_id=job) == (500, {"error": "job not found"})
    assert gateway.say("start", worker)[0] == 500
    assert gateway.cluster.call("POST", "/start", {}, authorization="Bearer rota_wrong").status == 401
    assert gateway.cluster.call("GET", "/v1/jobs", authorization="").status == 401


def test_jobs_are_pinned_to_a_worker_and_no_others_run_there(gateway: Gateway) -> None:
    worker = gateway.ready()
    name = gateway.node(worker)["name"]
    ran = gateway.cluster.rota("run", "-q", "--no-workdir", "--on", name, "--", "echo", "two words", "here")
    job = gateway.cluster.submit("true", count=50)
    until(lambda: gateway.cluster.count(job, "succeeded") == 50, "all ran", PATIENCE_SECONDS)
    asks = gateway.cluster.submit("true", on=name, env={"A": "b"}, run="at_most_once")

    def refused() -> bool:
        return "does not support run = at_most_once, variables" in str(
            gateway.cluster.call("GET", f"/v1/jobs/{asks}/why").body
        )

    assert (ran.code, ran.out) == (0, "two words here\n"), ran
    assert worker.until_called("start") == ["start echo 'two words' here in -"]
    until(refused, "it says why", PATIENCE_SECONDS)
    assert gateway.cluster.call("POST", f"/v1/jobs/{asks}/cancel", {}).status == 202


def test_output_is_followed_from_a_worker_that_starts_slowly(gateway: Gateway) -> None:
    worker = gateway.ready("slow=2")
    name = gateway.node(worker)["name"]
    ran = gateway.cluster.rota("run", "-q", "--no-workdir", "--on", name, "--", "echo", "at last")

    assert (ran.code, ran.out) == (0, "at last\n"), ran


def test_registering_again_replaces_the_id_and_deregisters_once(gateway: Gateway) -> None:
    worker = gateway.ready()
    first, node = worker.id, gateway.node(worker)["id"]
    worker.say("register")
    worker.id = worker.printed("registered True")
    gateway.until_state(worker, "ready")
    job = gateway.start(worker, "true")

    assert worker.id != first
    assert gateway.node(worker)["id"] == node
    assert gateway.say("start", first, command="true") == (500, {"error": "worker not found"})
    assert not gateway.until_done(worker, job)["error"]
    for name, success in ((NOBODY, "False"), (first, "False"), ("", "True"), ("", "False")):
        worker.say(f"deregister {name}".strip())
        assert worker.printed("deregistered") == success
    gateway.until_state(worker, "left")


def test_the_unpackaged_service_answers_and_bad_addresses_are_refused(gateway: Gateway) -> None:
    with grpc.insecure_channel(gateway.cluster.grpc) as channel:
        register: Any = channel.unary_unary("/Scheduler/RegisterWorker")
        refused = [register(address, timeout=30) for address in (b"\x0a\x01x", b"\x0a\x0b10.0.0.1:80", b"")]
        taken = register(b"\x0a\x0b127.0.0.1:9", timeout=30)

    assert refused == [b"", b"", b""]
    assert taken.startswith(b"\x08\x01\x12\x24")


def test_a_worker_that_hangs_or_answers_late_delays_no_other(gateway: Gateway) -> None:
    good, hangs, late = gateway.ready(), gateway.ready(), gateway.ready("slow=3")
    gateway.worker("deaf")
    slow = gateway.start(late, "echo once")
    hangs.signal(signal.SIGSTOP)
    lost = gateway.cluster.submit("true", on=gateway.node(hangs)["name"])
    job = gateway.start(good, "echo quick")

    assert not gateway.until_done(good, job)["error"]
    assert not gateway.until_done(late, slow)["error"]
    assert late.until_called("start") == ["start echo once in -"]
    assert gateway.cluster.rota("run", "-q", "--", "echo", "as ever").out == "as ever\n"
    gateway.until_state(hangs, "suspect", "lost")
    hangs.signal(signal.SIGCONT)
    gateway.until_state(hangs, "ready")
    until(lambda: gateway.cluster.count(lost, "succeeded") == 1, "it runs after all", PATIENCE_SECONDS)


def test_a_start_on_a_worker_that_is_frozen_or_dead_fails_and_nothing_starts_later(gateway: Gateway) -> None:
    freezes, dies = gateway.ready(), gateway.ready()
    jobs = len(gateway.cluster.call("GET", "/v1/jobs").body["jobs"])
    freezes.signal(signal.SIGSTOP)
    frozen = gateway.say("start", freezes, command="echo too late")
    freezes.signal(signal.SIGCONT)
    dies.signal(signal.SIGKILL)
    dead = gateway.say("start", dies, command="echo too late")
    gateway.until_state(dies, "suspect", "lost")

    assert (frozen, dead) == (SILENT, SILENT)
    assert gateway.say("start", dies, command="echo too late") == SILENT
    assert len(gateway.cluster.call("GET", "/v1/jobs").body["jobs"]) == jobs
    gateway.until_state(freezes, "ready")
    gateway.until_done(freezes, gateway.start(freezes, "echo in time"))
    assert freezes.until_called("start") == ["start echo in time in -"]


def test_a_worker_frozen_while_starting_a_job_runs_nothing_after_it_resumes(gateway: Gateway) -> None:
    worker = gateway.ready("slow=2")
    with ThreadPoolExecutor(1) as caller:
        starting = caller.submit(gateway.say, "start", worker, command="sleep 600")
        worker.until_called("start")
        worker.signal(signal.SIGSTOP)
        answer = starting.result()
    job = gateway.cluster.call("GET", "/v1/jobs/last").body["name"]
    worker.signal(signal.SIGCONT)

    assert answer == SILENT
    assert worker.until_called("stop") == ["stop job-1"]
    assert gateway.until_done(worker, job) == KILLED
    assert len(worker.until_called("start")) == 1


def test_a_worker_without_streamjob_gives_an_error_instead_of_output(gateway: Gateway) -> None:
    worker = gateway.ready("mute")
    job = gateway.start(worker, "sleep 600")
    with gateway.stream(worker, job) as response:
        streamed = response.status, response.read()
    name = gateway.node(worker)["name"]
    ran = gateway.cluster.rota("run", "--no-workdir", "--on", name, "--", "echo", "unheard")

    assert streamed == (
        500,
        b'{"error":"the worker does not send the output: it does not implement StreamJob"}\n',
    )
    assert gateway.say("stop", worker, job_id=job) == (200, {"success": True})
    assert (ran.code, ran.out) == (0, ""), ran
    assert "StreamJob" in ran.err


def test_extra_keys_are_ignored_and_answers_end_with_a_newline(gateway: Gateway) -> None:
    worker = gateway.ready()
    job = gateway.start(worker, "true")
    bodies = {
        "start": {"worker_id": worker.id, "command": "true", "priority": 5},
        "query": {"worker_id": worker.id, "job_id": job, "extra": {}},
        "stop": {"worker_id": worker.id, "job_id": job, "extra": None},
        "stream": {"worker_id": NOBODY, "job_id": job, "extra": []},
    }
    answers = [raw(gateway, verb, json.dumps(body)) for verb, body in bodies.items()]
    wrong = [raw(gateway, "start", body) for body in ("[]", "7", "{", '{"worker_id": "x", "command": 7}')]

    assert [status for status, _ in answers] == [201, 200, 200, 500]
    assert [status for status, _ in wrong] == [500] * 4
    assert all(body.endswith(b"}\n") for _, body in (*answers, *wrong))


def raw(gateway: Gateway, verb: str, body: str) -> tuple[int, bytes]:
    with contextlib.closing(HTTPConnection(gateway.cluster.http, timeout=PATIENCE_SECONDS)) as connection:
        connection.request("POST", f"/{verb}", body)
        response = connection.getresponse()
        return response.status, response.read()


def test_a_worker_that_dies_is_found_and_one_that_never_stops_writing_fills_nothing(gateway: Gateway) -> None:
    good, dies = gateway.ready(), gateway.ready()
    floods = gateway.start(good, "yes for ever")
    job = gateway.start(dies, "sleep 600")
    with gateway.stream(good, floods) as response:
        assert response.read(100_000).startswith(b"for ever\nfor ever\n")
    dies.signal(signal.SIGKILL)
    gateway.until_state(dies, "lost")

    assert gateway.until_done(dies, job)["error"]
    assert not gateway.until_done(good, gateway.start(good, "true"))["error"]
    assert gateway.say("stop", good, job_id=floods) == (200, {"success": True})
    gateway.until_done(good, floods)


def test_work_on_a_worker_survives_the_server(gateway: Gateway, tmp_path: Path) -> None:
    worker = gateway.ready()
    gate = tmp_path / "gate"
    job = gateway.start(worker, f"sh -c 'while ! test -e {gate}; do sleep 0.1; done; echo opened'")
    gateway.cluster.kill_server()
    gateway.cluster.start_server()
    gateway.until_state(worker, "ready")
    gate.touch()

    assert not gateway.until_done(worker, job)["error"]
    assert len(worker.until_called("start")) == 1
    with gateway.stream(worker, job) as response:
        assert response.read() == b"opened\n"


def test_the_gateway_works_over_tls_as_configured(stubs: Path, tmp_path: Path) -> None:
    keys = CertificateAuthority.open(tmp_path / "authority", datetime.now(UTC)).server_identity(
        (), datetime.now(UTC)
    )
    files = {"crt": keys.cert_pem, "key": keys.key_pem, "ca": keys.ca_pem}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    settings = {
        **GATEWAY,
        "ROTA_GRPC_SERVER_USE_TLS": "true",
        "ROTA_GRPC_SERVER_CRT_FILE": str(tmp_path / "crt"),
        "ROTA_GRPC_SERVER_KEY_FILE": str(tmp_path / "key"),
        "ROTA_WORKER_GATEWAY_CA_FILE": str(tmp_path / "ca"),
    }
    tls = [f"{name}={tmp_path / name}" for name in files]
    with (
        LocalCluster(tmp_path / "cluster", nodes=0, settings=settings) as cluster,
        contextlib.closing(Gateway(cluster, stubs, *tls)) as gateway,
    ):
        worker = gateway.ready()
        job = gateway.start(worker, "echo safely")
        with gateway.stream(worker, job) as response:
            streamed = response.read()
        done = gateway.until_done(worker, job)

    assert (streamed, done["error"]) == (b"safely\n", False)
