"""`rota.client.clusters` for asyncio, under the same names. Made by `make client`, not by hand."""

from typing import Any

from rota.client.aio.threads import apart
from rota.client.clusters import Clusters, ClusterStatus


class AsyncClusters:
    """Each has a name."""

    _sync: Clusters

    def __init__(self, sync: Clusters) -> None:
        self._sync = sync

    async def list(self, **query: str | int | None) -> list[ClusterStatus]:
        """All, or a page by `limit` and `after`."""
        return await apart(lambda: self._sync.list(**query))

    async def get(self, name: str) -> ClusterStatus:
        """How one stands."""
        return await apart(lambda: self._sync.get(name))

    async def create(self, name: str, **said: Any) -> ClusterStatus:
        """`type`, `region`, `labels`, `provider`, `settings`, `capacity`, and its size as in change()."""
        return await apart(lambda: self._sync.create(name, **said))

    async def change(self, name: str, *, if_etag: str | None = None, **said: Any) -> ClusterStatus:
        """`min_nodes`, `max_nodes`, `nodes` (a number or "auto"), `idle`, `join`, `pause`, `drain`, how many
        clusters there may be of it: `min_clusters`, `max_clusters`, `wait`; and `fail_after` (a duration or
        "never") of one whose nodes join by hand."""
        return await apart(lambda: self._sync.change(name, if_etag=if_etag, **said))

    async def delete(self, name: str, *, if_etag: str | None = None) -> None:
        """Drain it, and forget it when nothing is left of it."""
        await apart(lambda: self._sync.delete(name, if_etag=if_etag))
