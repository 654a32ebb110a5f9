"""`rota.client.server_admin` for asyncio, under the same names. Made by `make client`, not by hand."""

from typing import Any, BinaryIO

from rota.client.aio.threads import apart
from rota.client.server_admin import Upkeep
from rota.client.server_views import Accepted, Server


class AsyncUpkeep:
    _sync: Upkeep

    async def server(self) -> Server:
        """Who leads, since when, and how its store answers."""
        return await apart(self._sync.server)

    async def is_alive(self) -> bool:
        """Whether a server answers at all; asked once."""
        return await apart(self._sync.is_alive)

    async def is_ready(self) -> bool:
        """Whether one leads and its store works; asked once."""
        return await apart(self._sync.is_ready)

    async def metrics(self) -> str:
        """Its figures, as Prometheus reads them."""
        return await apart(self._sync.metrics)

    async def openapi(self) -> dict[str, Any]:
        """All that can be asked of this server, as an OpenAPI document."""
        return await apart(self._sync.openapi)

    async def back_up(self, into: BinaryIO) -> None:
        """Write a backup of all the server keeps, as of one moment; `rota store check` says if it is good."""
        await apart(lambda: self._sync.back_up(into))

    async def accept_nodes(self) -> Accepted:
        """Say that no other server leads the nodes that are refused here: they may follow this one."""
        return await apart(self._sync.accept_nodes)
