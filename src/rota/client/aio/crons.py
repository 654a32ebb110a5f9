"""`rota.client.crons` for asyncio, under the same names. Made by `make client`, not by hand."""

from collections.abc import Mapping
from typing import Any

from rota.client.aio.job import AsyncJob
from rota.client.aio.threads import apart
from rota.client.crons import Crons
from rota.client.server_views import Cron


class AsyncCrons:
    """Each has a name in its namespace."""

    _sync: Crons

    def __init__(self, sync: Crons) -> None:
        self._sync = sync

    async def list(self, namespace: str | None = None) -> list[Cron]:
        """By name, of one namespace or of all, without their runs."""
        return await apart(lambda: self._sync.list(namespace))

    async def get(self, name: str, namespace: str | None = None) -> Cron:
        """With its runs, the newest first."""
        return await apart(lambda: self._sync.get(name, namespace))

    async def create(self, name: str, schedule: str, job: Mapping[str, Any], **rules: Any) -> Cron:
        """`job` as a job file holds it; rules are `zone`, `overlap`, `missed`, `history`, `namespace`."""
        return await apart(lambda: self._sync.create(name, schedule, job, **rules))

    async def replace(
        self, name: str, schedule: str, job: Mapping[str, Any], *, if_etag: str | None = None, **rules: Any
    ) -> Cron:
        """The whole of it; its runs stay."""
        return await apart(lambda: self._sync.replace(name, schedule, job, if_etag=if_etag, **rules))

    async def pause(self, name: str, namespace: str | None = None) -> Cron:
        """No more runs are planned."""
        return await apart(lambda: self._sync.pause(name, namespace))

    async def resume(self, name: str, namespace: str | None = None) -> Cron:
        """What was planned during the pause is not made up for."""
        return await apart(lambda: self._sync.resume(name, namespace))

    async def run(self, name: str, namespace: str | None = None, *, key: str | None = None) -> "AsyncJob":
        """Now, besides its schedule; the same `key` gives the same job."""
        return AsyncJob(await apart(lambda: self._sync.run(name, namespace, key=key)))

    async def delete(self, name: str, namespace: str | None = None, *, if_etag: str | None = None) -> None:
        """Its jobs stay, and go on."""
        await apart(lambda: self._sync.delete(name, namespace, if_etag=if_etag))
