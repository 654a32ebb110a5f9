"""Health checks of services under a real keeper: healthy, unhealthy, hanging, and many at once."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import free_ports
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.keeper.test_service import FOR_EVER, HEALTH, OFTEN, RESTARTS, serve, service_row, wait_service

QUICK = {"interval_ms": 20, "timeout_ms": 60_000, "after_ms": 0, "failures": 2, "successes": 1}


def by_command(script: str, **more: int) -> dict[str, Any]:
    return {**QUICK, "argv": ["sh", "-c", script], **more}


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256


@contextlib.contextmanager
def web(answer: list[int]) -> Iterator[int]:
    """A server on loopback that answers with the last of these codes."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer[-1] if self.path == "/health?x=1" else HTTPStatus.NOT_FOUND)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_check_command_that_exits_with_0_means_healthy(agent: Agent) -> None:
    serve(agent, "exec sleep 600", check=by_command('[ "$ROTA_CHECK" = 1 ] && [ "$ROTA_INDEX" = 0 ]'))

    assert wait_service(agent, health="healthy")[RESTARTS] == 0


def test_a_service_without_a_check_is_up(agent: Agent) -> None:
    serve(agent, "exec sleep 600")

    assert wait_service(agent, health="up")


def test_a_service_that_fails_its_check_is_restarted_in_place(
    keeper: Keeper, agent: Agent, tmp_path: Path
) -> None:
    """The service is stopped by its stop signal, and handles it."""
    sick = tmp_path / "sick"
    script = f"trap 'echo bye; rm -f {sick}; exit 0' TERM; echo start; while :; do sleep 0.01; done"
    serve(agent, script, check=by_command(f"! test -e {sick} || exit 7"), grace_ms=60_000)
    wait_service(agent, health="healthy")
    wait_until(lambda: keeper.output("7") == "start\n", "its trap")
    sick.touch()
    wait_service(agent, restarts=1, health="healthy")

    wait_until(lambda: keeper.output("7") == "start\nbye\nstart\n", "a second start after a goodbye")
    assert service_row(agent)[:2] == [1, 0]
    assert agent.ended == []


def test_a_service_that_never_becomes_healthy_fails(agent: Agent) -> None:
    serve(agent, "exec sleep 600", OFTEN, check=by_command("exit 7"))
    (ended,) = agent.wait_ended()

    assert ended[3] == "exited"
    assert ended[-1] == "unhealthy: check exited with 7; it ended 4 times within 600 s"


