"""A call lasts no longer than the token that began it: one check for every request and stream. [I/O]

The HTTP door and the gRPC door run each call inside `while_token_valid`, so that a new route or method is covered
without any code of its own. A timer looks at the token every TOKEN_CHECK_SECONDS and cancels the call once
the token is revoked or has expired; the doors answer that like a request with such a token.

A timer leaves a gap: a stream of many commands could submit one between two looks. Commands of streams
therefore call `require_valid_token` when they are decided.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from rota.apiserver.access import Caller
from rota.apiserver.api import Unauthenticated, wall_ms
from rota.identity.errors import Unsafe
from rota.identity.vault import Vault
from rota.model.limits import TOKEN_CHECK_SECONDS


def require_valid_token(vault: Vault, caller: Caller) -> None:
    """Raises Unauthenticated if the caller's token was revoked or has expired since the call began."""
    if caller.token and not vault.is_valid(caller.token, wall_ms()):
        raise _token_expired()


@asynccontextmanager
async def while_token_valid(vault: Vault, caller: Caller | None) -> AsyncIterator[None]:
    """Cancel the body and raise Unauthenticated as soon as the caller's token is found to be invalid."""
    if caller is None or not caller.token:  # an open path, or a caller known by a signature of its own
        yield
        return
    loop, running = asyncio.get_running_loop(), asyncio.timeout(None)

    def check() -> bool:
        if _is_valid(vault, caller):
            return True
        running.reschedule(loop.time())
        return False

    try:
        async with running:
            with _run_periodically(check):
                yield
    except TimeoutError:
        if running.expired():
            raise _token_expired() from None
        raise


@contextmanager
def _run_periodically(check: Callable[[], bool]) -> Iterator[None]:
    """Call `look` every TOKEN_CHECK_SECONDS until it returns False or the body ends."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def again() -> None:
        nonlocal timer
        if check():
            timer = loop.call_later(TOKEN_CHECK_SECONDS, again)

    timer = loop.call_later(TOKEN_CHECK_SECONDS, again)
    try:
        yield
    finally:
        timer.cancel()


def _is_valid(vault: Vault, caller: Caller) -> bool:
    """False also where the vault cannot be read: then no new call would be let in either."""
    try:
        return vault.is_valid(caller.token, wall_ms())
    except (OSError, Unsafe):
        return False


def _token_expired() -> Unauthenticated:
    return Unauthenticated("this token is no longer valid")
