"""An end is held back until its result is accepted, or for a bounded time while connected."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rota.agent.output.results import ResultReporter
from rota.identity.authority import CertificateAuthority
from rota.identity.node_identity import NodeIdentity, make_request, store_identity
from rota.identity.signed_requests import verify_request
from rota.model.ids import JobId
from rota.model.messages import AttemptReport, JobReports, ReportedState
from rota.model.result import ResultEndpoint

ONE = JobId("1")
PATH = "/v1/jobs/1/tasks/0/attempts/1/result"
ENDED = AttemptReport(0, 1, ReportedState.EXITED, 3, started_at_ms=5, ended_at_ms=6)
RUNNING = AttemptReport(0, 1, ReportedState.RUNNING, started_at_ms=5)
NOW = datetime.now(UTC)


class Server:
    """An HTTP server that answers with the given statuses; the last one is repeated."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.posted: list[tuple[str, str, bytes]] = []
        outer = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.posted.append((self.path, self.headers["authorization"], body))
                status = outer.statuses.pop(0) if len(outer.statuses) > 1 else outer.statuses[0]
                reply = b'{"detail": "because"}'
                self.send_response(status)
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def serving(*statuses: int) -> Iterator[Server]:
    with contextlib.closing(Server(*statuses)) as server:
        yield server


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.open(tmp_path / "ca", NOW)


@pytest.fixture
def identity(authority: CertificateAuthority, tmp_path: Path) -> NodeIdentity:
    certificate = authority.sign_node(make_request(tmp_path / "node"), "n1", "one", NOW)
    return store_identity(tmp_path / "node", certificate, authority.ca_pem)


class Reporting:
    def __init__(self, reporter: ResultReporter, noted: "asyncio.Queue[list[JobReports]]") -> None:
        self.reporter = reporter
        self.noted = noted


@contextlib.asynccontextmanager
async def reporting(
    identity: NodeIdentity, directory: Path, *urls: str, patience_seconds: float = 60
) -> AsyncIterator[Reporting]:
    """A reporter that is connected, and where job 1 reports to these servers."""
    noted: asyncio.Queue[list[JobReports]] = asyncio.Queue()
    reporter = ResultReporter(
        directory, lambda: identity, noted.put_nowait, lambda *_, **__: None, patience_seconds
    )
    reporter.attach({ONE: ResultEndpoint(urls[0], "", "n1", others=urls[1:], by_agent=True)})
    reporter.connected.set()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reporter.run())
        yield Reporting(reporter, noted)
        running.cancel()


async def test_an_end_is_reported_as_running_until_its_result_is_accepted(
    authority: CertificateAuthority, identity: NodeIdentity, tmp_path: Path
) -> None:
    with serving(503, 401, 404, 201) as server:
        async with reporting(identity, tmp_path, server.url) as agent:
            at_first = agent.reporter.defer_ends([JobReports(ONE, [ENDED]), JobReports(JobId("2"), [ENDED])])
            again = agent.reporter.defer_ends([JobReports(ONE, [ENDED])])
            noted = await agent.noted.get()
    path, header, body = server.posted[0]

    assert at_first == [JobReports(ONE, [RUNNING]), JobReports(JobId("2"), [ENDED])]
    assert again == [JobReports(ONE, [RUNNING])]
    assert noted == [JobReports(ONE, [ENDED])]
    assert (len(server.posted), len(set(server.posted[1:]))) == (4, 3)  # each request is signed again
    assert {posted_body for _, _, posted_body in server.posted} == {body}
    assert path == PATH
    assert json.loads(body) == {"results": {"exit_code": 3}, "failure": "it ended with exit code 3"}
    assert verify_request(header, "POST", PATH, authority.ca_pem, NOW).covers(body)


async def test_a_standby_is_tried_if_the_first_server_does_not_answer(
    identity: NodeIdentity, tmp_path: Path
) -> None:
    with serving(201) as server:
        async with reporting(identity, tmp_path, "http://127.0.0.1:9", server.url) as agent:
            agent.reporter.defer_ends([JobReports(ONE, [ENDED])])

            assert await agent.noted.get() == [JobReports(ONE, [ENDED])]


@pytest.mark.parametrize(("status", "patience_seconds"), [(400, 60), (403, 60), (503, 0), (404, 0)])
async def test_a_refused_or_late_result_ends_the_attempt_without_one(
    identity: NodeIdentity, tmp_path: Path, status: int, patience_seconds: float
) -> None:
    with serving(status) as server:
        async with reporting(identity, tmp_path, server.url, patience_seconds=patience_seconds) as agent:
            agent.reporter.defer_ends([JobReports(ONE, [ENDED])])
            ((_, (report,)),) = await agent.noted.get()

    assert (report.state, report.exit_code) == (ReportedState.EXITED, 3)
    assert report.reason is not None
    assert report.reason.startswith("its result was not reported: ")
    assert report.reason.endswith("because")
    assert len(server.posted) == 1


async def test_an_end_with_a_stored_result_is_reported_as_it_is(
    identity: NodeIdentity, tmp_path: Path
) -> None:
    with serving(409) as server:
        async with reporting(identity, tmp_path, server.url) as agent:
            agent.reporter.defer_ends([JobReports(ONE, [ENDED])])

            assert await agent.noted.get() == [JobReports(ONE, [ENDED])]
    assert len(server.posted) == 1


async def test_nothing_is_posted_before_a_server_is_connected(identity: NodeIdentity, tmp_path: Path) -> None:
    with serving(201) as server:
        async with reporting(identity, tmp_path, server.url) as agent:
            agent.reporter.connected.clear()
            agent.reporter.defer_ends([JobReports(ONE, [ENDED])])
            for _ in range(10):
                await asyncio.sleep(0)
            before = list(server.posted)
            agent.reporter.connected.set()
            await agent.noted.get()

    assert (before, len(server.posted)) == ([], 1)


async def test_the_end_of_a_forgotten_job_is_not_waited_for(identity: NodeIdentity, tmp_path: Path) -> None:
    async with reporting(identity, tmp_path, "http://127.0.0.1:9") as agent:
        agent.reporter.defer_ends([JobReports(ONE, [ENDED])])
        agent.reporter.forget([ONE])
        await agent.reporter.finish()

        assert agent.reporter.defer_ends([JobReports(ONE, [ENDED])]) == [JobReports(ONE, [ENDED])]
