"""A handle on one job: its status, tasks, output and results, and the actions on it."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from rota.client.conditions import wait_for
from rota.client.errors import NotFound
from rota.client.files import encode_files
from rota.client.outputs import get_outputs, list_outputs
from rota.client.results import Result
from rota.client.steps import find_step, output_of_step
from rota.client.streams import (
    LogCursor,
    LogPart,
    LogQuery,
    follow_entries,
    follow_job,
    follow_logs,
    read_logs,
)
from rota.client.transport import ApiRequest, Transport, matching, new_key, segment
from rota.client.views import Change, Chunk, JobStatus, Output, Task, Warned, Why, listed, read

PAGE_TASKS = 1000
# Pause after a scan for ended tasks, as a multiple of its duration: scans take at most a quarter of the time,
# however large the array is.
PAUSE_PER_SCAN = 3.0


class Job:
    """A handle on one job; `status` is its last known status."""

    status: JobStatus
    warnings: tuple[Warned, ...]

    def __init__(self, transport: Transport, status: JobStatus) -> None:
        self._transport = transport
        self._path = f"/v1/jobs/{segment(status.id)}"
        self.status = status
        self.warnings = status.warnings  # only the answer to a submit has warnings

    @property
    def id(self) -> str:
        return self.status.id

    @property
    def state(self) -> str:
        return self.status.state

    @property
    def exit_code(self) -> int | None:
        return self.status.exit_code

    def __repr__(self) -> str:
        return f"Job({self.id!r}, {self.status.name!r}, {self.state!r})"

    def refresh(self) -> JobStatus:
        """Fetch and return the current status."""
        self.status = read(JobStatus, self._transport.call(ApiRequest("GET", self._path)))
        return self.status

    def wait(self, timeout_seconds: float | None = None) -> JobStatus:
        """Wait until the job has ended; raises TimedOut after `timeout_seconds`."""
        for _ in self.follow(timeout_seconds):
            pass
        return self.status

    def wait_for(self, condition: str, timeout_seconds: float | None = None) -> bool:
        """Wait until the job reaches a state or has an event of a kind; False if it no longer can."""
        results = wait_for(self._transport, [self.id], condition, timeout_seconds)
        self.refresh()
        return results[self.id]

    def follow(self, timeout_seconds: float | None = None) -> Iterator[JobStatus]:
        """The status now and after each change; the last one is final."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for status in follow_job(self._transport, self.id, deadline):
            self.status = status
            yield status

    def tasks(
        self, state: str | None = None, after: int | None = None, node: str | None = None
    ) -> Iterator[Task]:
        """The tasks by index: all, or those in a state or on a node."""
        while True:
            query = {"state": state, "node": node, "after": after, "limit": PAGE_TASKS}
            page = self._transport.call(ApiRequest("GET", f"{self._path}/tasks", query))
            for item in listed(page, "tasks"):
                yield read(Task, item)
            after = page.get("next")
            if after is None:
                return

    def task(self, index: int) -> Task:
        """One task with all its attempts."""
        return read(Task, self._transport.call(ApiRequest("GET", f"{self._path}/tasks/{index}")))

    def attempts(self, index: int = 0) -> list[Task]:
        """The known attempts of a task, oldest first."""
        answer = self._transport.call(ApiRequest("GET", f"{self._path}/tasks/{index}/attempts"))
        return [read(Task, item) for item in listed(answer, "attempts")]

    def attempt(self, number: int, index: int = 0) -> Task:
        """One attempt of a task."""
        path = f"{self._path}/tasks/{index}/attempts/{number}"
        return read(Task, self._transport.call(ApiRequest("GET", path)))

    def result(self, number: int, index: int = 0) -> Result:
        """The result that one attempt of a task reported."""
        path = f"{self._path}/tasks/{index}/attempts/{number}/result"
        return read(Result, self._transport.call(ApiRequest("GET", path)))

    def report(
        self,
        number: int,
        index: int = 0,
        *,
        results: Mapping[str, Any] | None = None,
        failure: str | None = None,
    ) -> Result:
        """Report the result of an attempt with that attempt's token; inside a task use `rota.report()`."""
        path = f"{self._path}/tasks/{index}/attempts/{number}/result"
        body = {"results": dict(results or {}), "failure": failure}
        return read(Result, self._transport.call(ApiRequest("POST", path, body=body)))

    def watch_tasks(
        self, since: str | None = None, state: str | None = None, node: str | None = None
    ) -> Iterator[Change[Task]]:
        """Changes of the tasks of this job, from `since` or from now on, without end."""
        query = {"state": state, "node": node}
        return follow_entries(self._transport, f"{self._path}/tasks", Task, since, query)

    def as_completed(self, timeout_seconds: float | None = None) -> Iterator[Task]:
        """Each task once, soon after it has ended."""
        seen: set[int] = set()
        pause_seconds = 0.0
        for status in self.follow(timeout_seconds):
            # Counts in the status tell that something ended without a scan; the scan finds out which tasks.
            newly_ended = status.tasks_ended - len(seen)
            if newly_ended > 0 or status.is_final:
                time.sleep(0.0 if status.is_final else pause_seconds)
                started = time.monotonic()
                yield from self._newly_ended(seen, None if status.is_final else newly_ended)
                pause_seconds = PAUSE_PER_SCAN * (time.monotonic() - started)

    def logs(
        self,
        index: int | None = None,
        stream: str | None = None,
        attempt: int | None = None,
        step: str | None = None,
        **part: Unpack[LogPart],
    ) -> str:
        """The output so far as text, of the newest attempt or of `attempt`; `step` selects one step."""
        if step is not None:
            chunks = self.step_logs(step, index or 0, stream, attempt)
        else:
            query = LogQuery(self.id, index, attempt, stream, **part)
            chunks = read_logs(self._transport, query, LogCursor())
        return b"".join(chunk.data for chunk in chunks).decode("utf-8", "replace")

    def step_logs(
        self, step: str, index: int = 0, stream: str | None = None, attempt: int | None = None
    ) -> Iterator[Chunk]:
        """The output so far of one step, given by name or number."""
        task = self.task(index)
        chosen = [past for past in task.attempts if past.attempt == attempt] if attempt else [task]
        steps = chosen[0].steps if chosen else ()
        query = LogQuery(self.id, index, attempt or task.attempt, stream)
        return output_of_step(read_logs(self._transport, query, LogCursor()), steps, find_step(steps, step))

    def follow_logs(self, index: int | None = None, stream: str | None = None) -> Iterator[Chunk]:
        """The output as it is written, until the task, or every task, has ended."""
        return follow_logs(self._transport, LogQuery(self.id, index, None, stream), LogCursor())

    def outputs(self, *paths: str, index: int = 0) -> list[Output]:
        """The files in ROTA_OUTPUT_DIR on the node where a task ran."""
        return list_outputs(self._transport, self.id, index, paths)

    def get(self, *paths: str, index: int = 0, into: str | Path = ".") -> list[Path]:
        """Download output files, all or those given by path, directory or pattern; returns local paths."""
        return list(get_outputs(self._transport, self.id, index, paths, Path(into)))

    def why(self) -> Why:
        """Why the job is waiting, and what would let it start."""
        return read(Why, self._transport.call(ApiRequest("GET", f"{self._path}/why")))

    def cancel(self, reason: str | None = None, *, indices: Sequence[int] = ()) -> JobStatus:
        """Request that the job, or some of its tasks, be cancelled; `wait` returns when it has ended."""
        return self._act("cancel", {"reason": reason, **_chosen(indices)})

    def kill(self, signal: str | int | None = None, *, indices: Sequence[int] = ()) -> JobStatus:
        """Cancel without grace period; with `signal` only send that signal to the running tasks."""
        options = {} if signal is None else {"signal": str(signal), "key": os.urandom(8).hex()}
        return self._act("kill", {**options, **_chosen(indices)})

    def pause(self, *, stop: bool = False) -> JobStatus:
        """Start no more tasks; with `stop` running tasks are stopped, and restarted after `resume`."""
        return self._act("pause", {"stop": stop})

    def resume(self) -> JobStatus:
        """Resume a paused job."""
        return self._act("resume", {})

    def restart(self, *indices: int) -> JobStatus:
        """Stop these tasks, or all running ones, and start them again; uses up no retry."""
        return self._act("restart", {"indices": list(indices) or None})

    def move(self, *indices: int, to: str | None = None) -> JobStatus:
        """Stop these tasks, or all that are on a node, and start them on node `to`, or on any other node.

        Uses up no retry. Raises Conflict, with the reasons, if they do not fit there now.
        """
        return self._act("move", {"indices": list(indices) or None, "to": to})

    def update(
        self,
        changes: Mapping[str, Any],
        *,
        if_version: int | None = None,
        replace: bool = False,
        max_parallel: int | None = None,
    ) -> JobStatus:
        """Change fields of the spec; None resets a field, and a table needs only the entries that change.

        With `replace` running tasks are replaced by the new version, `max_parallel` at a time. A service
        replaces the next task only when the new one is healthy, and rolls back if one fails.
        """
        query = {"replace": "true", "max_parallel": max_parallel} if replace else {}
        body = dict(changes)
        if isinstance(body.get("files"), Mapping):
            body["files"] = encode_files(body["files"])
        request = ApiRequest("PATCH", self._path, query, body=body, headers=_at(if_version))
        self.status = read(JobStatus, self._transport.call(request))
        return self.status

    def rerun(self, *, failed: bool = False, key: str | None = None) -> "Job":
        """Submit an ended job again as a new one; with `failed` only the tasks that did not succeed."""
        headers = {"Idempotency-Key": key or new_key()}
        request = ApiRequest("POST", f"{self._path}/rerun", body={"failed": failed}, headers=headers)
        return Job(self._transport, read(JobStatus, self._transport.call(request)))

    def resolve(self, word: str, *indices: int) -> JobStatus:
        """Decide on lost tasks that wait for their recovery controller: again, fail, cancel or lost."""
        return self._act("resolve", {"word": word, "indices": list(indices) or None})

    def rollback(self) -> JobStatus:
        """Roll a service back to the version before its last update."""
        return self._act("rollback", {})

    def release(self, *indices: int) -> JobStatus:
        """Release these tasks, or all held ones, from quarantine: they may start again."""
        return self._act("release", {"indices": list(indices) or None})

    def delete(self, *, if_version: int | None = None) -> None:
        """Delete an ended job."""
        self._transport.call(ApiRequest("DELETE", self._path, headers=_at(if_version)))

    def _act(self, verb: str, body: Mapping[str, Any]) -> JobStatus:
        # If the answer is lost, the retry of the transport must not act a second time.
        key = {"Idempotency-Key": new_key()}
        request = ApiRequest("POST", f"{self._path}/{verb}", body=body, headers=key)
        self.status = read(JobStatus, self._transport.call(request))
        return self.status

    def _newly_ended(self, seen: set[int], expected: int | None) -> Iterator[Task]:
        lowest = 0
        # All tasks below were returned before: scans of a large array start at the first that was not.
        while lowest in seen:
            lowest += 1
        found = 0
        for task in self.tasks(after=lowest - 1 if lowest else None):
            if task.is_final and task.index not in seen:
                seen.add(task.index)
                found += 1
                yield task
            if found == expected:
                return


def find(transport: Transport, ref: str) -> Job:
    """A job by id, name, or `last`."""
    if not ref:
        raise NotFound("not_found", "an empty text names no job")
    return Job(transport, read(JobStatus, transport.call(ApiRequest("GET", f"/v1/jobs/{segment(ref)}"))))


def _at(version: int | None) -> dict[str, str]:
    return matching(None if version is None else f'"{version}"')


def _chosen(indices: Sequence[int]) -> dict[str, list[int]]:
    return {"indices": list(indices)} if indices else {}
