"""`rota.connect_async()`."""

from rota.client.aio.cluster import AsyncCluster
from rota.client.cluster import connect


def connect_async(
    addr: str | None = None, *, token: str | None = None, context: str | None = None, ca: str | None = None
) -> AsyncCluster:
    """Like `connect`, for use with `async with`."""
    return AsyncCluster(connect(addr, token=token, context=context, ca=ca))
