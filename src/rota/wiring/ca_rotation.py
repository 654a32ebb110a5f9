"""The CA rotation while this server leads: follows changes of trust, and ends the overlap. [I/O]"""

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

_POLL_SECONDS = 10.0  # of the wall clock, which a timer would miss while the machine sleeps


async def keep_rotation(
    authority: CertificateAuthority,
    follow: Callable[[], Awaitable[None]],
    dependents: Callable[[], CaDependents],
    changed: Callable[[], Awaitable[None]],
) -> None:
    """Call `changed` after each change of the trusted CAs; finish a rotation when its overlap is over.

    `follow` reads the CA that servers share: a change whose answer was lost becomes known that way.

    Connected nodes that have not renewed are never dropped by a timer: for them the overlap is extended until
    an operator finishes the rotation.
    """
    trust_changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    is_held_back = False
    # The authority calls from its own threads: an asyncio.Event may only be set from the loop.
    with authority.listening(lambda: loop.call_soon_threadsafe(trust_changed.set)):
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await trust_changed.wait()
            await _follow(follow)
            if trust_changed.is_set():
                # Cleared before `changed` runs: a change during it sets the event again and is not lost.
                trust_changed.clear()
                await changed()
            overlap, now = authority.overlap, datetime.now(UTC)
            if overlap is None or now < overlap.end:
                is_held_back = False
                continue
            if blocking := dependents().blocking:
                if not is_held_back:
                    log.warning("CA rotation not finished", blocking=", ".join(blocking[:10]))
                is_held_back = True
                continue
            await _finish(authority, now)


async def _follow(follow: Callable[[], Awaitable[None]]) -> None:
    try:
        await follow()
    except Unavailable:
        pass  # etcd is asked again at the next poll
    except (OSError, Unsafe) as error:
        log.warning("shared CA not followed", reason=str(error))


async def _finish(authority: CertificateAuthority, now: datetime) -> None:
    try:
        await asyncio.to_thread(authority.finish, now)
    # Race: an operator was faster, which is no error.
    except NotRotating:
        return
    except (Unavailable, LostLeadership, Unsafe, OSError) as error:  # TimeoutError is one of the last
        log.warning("CA rotation not finished", reason=str(error))
        return
    log.info("CA rotation finished", ca=authority.fingerprint)
