"""A job as it changes, until it has ended. [I/O]"""

from collections.abc import AsyncGenerator

from rota.apiserver import show
from rota.apiserver.api import Api
from rota.engine.mirror import Mirror
from rota.model.ids import JobId
from rota.model.lifecycle import JobState


async def follow(api: Api, job: JobId) -> AsyncGenerator[show.Json | None, None]:
    """The job without its spec, at once and after each change; None is a mere sign of life."""

    def look(mirror: Mirror) -> show.Json | None:
        entry = mirror.jobs.get(job)
        return None if entry is None else show.job_line(entry)

    told: show.Json | None = None
    with api.changes.following(job) as news:
        while (line := await api.engine.read(look)) is not None:
            if line != told:
                yield line
                told = line
            if JobState(line["state"]) in show.ENDS:
                return
            while not await news.wait():
                yield None
