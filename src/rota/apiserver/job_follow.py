"""A job as it changes, until it has ended. [I/O]"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from rota.apiserver.api import Api
from rota.apiserver.responses import KEEP_ALIVE, StreamBody, Write, sse_event
from rota.apiserver.views import jobs
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId
from rota.model.lifecycle import JobState


def job_event_stream(api: Api, job: JobId, last_sent: jobs.Json | None = None) -> StreamBody:
    """Each change as a server-sent event; the last one is the end of the stream."""

    async def run(write: Write) -> bytes:
        async with aclosing(follow_job(api, job, last_sent)) as lines:
            async for line in lines:
                said = KEEP_ALIVE if line is None else sse_event("status", line)
                if line is not None and _has_ended(line):
                    return said
                await write(said)
        return b""

    return run


async def follow_job(
    api: Api, job: JobId, last_sent: jobs.Json | None = None
) -> AsyncGenerator[jobs.Json | None, None]:
    """The job without its spec, at once unless `told`, and after each change; None is a mere sign of life."""

    def read(mirror: Mirror) -> jobs.Json | None:
        entry = mirror.jobs.get(job)
        return None if entry is None else jobs.job_line(entry)

    with api.event_hub.follow_job(job) as news:
        while (line := await api.engine.read(read)) is not None:
            if line != last_sent:
                yield line
                last_sent = line
            if _has_ended(line):
                return
            while not await news.wait():
                yield None


def _has_ended(line: jobs.Json) -> bool:
    return JobState(line["state"]) in jobs.ENDS
