"""Authentication of callers, and the end of every call whose token becomes invalid. [I/O]

The HTTP and gRPC servers run each call inside `while_token_valid`, so that a new route or method is covered
without any code of its own. A timer checks the token every TOKEN_CHECK_SECONDS and cancels the call once the
token is revoked or has expired; the servers answer that like a request with such a token.

A timer leaves a gap: a stream of many commands could submit one between two checks. Commands of streams
therefore call `require_valid_token` when they are decided.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

from rota.apiserver.access import Caller
from rota.apiserver.api import wall_ms
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import IdentityRefused, Unsafe
from rota.identity.signed_requests import SCHEME, RequestSignature, verify_request
from rota.identity.task_tokens import TaskTokens
from rota.identity.tokens import API_PREFIX, Role
from rota.identity.vault import Vault
from rota.model.errors import Rejected
from rota.model.limits import TOKEN_CHECK_SECONDS


class Unauthenticated(Rejected):
    """The caller has no valid token, certificate or signature."""

    code = "unauthenticated"


def require_valid_token(vault: Vault, caller: Caller) -> None:
    """Raises Unauthenticated if the caller's token was revoked or has expired since the call started."""
    if caller.token and not vault.is_valid(caller.token, wall_ms()):
        raise _token_expired()


@asynccontextmanager
async def while_token_valid(vault: Vault, caller: Caller | None) -> AsyncIterator[None]:
    """Cancel the body and raise Unauthenticated as soon as the caller's token is found to be invalid."""
    if caller is None or not caller.token:  # a public path, or a caller with a signature or task token
        yield
        return
    loop, running = asyncio.get_running_loop(), asyncio.timeout(None)

    def check() -> bool:
        if _is_valid(vault, caller):
            return True
        # The timeout is the means of cancellation: it cancels the body, and only the
        # body, from a timer callback.
        running.reschedule(loop.time())  # expires immediately, which cancels the body
        return False

    try:
        async with running:
            with _run_periodically(check):
                yield
    except TimeoutError:
        # The body may raise a TimeoutError of its own, which is not about the token.
        if running.expired():
            raise _token_expired() from None
        raise


@contextmanager
def _run_periodically(check: Callable[[], bool]) -> Iterator[None]:
    """Call `check` every TOKEN_CHECK_SECONDS until it returns False or the body ends."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def run() -> None:
        nonlocal timer
        if check():
            timer = loop.call_later(TOKEN_CHECK_SECONDS, run)

    timer = loop.call_later(TOKEN_CHECK_SECONDS, run)
    try:
        yield
    finally:
        timer.cancel()


def _is_valid(vault: Vault, caller: Caller) -> bool:
    """Whether the token is valid; False also if the vault cannot be read, as for a new call."""
    try:
        return vault.is_valid(caller.token, wall_ms())
    except (OSError, Unsafe):
        return False


def _token_expired() -> Unauthenticated:
    return Unauthenticated("this token is no longer valid")


def authenticate_token(vault: Vault, authorization: str) -> Caller:
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated("this request needs a token", hint="send it as: authorization: Bearer TOKEN")
    token = vault.authenticate(secret.strip(), wall_ms()) if secret.startswith(API_PREFIX) else None
    if token is None:
        raise Unauthenticated("this token is unknown or no longer valid")
    return Caller(token.name, token.role, token.namespaces, token=token.id, owner=token.owned_by)


def authenticate_task(tokens: TaskTokens, authorization: str) -> Caller | None:
    """The task whose token this is; None if it is no task token of this cluster."""
    name = tokens.authenticate(authorization.partition(" ")[2].strip())
    if name is None:
        return None
    description = f"attempt {name.attempt} of task {name.task} of job {name.job}"
    return Caller(description, Role.VIEWER, (), name)


def verify_signed_request(
    authority: CertificateAuthority, authorization: str, method: str, path: str
) -> RequestSignature | None:
    """The node that signed the request, known here or not, and what it signed; None: it is not signed."""
    if authorization.partition(" ")[0].lower() != SCHEME:
        return None
    try:
        return verify_request(authorization, method, path, authority.bundle.roots_pem, datetime.now(UTC))
    except IdentityRefused as error:
        raise Unauthenticated(str(error)) from None
