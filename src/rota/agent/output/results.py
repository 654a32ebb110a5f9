"""Results that the agent reports for tasks of jobs with `results = "agent"`. [I/O]

An attempt that has ended stays `running` to the control plane until its result was taken by the REST call: a
result first posted after the end would be refused, and a failure in it could not count. The keeper keeps the
end until the control plane has stored it, so an agent that is restarted in between finds it again and posts
the same body; the control plane takes the first, and answers the same again with success.
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

PARALLEL_REPORTS = 8  # requests under way
_CALL_SECONDS = 15.0  # for one server to answer
_ANSWER_BYTES = 64 << 10
_BACKOFF_FIRST_SECONDS = 0.2
_BACKOFF_MAX_SECONDS = 5.0
_FINISH_SECONDS = 5.0  # for what is under way when the node leaves
_REPORTED = (
    ReportedState.EXITED,
    ReportedState.STOPPED,
    ReportedState.TIMED_OUT,
)  # it has ended, and something can be told of it
_ALREADY_REPORTED = (200, 201)
_CONFLICT = 409
_FINAL = (400, 403, 413)  # asked again, the answer would be the same


class _NotDelivered(Exception):
    """No server has taken or refused the result."""


class _EndedAttempt(NamedTuple):
    name: AttemptName
    claim: AttemptReport


class ResultReporter:
    """`note` is told of each end once its result was reported, or cannot be."""

    def __init__(
        self,
        directory: Path,
        identity: Callable[[], NodeIdentity],
        note: Callable[[list[JobReports]], None],
        warn: Callable[..., None],
        patience_seconds: float = RESULT_PATIENCE_MS / 1000,
    ) -> None:
        self.connected = asyncio.Event()  # to a server that knows what runs here
        self._directory = directory
        self._identity = identity
        self._record = note
        self._warn = warn
        self._timeout_seconds = patience_seconds
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
                if ended.name in self._deferred:  # else its job was forgotten meanwhile
                    self._deferred[ended.name] = tasks.create_task(self._report(ended))

    async def finish(self) -> None:
        """Give what is under way a little time: the node leaves."""
        try:
            async with asyncio.timeout(_FINISH_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            self._warn("results are not reported: the node leaves", attempts=len(self._deferred))

    def attach(self, doors: Mapping[JobId, ResultEndpoint]) -> None:
        """Learn from the keeper where the results of what it has are reported."""
        self._endpoints |= doors

    def remember_endpoints(self, orders: Iterable[JobOrders]) -> None:
        for one in orders:
            if one.work is not None and one.work.reports is not None and one.work.reports.by_agent:
                self._endpoints[one.job] = one.work.reports

    def forget(self, jobs: Iterable[JobId]) -> None:
        for job in jobs:
            self._endpoints.pop(job, None)
            for name in [name for name in self._deferred if name.job == job]:
                task = self._deferred.pop(name)
                if task is not None:
                    task.cancel()
        self._count()

    def defer_ends(self, claims: list[JobReports]) -> list[JobReports]:
        """The claims to note now: an end whose result is not reported yet is told as running."""
        return [
            JobReports(one.job, [self._defer_end(one.job, claim) for claim in one.reports])
            if one.job in self._endpoints
            else one
            for one in claims
        ]

    def _defer_end(self, job: JobId, claim: AttemptReport) -> AttemptReport:
        if claim.said not in _REPORTED:
            return claim
        name = AttemptName(job, claim.index, claim.attempt)
        if name not in self._deferred:
            self._deferred[name] = None
            self._queue.put_nowait(_EndedAttempt(name, claim))
            self._count()
        return AttemptReport(
            claim.index,
            claim.attempt,
            ReportedState.RUNNING if claim.started_at_ms else ReportedState.ACCEPTED,
            started_at_ms=claim.started_at_ms,
            steps=claim.steps,
            life=claim.life,
            version=claim.version,
        )

    async def _report(self, ended: _EndedAttempt) -> None:
        job = ended.name.job
        reason = await self._deliver(ended)
        claim = ended.claim
        if reason is not None:
            self._warn("a result is not reported", job=job, task=claim.index, reason=reason)
            claim = claim if claim.reason else claim.with_reason(f"its result was not reported: {reason}")
        self._deferred.pop(ended.name, None)
        self._record([JobReports(job, [claim])])
        self._count()

    async def _deliver(self, ended: _EndedAttempt) -> str | None:
        """Why the result was not taken; None if it was. While no server is connected it waits."""
        loop = asyncio.get_running_loop()
        body: bytes | None = None
        pause, failing_since = _BACKOFF_FIRST_SECONDS, None
        while (door := self._endpoints.get(ended.name.job)) is not None:
            if not self.connected.is_set():
                failing_since = None
                await self.connected.wait()
            if body is None:
                body = await asyncio.to_thread(self._body, ended)
            try:
                async with self._slots:
                    return await self._post(door, ended.name, body)
            except _NotDelivered as error:
                failing_since = failing_since or loop.time()
                if loop.time() - failing_since >= self._timeout_seconds:
                    return str(error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _BACKOFF_MAX_SECONDS)
        return "its job was forgotten"

    def _body(self, ended: _EndedAttempt) -> bytes:
        return result_file.encoded(result_file.result_body(self._directory, ended.name, ended.claim))

    async def _post(self, door: ResultEndpoint, name: AttemptName, body: bytes) -> str | None:
        """None if a server has taken it, else why it never will. Raises _Unheard."""
        path = result_path(name.job, name.task, name.attempt)
        proof = sign_request(self._identity(), "POST", path, body)
        final, problems = None, []
        for url in door.urls:
            try:
                status, said = await _call(url, door.ca, path, body, proof)
            except (OSError, TimeoutError, ValueError) as error:
                problems.append(f"{url}: {str(error) or 'no answer'}")
                continue
            if status in _ALREADY_REPORTED:
                return None
            if status == _CONFLICT:  # a result of this attempt is stored already, or no longer wanted
                self._warn("a result is not taken", job=name.job, task=name.task, reason=said)
                return None
            problems.append(f"{url}: {status} {said}")
            final = final or (said if status in _FINAL else None)
        if final is not None:
            return final
        raise _NotDelivered("; ".join(problems)[:500])

    def _count(self) -> None:
        (self._idle.clear if self._deferred else self._idle.set)()


async def _call(url: str, ca: str, path: str, body: bytes, proof: str) -> tuple[int, str]:
    """The status of the answer and, of an error, what it says."""
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
            while len(answer) < _ANSWER_BYTES and (piece := await reader.read(_ANSWER_BYTES)):
                answer += piece
        finally:
            writer.close()
    return _read(answer)


def _read(answer: bytes) -> tuple[int, str]:
    head, _, content = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise ValueError("it does not answer in HTTP")
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        said = None
    return int(words[1]), str(said.get("detail", "")) if isinstance(said, dict) else ""
