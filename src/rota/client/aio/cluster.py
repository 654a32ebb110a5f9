"""`rota.client.cluster` for asyncio, under the same names. Made by `make client`, not by hand."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self, Unpack

from rota.client.aio.access import AsyncAccess
from rota.client.aio.clusters import AsyncClusters
from rota.client.aio.crons import AsyncCrons
from rota.client.aio.job import AsyncJob
from rota.client.aio.nodes import AsyncNodes
from rota.client.aio.server_admin import AsyncUpkeep
from rota.client.aio.threads import apart, each
from rota.client.cluster import Cluster
from rota.client.spec_fields import SpecFields
from rota.client.views import Change, Event, JobStatus, Outlook


class AsyncCluster(AsyncNodes, AsyncAccess, AsyncUpkeep):
    """Talks to the server that leads; calls are repeated for `timeout_seconds` while none does."""

    _sync: Cluster

    def __init__(self, sync: Cluster) -> None:
        self._sync = sync
        self.crons = AsyncCrons(sync.crons)
        self.clusters = AsyncClusters(sync.clusters)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections; `with` does so at the end."""
        await apart(self._sync.close)

    async def submit(self, *command: str, key: str | None = None, **spec: Unpack[SpecFields]) -> "AsyncJob":
        """Submit a job; the same `key` and spec give the same job, however often it is sent."""
        return AsyncJob(await apart(lambda: self._sync.submit(*command, key=key, **spec)))

    async def run(self, *command: str, key: str | None = None, **spec: Unpack[SpecFields]) -> "AsyncJob":
        """Submit a job and wait until it has ended: `submit` and `wait` in one request."""
        return AsyncJob(await apart(lambda: self._sync.run(*command, key=key, **spec)))

    async def submit_spec(self, spec: Mapping[str, Any], key: str | None = None) -> "AsyncJob":
        """Submit a job from a whole spec, as a job file holds it."""
        return AsyncJob(await apart(lambda: self._sync.submit_spec(spec, key)))

    def follow_spec(self, spec: Mapping[str, Any], key: str | None = None) -> AsyncIterator[JobStatus]:
        """The job as it was submitted, then each change of it; the last one is final."""
        return each(lambda: self._sync.follow_spec(spec, key))

    async def plan(self, *command: str, **spec: Unpack[SpecFields]) -> Outlook:
        """What would become of a job if it were submitted now; nothing is submitted."""
        return await apart(lambda: self._sync.plan(*command, **spec))

    async def plan_spec(
        self,
        spec: Mapping[str, Any],
        add_nodes: Sequence[Mapping[str, Any]] = (),
        without: Sequence[str] = (),
        *,
        scale: bool = False,
    ) -> Outlook:
        """The same from a whole spec, on a cluster thought of with some nodes more, or without some;
        with `scale` also which one would grow for it by itself."""
        return await apart(lambda: self._sync.plan_spec(spec, add_nodes, without, scale=scale))

    async def job(self, ref: str) -> "AsyncJob":
        """A job by id, name, or `last`."""
        return AsyncJob(await apart(lambda: self._sync.job(ref)))

    def jobs(
        self, limit: int | None = None, fields: str | None = None, **query: str | list[str] | None
    ) -> AsyncIterator[JobStatus]:
        """Jobs, newest first; `state`, `kind`, `name`, `namespace`, `user`, `cluster` and `label` choose."""
        return each(lambda: self._sync.jobs(limit, fields, **query))

    def job_pages(
        self, limit: int | None = None, fields: str | None = None, **query: str | list[str] | None
    ) -> AsyncIterator[list[JobStatus]]:
        """The same as `jobs`, as many at a time as one answer of the server holds."""
        return each(lambda: self._sync.job_pages(limit, fields, **query))

    def watch_jobs(
        self, since: str | None = None, **query: str | list[str] | None
    ) -> AsyncIterator[Change[JobStatus]]:
        """Jobs as they change, from `since` or from now on, for ever; chosen as by `jobs`."""
        return each(lambda: self._sync.watch_jobs(since, **query))

    async def moment(self) -> str:
        """A sequence number for `since`: list what there is after asking for it, then watch from it."""
        return await apart(self._sync.moment)

    async def events(self, limit: int | None = None, **query: str | None) -> list[Event]:
        """Past events; `since`, `job`, `node`, `cluster` and `kind` choose among them."""
        return await apart(lambda: self._sync.events(limit, **query))

    def watch(self, since: str | None = None, **query: str | None) -> AsyncIterator[Event]:
        """Events as they happen, from `since` or from now on."""
        return each(lambda: self._sync.watch(since, **query))
