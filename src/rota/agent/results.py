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

from rota.agent import summary
from rota.identity.node_identity import NodeIdentity
from rota.identity.signed_requests import authorization
from rota.model.ids import JobId
from rota.model.limits import RESULT_PATIENCE_MS
from rota.model.result import ReportDoor, result_path
from rota.model.sync import Claim, JobClaims, JobOrders, Said
from rota.runtimes.protocol import AttemptName

AT_ONCE = 8  # requests under way
_CALL_SECONDS = 15.0  # for one server to answer
_ANSWER_BYTES = 64 << 10
_FIRST_PAUSE_SECONDS = 0.2
_LAST_PAUSE_SECONDS = 5.0
_FINISH_SECONDS = 5.0  # for what is under way when the node leaves
_REPORTED = (Said.EXITED, Said.STOPPED, Said.TIMED_OUT)  # it has ended, and something can be told of it
_TAKEN = (200, 201)
_CONFLICT = 409
_FINAL = (400, 403, 413)  # asked again, the answer would be the same


class _Unheard(Exception):
    """No server has taken or refused the result."""


class _Ended(NamedTuple):
    name: AttemptName
    claim: Claim


class ResultReporter:
    """`note` is told of each end once its result was reported, or cannot be."""

    def __init__(
        self,
        directory: Path,
        identity: Callable[[], NodeIdentity],
        note: Callable[[list[JobClaims]], None],
        warn: Callable[..., None],
        patience_seconds: float = RESULT_PATIENCE_MS / 1000,
    ) -> None:
        self.connected = asyncio.Event()  # to a server that knows what runs here
        self._directory = directory
        self._identity = identity
        self._note = note
        self._warn = warn
        self._patience_seconds = patience_seconds
        self._doors: dict[JobId, ReportDoor] = {}
        self._held: dict[AttemptName, asyncio.Task[None] | None] = {}
        self._queue: asyncio.Queue[_Ended] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                ended = await self._queue.get()
                if ended.name in self._held:  # else its job was forgotten meanwhile
                    self._held[ended.name] = tasks.create_task(self._report(ended))

    async def finish(self) -> None:
        """Give what is under way a little time: the node leaves."""
        try:
            async with asyncio.timeout(_FINISH_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            self._warn("results are not reported: the node leaves", attempts=len(self._held))

    def attach(self, doors: Mapping[JobId, ReportDoor]) -> None:
        """Learn from the keeper where the results of what it has are reported."""
        self._doors |= doors

    def learn(self, orders: Iterable[JobOrders]) -> None:
        for one in orders:
            if one.work is not None and one.work.reports is not None and one.work.reports.by_agent:
                self._doors[one.job] = one.work.reports

    def forget(self, jobs: Iterable[JobId]) -> None:
        for job in jobs:
            self._doors.pop(job, None)
            for name in [name for name in self._held if name.job == job]:
                task = self._held.pop(name)
                if task is not None:
                    task.cancel()
        self._count()

    def hold(self, claims: list[JobClaims]) -> list[JobClaims]:
        """The claims to note now: an end whose result is not reported yet is told as running."""
        return [
            JobClaims(one.job, [self._hold(one.job, claim) for claim in one.claims])
            if one.job in self._doors
            else one
            for one in claims
        ]

    def _hold(self, job: JobId, claim: Claim) -> Claim:
        if claim.said not in _REPORTED:
            return claim
        name = AttemptName(job, claim.index, claim.attempt)
        if name not in self._held:
            self._held[name] = None
            self._queue.put_nowait(_Ended(name, claim))
            self._count()
        return Claim(
            claim.index,
            claim.attempt,
            Said.RUNNING if claim.started_at_ms else Said.ACCEPTED,
            started_at_ms=claim.started_at_ms,
            steps=claim.steps,
            life=claim.life,
            version=claim.version,
        )

    async def _report(self, ended: _Ended) -> None:
        job = ended.name.job
        reason = await self._deliver(ended)
        claim = ended.claim
        if reason is not None:
            self._warn("a result is not reported", job=job, task=claim.index, reason=reason)
            claim = claim if claim.reason else claim.because(f"its result was not reported: {reason}")
        self._held.pop(ended.name, None)
        self._note([JobClaims(job, [claim])])
        self._count()

    async def _deliver(self, ended: _Ended) -> str | None:
        """Why the result was not taken; None if it was. While no server is connected it waits."""
        loop = asyncio.get_running_loop()
        body: bytes | None = None
        pause, failing_since = _FIRST_PAUSE_SECONDS, None
        while (door := self._doors.get(ended.name.job)) is not None:
            if not self.connected.is_set():
                failing_since = None
                await self.connected.wait()
            if body is None:
                body = await asyncio.to_thread(self._body, ended)
            try:
                async with self._slots:
                    return await self._post(door, ended.name, body)
            except _Unheard as error:
                failing_since = failing_since or loop.time()
                if loop.time() - failing_since >= self._patience_seconds:
                    return str(error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)
        return "its job was forgotten"

    def _body(self, ended: _Ended) -> bytes:
        return summary.encoded(summary.of(self._directory, ended.name, ended.claim))

    async def _post(self, door: ReportDoor, name: AttemptName, body: bytes) -> str | None:
        """None if a server has taken it, else why it never will. Raises _Unheard."""
        path = result_path(name.job, name.task, name.attempt)
        proof = authorization(self._identity(), "POST", path, body)
        final, problems = None, []
        for url in door.urls:
            try:
                status, said = await _call(url, door.ca, path, body, proof)
            except (OSError, TimeoutError, ValueError) as error:
                problems.append(f"{url}: {str(error) or 'no answer'}")
                continue
            if status in _TAKEN:
                return None
            if status == _CONFLICT:  # a result of this attempt is stored already, or no longer wanted
                self._warn("a result is not taken", job=name.job, task=name.task, reason=said)
                return None
            problems.append(f"{url}: {status} {said}")
            final = final or (said if status in _FINAL else None)
        if final is not None:
            return final
        raise _Unheard("; ".join(problems)[:500])

    def _count(self) -> None:
        (self._idle.clear if self._held else self._idle.set)()


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
