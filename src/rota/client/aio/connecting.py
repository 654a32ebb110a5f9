"""Arguments, environment and files -> a cluster to talk to from asyncio."""

from rota.client.aio.cluster import AsyncCluster
from rota.client.cluster import connect


def connect_async(
    addr: str | None = None, *, token: str | None = None, context: str | None = None, ca: str | None = None
) -> AsyncCluster:
    """As `connect`, for `async with`."""
    return AsyncCluster(connect(addr, token=token, context=context, ca=ca))
