"""What can go wrong: the asker's fault (Rejected), the world's (Unavailable), Rota's own (Broken)."""

from collections.abc import Mapping
from typing import Any

EXIT_CODES = {
    "bad_request": 2,
    "bad_field": 2,
    "too_large": 2,
    "not_found": 4,
    "unauthenticated": 5,
    "not_allowed": 5,
    "queue_full": 75,
    "rate_limited": 75,
    "unavailable": 75,
    "store_full": 75,
    "timed_out": 124,
}


class RotaError(Exception):
    """A refusal or a failure, with the code, field and hint that the command line shows."""

    def __init__(self, code: str, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.hint = hint

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.code, 1)


class Rejected(RotaError):
    """The request cannot be honoured as it is; asking again changes nothing."""


class NotFound(Rejected):
    """There is no such job, task or node."""


class NotAllowed(Rejected):
    """The token is missing, unknown, or does not permit this."""


class Conflict(Rejected):
    """The thing is in a state, or the name is one of several, that does not permit this."""


class Unavailable(RotaError):
    """The server cannot be reached or cannot answer now; asking again may help."""

    retry_after_seconds: float | None = None


class TimedOut(RotaError):
    """The time the caller was willing to wait is over; the job goes on."""


class Broken(RotaError):
    """The server failed, or its answer makes no sense."""


# The server asks for patience with these; 507 needs someone to make room and is not retried.
_PATIENCE = ("queue_full", "rate_limited", "unavailable")
_KINDS: Mapping[int, type[RotaError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict}


def from_problem(status: int, problem: Mapping[str, Any], retry_after: str | None) -> RotaError:
    """An `application/problem+json` answer -> the exception that says the same."""
    code = str(problem.get("code") or ("internal" if status >= 500 else "bad_request"))
    message = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    kind = _kind(status, code)
    error = kind(code, message, field=problem.get("field"), hint=problem.get("hint"))
    if isinstance(error, Unavailable):
        error.retry_after_seconds = _seconds(retry_after)
    return error


def _kind(status: int, code: str) -> type[RotaError]:
    if code in _PATIENCE or status in (429, 502, 503, 504):
        return Unavailable
    if status >= 500:
        return Broken
    return _KINDS.get(status, Rejected)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
