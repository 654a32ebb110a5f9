"""A job as it changes, until it has ended. [I/O]"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from rota.apiserver import show
from rota.apiserver.answers import KEEP_ALIVE, Run, Write, server_sent
from rota.apiserver.api import Api
from rota.engine.mirror import Mirror
from rota.model.ids import JobId
from rota.model.lifecycle import JobState


def telling(api: Api, job: JobId, told: show.Json | None = None) -> Run:
    """Each change as a server-sent event; the last one is the end of the stream."""

    async def run(write: Write) -> bytes:
        async with aclosing(follow(api, job, told)) as lines:
            async for line in lines:
                said = KEEP_ALIVE if line is None else server_sent("status", line)
                if line is not None and _is_last(line):
                    return said
                await write(said)
        return b""

    return run


async def follow(
    api: Api, job: JobId, told: show.Json | None = None
) -> AsyncGenerator[show.Json | None, None]:
    """The job without its spec, at once unless `told`, and after each change; None is a mere sign of life."""

    def look(mirror: Mirror) -> show.Json | None:
        entry = mirror.jobs.get(job)
        return None if entry is None else show.job_line(entry)

    with api.changes.following(job) as news:
        while (line := await api.engine.read(look)) is not None:
            if line != told:
                yield line
                told = line
            if _is_last(line):
                return
            while not await news.wait():
                yield None


def _is_last(line: show.Json) -> bool:
    return JobState(line["state"]) in show.ENDS
