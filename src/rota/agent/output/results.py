"""Results that the agent reports for tasks of jobs with `results = "agent"`. [I/O]

Ordering: an attempt that has ended is reported as `running` until its result was accepted by the REST call. A
result posted after the end would be refused, and a failure in it could not count. The keeper keeps the end
until the server has acknowledged it, so an agent that restarts in between finds it again and posts the same
body; the server accepts the first and answers the same again with success.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rota.agent.output import result_file
from rota.identity.node_identity import NodeIdentity
from rota.identity.signed_requests import sign_request
from rota.model.ids import JobId
from rota.model.limits import RESULT_PATIENCE_MS
from rota.model.messages import AttemptReport, JobOrders, JobReports, ReportedState
from rota.model.result import ResultEndpoint, result_path
from rota.runtimes.protocol import AttemptName

PARALLEL_REPORTS = 8  # requests at a time
_CALL_SECONDS = 15.0  # timeout of a request to one server
_ANSWER_BYTES = 64 << 10
_BACKOFF_FIRST_SECONDS = 0.2
_BACKOFF_MAX_SECONDS = 5.0
_FINISH_SECONDS = 5.0  # for requests in progress when the node leaves
# Ends that have a result.
_REPORTED = (ReportedState.EXITED, ReportedState.STOPPED, ReportedState.TIMED_OUT)
_ALREADY_REPORTED = (200, 201)
_CONFLICT = 409
_FINAL = (400, 403, 413)  # a repeated request would get the same answer


class _NotDelivered(Exception):
    """No server has accepted or refused the result; it is retried."""


class _EndedAttempt(NamedTuple):
    name: AttemptName
    report: AttemptReport


class ResultReporter:
    """Reports results of ended attempts, and calls `record` with each end after that, or if it fails."""

    def __init__(
        self,
        directory: Path,
        identity: Callable[[], NodeIdentity],
        record: Callable[[list[JobReports]], None],
        warn: Callable[..., None],
        timeout_seconds: float = RESULT_PATIENCE_MS / 1000,
    ) -> None:
        self.connected = asyncio.Event()  # a server has welcomed this node, and so knows its attempts
        self._directory = directory
        self._identity = identity
        self._record = record
        self._warn = warn
        self._timeout_seconds = timeout_seconds
        self._endpoints: dict[JobId, ResultEndpoint] = {}
        self._deferred: dict[AttemptName, asyncio.Task[None] | None] = {}
        self._queue: asyncio.Queue[_EndedAttempt] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._slots = asyncio.Semaphore(PARALLEL_REPORTS)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                ended = await self._queue.get()
                if ended.name in self._deferred:  # otherwise its job was forgotten meanwhile
                    self._deferred[ended.name] = tasks.create_task(self._report(ended))

    async def finish(self) -> None:
        """Wait a little for reports in progress, because the node leaves."""
        try:
            async with asyncio.timeout(_FINISH_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            self._warn("results not reported: the node leaves", attempts=len(self._deferred))

    def attach(self, endpoints: Mapping[JobId, ResultEndpoint]) -> None:
        """Add the endpoints of jobs that the keeper has, which an earlier agent was given."""
        self._endpoints |= endpoints

    def remember_endpoints(self, orders: Iterable[JobOrders]) -> None:
        for order in orders:
            if order.work is not None and order.work.reports is not None and order.work.reports.by_agent:
                self._endpoints[order.job] = order.work.reports

    def forget(self, jobs: Iterable[JobId]) -> None:
        for job in jobs:
            self._endpoints.pop(job, None)
            for name in [name for name in self._deferred if name.job == job]:
                task = self._deferred.pop(name)
                if task is not None:
                    task.cancel()
        self._count()

    def defer_ends(self, reports: list[JobReports]) -> list[JobReports]:
        """Replace ends whose result is not reported yet by `running`, and queue them for their result."""
        return [
            JobReports(found.job, [self._defer_end(found.job, report) for report in found.reports])
            if found.job in self._endpoints
            else found
            for found in reports
        ]

    def _defer_end(self, job: JobId, report: AttemptReport) -> AttemptReport:
        if report.state not in _REPORTED:
            return report
        name = AttemptName(job, report.index, report.attempt)
        # A keeper that is attached again repeats its unacknowledged ends.
        if name not in self._deferred:
            self._deferred[name] = None
            self._queue.put_nowait(_EndedAttempt(name, report))
            self._count()
        return AttemptReport(
            report.index,
            report.attempt,
            ReportedState.RUNNING if report.started_at_ms else ReportedState.ACCEPTED,
            started_at_ms=report.started_at_ms,
            steps=report.steps,
            life=report.life,
            version=report.version,
        )

    async def _report(self, ended: _EndedAttempt) -> None:
        job = ended.name.job
        reason = await self._deliver(ended)
        report = ended.report
        if reason is not None:
            self._warn("result not reported", job=job, task=report.index, reason=reason)
            report = report if report.reason else report.with_reason(f"its result was not reported: {reason}")
        self._deferred.pop(ended.name, None)
        self._record([JobReports(job, [report])])
        self._count()

    async def _deliver(self, ended: _EndedAttempt) -> str | None:
        """Post the result until it is accepted, refused or timed out; return why it was not accepted.

        The timeout counts only while a server is connected: an unreachable cluster loses no results.
        """
        loop = asyncio.get_running_loop()
        body: bytes | None = None
        backoff_seconds, failing_since = _BACKOFF_FIRST_SECONDS, None
        while (endpoint := self._endpoints.get(ended.name.job)) is not None:
            # Without a server no request is tried, and no timeout counts.
            if not self.connected.is_set():
                failing_since = None
                await self.connected.wait()
            if body is None:
                body = await asyncio.to_thread(self._body, ended)
            try:
                async with self._slots:
                    return await self._post(endpoint, ended.name, body)
            except _NotDelivered as error:
                failing_since = failing_since or loop.time()
                if loop.time() - failing_since >= self._timeout_seconds:
                    return str(error)
            await asyncio.sleep(backoff_seconds)
            backoff_seconds = min(backoff_seconds * 2, _BACKOFF_MAX_SECONDS)
        return "its job was forgotten"

    def _body(self, ended: _EndedAttempt) -> bytes:
        return result_file.encoded(result_file.result_body(self._directory, ended.name, ended.report))

    async def _post(self, endpoint: ResultEndpoint, name: AttemptName, body: bytes) -> str | None:
        """Post to each server in turn; None: accepted, else why it is refused. Raises _NotDelivered."""
        path = result_path(name.job, name.task, name.attempt)
        # Signed again for each try: the identity may have been renewed since.
        proof = sign_request(self._identity(), "POST", path, body)
        final, problems = None, []
        for url in endpoint.urls:
            try:
                status, detail = await _call(url, endpoint.ca, path, body, proof)
            except (OSError, TimeoutError, ValueError) as error:
                problems.append(f"{url}: {str(error) or 'no answer'}")
                continue
            if status in _ALREADY_REPORTED:
                return None
            if status == _CONFLICT:  # the attempt has a stored result already, or is no longer desired
                self._warn("result not accepted", job=name.job, task=name.task, reason=detail)
                return None
            problems.append(f"{url}: {status} {detail}")
            final = final or (detail if status in _FINAL else None)
        if final is not None:
            return final
        raise _NotDelivered("; ".join(problems)[:500])

    def _count(self) -> None:
        (self._idle.clear if self._deferred else self._idle.set)()


async def _call(url: str, ca: str, path: str, body: bytes, proof: str) -> tuple[int, str]:
    """POST the body; return the status and the `detail` of an error."""
    at = urlsplit(url)
    context = ssl.create_default_context(cadata=ca or None) if at.scheme == "https" else None
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {at.netloc}\r\nConnection: close\r\nAuthorization: {proof}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    answer = b""
    async with asyncio.timeout(_CALL_SECONDS):
        reader, writer = await asyncio.open_connection(at.hostname, at.port, ssl=context)
        try:
            writer.write(head.encode() + body)
            while len(answer) < _ANSWER_BYTES and (chunk := await reader.read(_ANSWER_BYTES)):
                answer += chunk
        finally:
            writer.close()
    return _read(answer)


def _read(answer: bytes) -> tuple[int, str]:
    head, _, content = answer.partition(b"\r\n\r\n")
    parts = head.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1."):
        raise ValueError("it does not answer in HTTP")
    try:
        problem = json.loads(content)
    except (ValueError, RecursionError):
        problem = None
    return int(parts[1]), str(problem.get("detail", "")) if isinstance(problem, dict) else ""
