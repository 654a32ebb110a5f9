"""A job to an outside controller until it has ended: stages, events of its tasks, output. [I/O]"""

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
    """Of which tasks; and by index and stream the last attempt that was heard: of earlier ones nothing."""

    logs: LogSelection
    last_attempts: Mapping[tuple[int, str], int]


@dataclass(slots=True)
class JobPush:
    """Of one job to one caller. Whoever stops listening goes on by what he has heard."""

    api: Api
    job: JobId
    write: Write
    output: OutputSelection | None = None  # none: no output
    cursor: EventCursor | None = None  # none: what happens to its tasks is not told
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """The final stage is the last word."""
        async with asyncio.TaskGroup() as tasks:
            copying = None
            if self.output is not None:
                copying = tasks.create_task(self.api.logs.copy_chunks(self.output.logs, self._write_output))
            last = await self._push_stages()
            if copying is not None:
                await copying
            if last is None:
                raise NotFound(f"job {self.job} was deleted")
            await self._write(self._stage(last, final=True))

    async def _push_stages(self) -> jobs.Json | None:
        """All but the final one, which is returned; None: the job is gone."""
        told: jobs.Json | None = None
        with self.api.event_hub.follow_job(self.job) as news:
            while True:
                line = await self.api.engine.read(self._read_job)
                await self._push_events()
                if line is None or JobState(line["state"]) in jobs.ENDS:
                    return line
                if line != told:
                    await self._write(self._stage(line, final=False))
                    told = line
                await news.wait()

    def _read_job(self, mirror: Mirror) -> jobs.Json | None:
        entry = mirror.jobs.get(self.job)
        return None if entry is None else jobs.job_line(entry)

    async def _push_events(self) -> None:
        """What was committed before the job was looked at is told before its stage is."""
        while self.cursor is not None and (page := await self.api.event_hub.page_after(self.cursor)):
            for at, wall_ms, event in page:
                if event.job == self.job and event.kind.startswith(PUSHED_EVENTS):
                    told = event_to_wire(str(at), wall_ms, event)
                    await self._write(pb.Stage(job=self.job, task=told))
            self.cursor = page[-1].at

    def _stage(self, line: jobs.Json, *, final: bool) -> pb.Stage:
        return stage_to_wire(line, final=final, sequence=str(self.cursor or ""))

    async def _write_output(self, chunk: StreamChunk) -> None:
        if self.output is not None and chunk.attempt >= self.output.last_attempts.get(
            (chunk.index, chunk.stream), 0
        ):
            await self._write(output_to_wire(self.job, chunk))

    async def _write(self, stage: pb.Stage) -> None:
        async with self._writing:
            await self.write(stage)
