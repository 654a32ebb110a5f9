"""RemoteAttempt: one attempt on a worker: started, polled until it has ended, stopped on request. [I/O]

A start is called once and waited for without a limit: a start that is given up here might still run there.
The id that the worker answers is reported with RUNNING, and so stored: after a restart of the server the
attempt is polled by it again.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from rota.gateway.attempts import Name
from rota.gateway.job_translation import why_unsupported, worker_command
from rota.gateway.worker import Worker, WorkerRefused, WorkerReply, WorkerUnreachable
from rota.model.messages import AttemptReport, ReportedState, TaskTemplate

_POLL_FIRST_SECONDS = 0.05
_POLL_MAX_SECONDS = 1.0
_ERRORS_MAX = 3  # polls in a row that a worker refuses, before the job counts as lost
_CANNOT_RUN = 126  # as shells use it
_FAILED = 1  # the contract has no exit code, only that a job failed

Report = Callable[[Name, AttemptReport], None]


class RemoteAttempt:
    """One attempt on a worker, from its start to the report of its end."""

    def __init__(self, name: Name, template: TaskTemplate | None, worker: Worker, report: Report) -> None:
        self.name = name
        self.handle = ""  # the worker's id of it
        self.has_ended = False
        self._template = template
        self._worker = worker
        self._send_report = report
        self._started = asyncio.Event()  # also set if it will never start
        self._stop_requested = asyncio.Event()
        self._ending = ReportedState.STOPPED
        self._started_ms = 0
        self._errors = 0

    def resume(self, handle: str, started_ms: int) -> "RemoteAttempt":
        """Continue with an attempt that was started before this process."""
        self.handle, self._started_ms = handle, started_ms
        # Set before the report: readers of its log may ask for it as soon as it is known to run.
        self._started.set()
        self._report(ReportedState.RUNNING)
        return self

    def stop(self) -> None:
        self._stop_requested.set()

    async def handle_once_started(self) -> str:
        await self._started.wait()
        return self.handle

    async def run(self) -> None:
        if not self.handle:
            try:
                if not await self._start():
                    return
            finally:
                # Also if it failed: readers of its log wait for this.
                self._started.set()
        clock = asyncio.get_running_loop()
        timeout_at = None if self._limit_seconds is None else clock.time() + self._limit_seconds
        interval, stop_sent = _POLL_FIRST_SECONDS, False
        while not self.has_ended:
            await self._wait(interval, stop_sent=stop_sent)
            interval = min(interval * 1.5, _POLL_MAX_SECONDS)
            # Not if a stop was requested: the reason of the end is decided by whichever came first.
            if timeout_at is not None and clock.time() >= timeout_at and not self._stop_requested.is_set():
                self._ending = ReportedState.TIMED_OUT
                self._stop_requested.set()
            if self._stop_requested.is_set() and not stop_sent:
                # Only if it was delivered: an unreachable worker is sent the stop again with the next poll.
                stop_sent = await self._send_stop()
            await self._poll()

    async def _wait(self, seconds: float, *, stop_sent: bool) -> None:
        """Wait for the next poll; a request to stop ends the wait, unless it was sent to the worker."""
        if stop_sent:
            await asyncio.sleep(seconds)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop_requested.wait()

    @property
    def _limit_seconds(self) -> float | None:
        limit_ms = None if self._template is None else self._template.timeout_ms
        if limit_ms is None:
            return None
        # By the wall clock: the attempt may have been started by a process before this one.
        ran_ms = time.time_ns() // 1_000_000 - self._started_ms
        return max(0, limit_ms - max(0, ran_ms)) / 1000

    async def _start(self) -> bool:
        assert self._template is not None
        reason = why_unsupported(self._template)
        if reason is not None:
            self._report(ReportedState.REFUSED, reason=reason)
            return False
        self._report(ReportedState.ACCEPTED)
        # Crash point: until RUNNING with the worker's id is stored, a restarted server cannot poll the job.
        try:
            self.handle = await self._worker.start(*worker_command(self._template))
        except WorkerUnreachable as error:
            self._report(ReportedState.REFUSED, reason=f"the worker cannot be reached: {error}")
            return False
        except WorkerRefused as error:
            self._report(ReportedState.EXITED, _CANNOT_RUN, f"the worker did not start it: {error}")
            return False
        self._started_ms = time.time_ns() // 1_000_000
        self._report(ReportedState.RUNNING)
        return True

    async def _send_stop(self) -> bool:
        """Send the stop to the worker; False if it has to be sent again."""
        try:
            await self._worker.stop(self.handle)
        except WorkerRefused:
            return True  # the job may have ended: the next poll tells
        except WorkerUnreachable:
            return False
        return True

    async def _poll(self) -> None:
        try:
            reply = await self._worker.query(self.handle)
        except WorkerUnreachable:
            return  # no heartbeats are sent either: the watcher declares the node lost in time
        except WorkerRefused as error:
            self._errors += 1
            # After a stop was requested this is its end: the worker does not know the job any more.
            if self._stop_requested.is_set():
                self._report(self._ending)
            elif self._errors >= _ERRORS_MAX:
                self._report(ReportedState.LOST, reason=f"the worker does not know it: {error}")
            return
        self._errors = 0
        if reply.done:
            self._report_end(reply)

    def _report_end(self, reply: WorkerReply) -> None:
        state = self._ending if self._stop_requested.is_set() else ReportedState.EXITED
        if reply.error:
            self._report(state, _FAILED, reply.text[:1000] or "the worker reports that it failed")
        else:
            self._report(state, 0)

    def _report(self, state: ReportedState, exit_code: int = -1, reason: str | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        ended = state >= ReportedState.EXITED
        self.has_ended = ended
        ran_us = max(0, now_ms - self._started_ms) * 1000 if ended and self._started_ms else 0
        report = AttemptReport(
            self.name[1],
            self.name[2],
            state,
            exit_code,
            started_at_ms=self._started_ms,
            ended_at_ms=now_ms if ended else 0,
            ran_us=ran_us,
            reason=reason,
            version=self._template.version if self._template is not None else 0,
            handle=self.handle,
        )
        self._send_report(self.name, report)