def test_check_failures_do_not_count_while_a_service_starts(
    keeper: Keeper, agent: Agent, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    script = f"echo x >> {tries}; [ $(wc -l < {tries}) -gt 5 ]"
    serve(agent, "exec sleep 600", check=by_command(script, after_ms=600_000, failures=1))

    assert wait_service(agent, health="healthy")[RESTARTS] == 0


def test_a_check_that_hangs_is_killed_with_its_children(keeper: Keeper, agent: Agent, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    hangs = f"echo x >> {begun}; (setsid sleep 700 &) ; sleep 701 & sleep 702"
    serve(agent, "exec sleep 600", FOR_EVER, check=by_command(hangs, timeout_ms=200, failures=1_000))
    wait_until(lambda: begun.exists() and begun.read_text().count("x") > 5, "several checks")
    agent.start("8", "true")  # other jobs are not delayed
    agent.wait_ended()
    agent.stop(["7", 0, 1])
    agent.wait_ended(2)

    assert service_row(agent)[RESTARTS] == 0
    wait_until(lambda: not keeper.work(), "nobody is left")


def test_processes_left_by_checks_do_not_pile_up(keeper: Keeper, agent: Agent, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    leaves = f"setsid sleep 700 & echo x >> {begun}; until [ -e go ]; do sleep 0.01; done"
    serve(agent, "exec sleep 600", check=by_command(leaves, interval_ms=200))
    wait_until(lambda: bool(keeper.running("sleep", "700")), "what a check leaves behind")
    left = keeper.running("sleep", "700")
    (keeper.root / "work/7/go").touch()
    wait_until(lambda: not left & keeper.running("sleep", "700"), "its end, while it is checked on")
    checks = begun.read_text().count("x")
    wait_until(lambda: begun.read_text().count("x") > checks + 3, "further checks")

    assert wait_service(agent, health="healthy")[RESTARTS] == 0


def test_a_port_that_accepts_connections_is_healthy(agent: Agent) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)) as server:
        serve(agent, "exec sleep 600", SELDOM_BUT_ONCE, check={**QUICK, "port": port})
        wait_service(agent, health="healthy")
        server.shutdown(socket.SHUT_RDWR)  # it no longer listens, and keeps the port
        (ended,) = agent.wait_ended()

    assert "connection refused" in ended[-1]


def test_the_http_status_decides_on_the_health(agent: Agent) -> None:
    answer = [200]
    with web(answer) as port:
        check = {**QUICK, "port": port, "path": "/health?x=1", "codes": [[200, 299], [401, 401]]}
        serve(agent, "exec sleep 600", SELDOM_BUT_ONCE, check=check)
        wait_service(agent, health="healthy")
        answer.append(401)
        answer.append(503)
        (ended,) = agent.wait_ended()

    assert ended[-1] == "unhealthy: /health?x=1 answered 503"


def test_a_server_that_does_not_answer_times_out(agent: Agent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check = {**QUICK, "port": server.getsockname()[1], "path": "/", "codes": [[200, 299]]}
        serve(agent, "exec sleep 600", SELDOM_BUT_ONCE, check={**check, "timeout_ms": 50})
        (ended,) = agent.wait_ended()

    assert ended[-1] == "unhealthy: took longer than 0.05 s"


SELDOM_BUT_ONCE = {**OFTEN, "attempts": 0}


@pytest.mark.parametrize("kind", ["command", "tcp", "http"])
def test_two_hundred_checks_at_once(keeper: Keeper, agent: Agent, kind: str) -> None:
    tasks = [[index, 1, 1] for index in range(200)]
    calm = {**QUICK, "interval_ms": 5_000}
    with web([200]) as port:
        checks: dict[str, dict[str, Any]] = {
            "command": {**calm, "argv": ["true"]},
            "tcp": {**calm, "port": port},
            "http": {**calm, "port": port, "path": "/health?x=1", "codes": [[200, 299]]},
        }
        spec: dict[str, Any] = {"tasks": tasks, "count": 200, "needs": {"cpu": 1}, "restart": FOR_EVER}
        agent.start("7", "sleep", "600", check=checks[kind], **spec)
        while sum(row[HEALTH] == "healthy" for row in agent.lives.values()) < 200:
            agent.receive()
        agent.stop(*(["7", index, 1] for index in range(200)))
        agent.wait_ended(200)

    assert {row[3] for row in agent.ended} == {"stopped"}
    assert {row[RESTARTS] for row in agent.lives.values()} == {0}


def test_a_check_runs_in_the_directory_and_environment_of_its_task(keeper: Keeper, agent: Agent) -> None:
    """It has the task's directory and environment, and its output is discarded."""
    script = 'echo noise; [ "$GREETING" = hello ] && [ -e here ] && [ "$ROTA_ATTEMPT" = 1 ]'
    serve(agent, "touch here; exec sleep 600", env={"GREETING": "hello"}, check=by_command(script))
    wait_service(agent, health="healthy")

    assert keeper.output("7") == ""


def test_an_endless_status_code_does_not_harm_the_keeper(keeper: Keeper, agent: Agent) -> None:
    """More digits than Python parses, in two parts that make one line."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.sendall(b"HTTP/1.0 " + b"2" * 3000)
                        connection.recv(4096)
                        connection.sendall(b"2" * 3000 + b"\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        check = {**QUICK, "port": server.getsockname()[1], "path": "/", "codes": [[200, 299]]}
        serve(agent, "exec sleep 600", SELDOM_BUT_ONCE, check=check)
        (ended,) = agent.wait_ended()

    assert ended[-1].startswith("unhealthy: port")
    assert ended[-1].endswith("does not answer in HTTP")
    assert keeper.process.poll() is None
