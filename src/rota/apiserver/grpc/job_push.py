"""JobPush: stages, task events and output of a job, sent to a controller until the job ends. [I/O]"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rota.apiserver.api import Api
from rota.apiserver.streams.chunks import StreamChunk
from rota.apiserver.streams.event_cursor import EventCursor
from rota.apiserver.streams.log_selection import LogSelection
from rota.apiserver.views import jobs
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.lifecycle import JobState
from rota.wire.controller import event_to_wire, output_to_wire, stage_to_wire
from rota.wire.generated import controller_pb2 as pb

Write = Callable[[pb.Stage], Awaitable[None]]
PUSHED_EVENTS = ("task.", "placement.")  # kinds of events that are about tasks of a job


class OutputSelection(NamedTuple):
    """The output to send; and by index and stream the last attempt that the caller has: none before it."""

    logs: LogSelection
    last_attempts: Mapping[tuple[int, str], int]


@dataclass(slots=True)
class JobPush:
    """Sends one job to one caller. A caller that was disconnected resumes by `cursor` and `output`."""

    api: Api
    job: JobId
    write: Write
    output: OutputSelection | None = None  # None: no output is sent
    cursor: EventCursor | None = None  # None: no events of tasks are sent
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Send until the job has ended. The final stage is sent last, after all output."""
        async with asyncio.TaskGroup() as tasks:
            copying = None
            if self.output is not None:
                copying = tasks.create_task(self.api.logs.copy_chunks(self.output.logs, self._write_output))
            last = await self._push_stages()
            # Ordering: all output precedes the final stage, after which a caller closes the stream.
            if copying is not None:
                await copying
            if last is None:
                raise NotFound(f"job {self.job} was deleted")
            await self._write(self._stage(last, final=True))

    async def _push_stages(self) -> jobs.Json | None:
        """Send all stages but the final one, which is returned; None: the job was deleted."""
        sent: jobs.Json | None = None
        # Followed before the first read: a change between read and wait sets the signal.
        with self.api.event_hub.follow_job(self.job) as changes:
            while True:
                # The job before its events: an event committed between the two reads is
                # sent early rather than late.
                line = await self.api.engine.read(self._read_job)
                await self._push_events()
                if line is None or JobState(line["state"]) in jobs.ENDS:
                    return line
                if line != sent:
                    await self._write(self._stage(line, final=False))
                    sent = line
                await changes.wait()

    def _read_job(self, mirror: Mirror) -> jobs.Json | None:
        entry = mirror.jobs.get(self.job)
        return None if entry is None else jobs.job_line(entry)

    async def _push_events(self) -> None:
        """Send new events. Called after the job is read: events that led to a stage precede it."""
        while self.cursor is not None and (page := await self.api.event_hub.page_after(self.cursor)):
            for at, wall_ms, event in page:
                if event.job == self.job and event.kind.startswith(PUSHED_EVENTS):
                    message = event_to_wire(str(at), wall_ms, event)
                    await self._write(pb.Stage(job=self.job, task=message))
            self.cursor = page[-1].at

    def _stage(self, line: jobs.Json, *, final: bool) -> pb.Stage:
        return stage_to_wire(line, final=final, sequence=str(self.cursor or ""))

    async def _write_output(self, chunk: StreamChunk) -> None:
        if self.output is not None and chunk.attempt >= self.output.last_attempts.get(
            (chunk.index, chunk.stream), 0
        ):
            await self._write(output_to_wire(self.job, chunk))

    async def _write(self, stage: pb.Stage) -> None:
        # Stages and output are written by two tasks, and gRPC allows one write at a time.
        async with self._writing:
            await self.write(stage)
