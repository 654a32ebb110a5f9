"""`rota.client.job` for asyncio, under the same names. Made by `make client`, not by hand."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from rota.client.aio.threads import apart, each
from rota.client.job import Job
from rota.client.results import Result
from rota.client.streams import LogPart
from rota.client.views import Change, Chunk, JobStatus, Output, Task, Warned, Why


class AsyncJob:
    """A handle on one job; `status` is what the server last said of it."""

    _sync: Job

    def __init__(self, sync: Job) -> None:
        self._sync = sync

    @property
    def status(self) -> JobStatus:
        return self._sync.status

    @property
    def warnings(self) -> tuple[Warned, ...]:
        return self._sync.warnings

    @property
    def id(self) -> str:
        return self._sync.id

    @property
    def state(self) -> str:
        return self._sync.state

    @property
    def exit_code(self) -> int | None:
        return self._sync.exit_code

    def __repr__(self) -> str:
        return f"Async{self._sync!r}"

    async def refresh(self) -> JobStatus:
        """Ask how the job stands now."""
        return await apart(self._sync.refresh)

    async def wait(self, timeout_seconds: float | None = None) -> JobStatus:
        """Wait until the job has ended; TimedOut when it has not in time."""
        return await apart(lambda: self._sync.wait(timeout_seconds))

    async def wait_for(self, condition: str, timeout_seconds: float | None = None) -> bool:
        """Wait until it is in this state, or has been hit by this kind of event; False: it no longer can."""
        return await apart(lambda: self._sync.wait_for(condition, timeout_seconds))

    def follow(self, timeout_seconds: float | None = None) -> AsyncIterator[JobStatus]:
        """Each change of the job as it happens; the last one is final."""
        return each(lambda: self._sync.follow(timeout_seconds))

    def tasks(
        self, state: str | None = None, after: int | None = None, node: str | None = None
    ) -> AsyncIterator[Task]:
        """The tasks in the order of their index, all or those in a state or on a node."""
        return each(lambda: self._sync.tasks(state, after, node))

    async def task(self, index: int) -> Task:
        """One task with all its attempts."""
        return await apart(lambda: self._sync.task(index))

    async def attempts(self, index: int = 0) -> list[Task]:
        """All attempts of a task that are known, the oldest first."""
        return await apart(lambda: self._sync.attempts(index))

    async def attempt(self, number: int, index: int = 0) -> Task:
        """One attempt of a task."""
        return await apart(lambda: self._sync.attempt(number, index))

    async def result(self, number: int, index: int = 0) -> Result:
        """What one attempt of a task said came of its work."""
        return await apart(lambda: self._sync.result(number, index))

    async def report(
        self,
        number: int,
        index: int = 0,
        *,
        results: Mapping[str, Any] | None = None,
        failure: str | None = None,
    ) -> Result:
        """Say it, with that attempt's own token; from within a task `rota.report()` does."""
        return await apart(lambda: self._sync.report(number, index, results=results, failure=failure))

    def watch_tasks(
        self, since: str | None = None, state: str | None = None, node: str | None = None
    ) -> AsyncIterator[Change[Task]]:
        """Its tasks as they change, from `since` or from now on, for ever."""
        return each(lambda: self._sync.watch_tasks(since, state, node))

    def as_completed(self, timeout_seconds: float | None = None) -> AsyncIterator[Task]:
        """Each task once, soon after it ended."""
        return each(lambda: self._sync.as_completed(timeout_seconds))

    async def logs(
        self,
        index: int | None = None,
        stream: str | None = None,
        attempt: int | None = None,
        step: str | None = None,
        **part: Unpack[LogPart],
    ) -> str:
        """The output there is now, as text: of the newest attempt unless one is given; of all its steps."""
        return await apart(lambda: self._sync.logs(index, stream, attempt, step, **part))

    def step_logs(
        self, step: str, index: int = 0, stream: str | None = None, attempt: int | None = None
    ) -> AsyncIterator[Chunk]:
        """What one step, by name or number, has written so far."""
        return each(lambda: self._sync.step_logs(step, index, stream, attempt))

    def follow_logs(self, index: int | None = None, stream: str | None = None) -> AsyncIterator[Chunk]:
        """The output as it comes, until the task, or all tasks, have ended."""
        return each(lambda: self._sync.follow_logs(index, stream))

    async def outputs(self, *paths: str, index: int = 0) -> list[Output]:
        """The files in ROTA_OUTPUT_DIR on the node where this task ran."""
        return await apart(lambda: self._sync.outputs(*paths, index=index))

    async def get(self, *paths: str, index: int = 0, into: str | Path = ".") -> list[Path]:
        """Fetch outputs, all or those named by path, directory or pattern; where they are now."""
        return await apart(lambda: self._sync.get(*paths, index=index, into=into))

    async def why(self) -> Why:
        """Why the job waits, and what would start it."""
        return await apart(self._sync.why)

    async def cancel(self, reason: str | None = None, *, indices: Sequence[int] = ()) -> JobStatus:
        """Ask for the job, or some of its tasks, to end; `wait` tells when it has."""
        return await apart(lambda: self._sync.cancel(reason, indices=indices))

    async def kill(self, signal: str | int | None = None, *, indices: Sequence[int] = ()) -> JobStatus:
        """Cancel without grace; with a signal: what runs gets that, and nothing else changes."""
        return await apart(lambda: self._sync.kill(signal, indices=indices))

    async def pause(self, *, stop: bool = False) -> JobStatus:
        """Let nothing new of it start; with `stop` what runs is stopped, and tried again after `resume`."""
        return await apart(lambda: self._sync.pause(stop=stop))

    async def resume(self) -> JobStatus:
        """Let it go on after a pause."""
        return await apart(self._sync.resume)

    async def restart(self, *indices: int) -> JobStatus:
        """Stop these tasks, or all that run, and try them again; no retry is spent."""
        return await apart(lambda: self._sync.restart(*indices))

    async def move(self, *indices: int, to: str | None = None) -> JobStatus:
        """Stop these tasks, or all on a node, and start them on node `to`, or on any but their own.

        No retry is spent. Conflict when there is no room for them there now, with the reasons.
        """
        return await apart(lambda: self._sync.move(*indices, to=to))

    async def update(
        self,
        changes: Mapping[str, Any],
        *,
        if_version: int | None = None,
        replace: bool = False,
        max_parallel: int | None = None,
    ) -> JobStatus:
        """Change fields of its spec, as `submit` takes them; null is the default, of tables entries suffice.

        With `replace` what runs an older version makes way, `max_parallel` at a time; of a service the next
        only when the former is well, and all goes back to the version before when one fails.
        """
        return await apart(
            lambda: self._sync.update(
                changes, if_version=if_version, replace=replace, max_parallel=max_parallel
            )
        )

    async def rerun(self, *, failed: bool = False, key: str | None = None) -> "AsyncJob":
        """Run an ended job once more, as a new one; `failed`: only its tasks that have not succeeded."""
        return AsyncJob(await apart(lambda: self._sync.rerun(failed=failed, key=key)))

    async def resolve(self, word: str, *indices: int) -> JobStatus:
        """Say what becomes of these tasks, or of all that wait for their controller's word."""
        return await apart(lambda: self._sync.resolve(word, *indices))

    async def rollback(self) -> JobStatus:
        """Let a service go back to the version before its last update."""
        return await apart(self._sync.rollback)

    async def release(self, *indices: int) -> JobStatus:
        """Let these tasks, or all that are held as suspect, be started again."""
        return await apart(lambda: self._sync.release(*indices))

    async def delete(self, *, if_version: int | None = None) -> None:
        """Forget an ended job."""
        await apart(lambda: self._sync.delete(if_version=if_version))
