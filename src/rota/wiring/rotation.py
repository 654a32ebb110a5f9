"""A rotation of the CA while this server leads: what changes at once, and the end of the overlap. [I/O]"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import structlog

from rota.apiserver.ca_dependents import CaDependents
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import NotRotating, Unsafe
from rota.model.errors import LostLeadership, Unavailable

log = structlog.get_logger("rota.server")

_LOOK_SECONDS = 10.0  # at the wall clock: a machine may have slept


async def keep_rotation(
    authority: CertificateAuthority,
    follow: Callable[[], Awaitable[None]],
    dependents: Callable[[], CaDependents],
    changed: Callable[[], Awaitable[None]],
) -> None:
    """Call `changed` after each change of what is trusted; finish a rotation when its overlap is over.

    `follow` looks what servers share: a change whose answer was lost is known here from then on.

    Nodes that are connected and have not renewed are not dropped by a clock: the overlap lasts for them until
    an operator has looked.
    """
    news = asyncio.Event()
    loop = asyncio.get_running_loop()
    is_held_back = False
    with authority.listening(lambda: loop.call_soon_threadsafe(news.set)):
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await news.wait()
            await _follow(follow)
            if news.is_set():
                news.clear()
                await changed()
            overlap, now = authority.overlap, datetime.now(UTC)
            if overlap is None or now < overlap.end:
                is_held_back = False
                continue
            if holding := dependents().blocking:
                if not is_held_back:
                    log.warning("the rotation of the CA is not finished", holding=", ".join(holding[:10]))
                is_held_back = True
                continue
            await _finish(authority, now)


async def _follow(follow: Callable[[], Awaitable[None]]) -> None:
    try:
        await follow()
    except Unavailable:
        pass  # etcd is asked again at the next look
    except (OSError, Unsafe) as error:
        log.warning("the CA that servers share is not followed", reason=str(error))


async def _finish(authority: CertificateAuthority, now: datetime) -> None:
    try:
        await asyncio.to_thread(authority.finish, now)
    except NotRotating:  # an operator was faster
        return
    except (Unavailable, LostLeadership, Unsafe, OSError) as error:  # TimeoutError is one of the last
        log.warning("the rotation of the CA is not finished", reason=str(error))
        return
    log.info("the rotation of the CA is finished", ca=authority.fingerprint)
