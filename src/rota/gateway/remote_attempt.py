"""One attempt on a worker: started, asked after until it is done, stopped when that is wished. [I/O]"""

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
_ERRORS_MAX = 3  # in a row: so often a worker says it cannot tell before its job counts as lost
_CANNOT_RUN = 126  # as shells say it
_FAILED = 1  # a worker tells that a job failed, not by which code

Say = Callable[[Name, AttemptReport], None]


class RemoteAttempt:
    def __init__(self, name: Name, work: TaskTemplate | None, worker: Worker, say: Say) -> None:
        self.name = name
        self.handle = ""  # what the worker calls it
        self.is_over = False
        self._work = work
        self._worker = worker
        self._send_report = say
        self._started = asyncio.Event()  # or it will never begin
        self._stop_requested = asyncio.Event()  # that it ends
        self._ending = ReportedState.STOPPED
        self._started_ms = 0
        self._errors = 0

    def resume(self, handle: str, started_ms: int) -> "RemoteAttempt":
        """It runs already: another life of ours has started it."""
        self.handle, self._started_ms = handle, started_ms
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
                self._started.set()
        clock = asyncio.get_running_loop()
        late_at = None if self._limit_seconds is None else clock.time() + self._limit_seconds
        pause, asked = _POLL_FIRST_SECONDS, False
        while not self.is_over:
            asked = await self._wait(pause, asked=asked)
            pause = min(pause * 1.5, _POLL_MAX_SECONDS)
            if late_at is not None and clock.time() >= late_at and not self._stop_requested.is_set():
                self._ending = ReportedState.TIMED_OUT
                self._stop_requested.set()
            if self._stop_requested.is_set() and not asked:
                asked = await self._ask_to_stop()
            await self._poll()

    async def _wait(self, seconds: float, *, asked: bool) -> bool:
        """Cut short by the first wish that it ends."""
        if asked:
            await asyncio.sleep(seconds)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop_requested.wait()
        return asked

    @property
    def _limit_seconds(self) -> float | None:
        limit_ms = None if self._work is None else self._work.timeout_ms
        if limit_ms is None:
            return None
        ran_ms = (
            time.time_ns() // 1_000_000 - self._started_ms
        )  # of a life before this one nobody knows better
        return max(0, limit_ms - max(0, ran_ms)) / 1000

    async def _start(self) -> bool:
        assert self._work is not None
        reason = why_unsupported(self._work)
        if reason is not None:
            self._report(ReportedState.REFUSED, reason=reason)
            return False
        self._report(ReportedState.ACCEPTED)
        try:
            self.handle = await self._worker.start(*worker_command(self._work))
        except WorkerUnreachable as error:
            self._report(ReportedState.REFUSED, reason=f"the worker cannot be reached: {error}")
            return False
        except WorkerRefused as error:
            self._report(ReportedState.EXITED, _CANNOT_RUN, f"the worker did not start it: {error}")
            return False
        self._started_ms = time.time_ns() // 1_000_000
        self._report(ReportedState.RUNNING)
        return True

    async def _ask_to_stop(self) -> bool:
        """Whether it was; else it is asked again."""
        try:
            await self._worker.stop(self.handle)
        except WorkerRefused:
            return True  # it may have ended: that is seen when we look
        except WorkerUnreachable:
            return False
        return True

    async def _poll(self) -> None:
        try:
            answer = await self._worker.query(self.handle)
        except WorkerUnreachable:
            return  # whether it is gone is for others to say, by its silence
        except WorkerRefused as error:
            self._errors += 1
            if self._stop_requested.is_set():
                self._report(self._ending)
            elif self._errors >= _ERRORS_MAX:
                self._report(ReportedState.LOST, reason=f"the worker knows nothing of it: {error}")
            return
        self._errors = 0
        if answer.done:
            self._end(answer)

    def _end(self, answer: WorkerReply) -> None:
        said = self._ending if self._stop_requested.is_set() else ReportedState.EXITED
        if answer.error:
            self._report(said, _FAILED, answer.text[:1000] or "the worker says that it failed")
        else:
            self._report(said, 0)

    def _report(self, said: ReportedState, exit_code: int = -1, reason: str | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        ended = said >= ReportedState.EXITED
        self.is_over = ended
        ran_us = max(0, now_ms - self._started_ms) * 1000 if ended and self._started_ms else 0
        claim = AttemptReport(
            self.name[1],
            self.name[2],
            said,
            exit_code,
            started_at_ms=self._started_ms,
            ended_at_ms=now_ms if ended else 0,
            ran_us=ran_us,
            reason=reason,
            version=self._work.version if self._work is not None else 0,
            handle=self.handle,
        )
        self._send_report(self.name, claim)
