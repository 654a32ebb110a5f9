"""Errors by fault: of the caller (Rejected), of the environment (Unavailable), of Rota (Broken)."""

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
    """The request is refused; a retry changes nothing."""


class NotFound(Rejected):
    """There is no such job, task or node."""


class NotAllowed(Rejected):
    """The token is missing, unknown, or does not permit this."""


class Conflict(Rejected):
    """The current state does not permit this, or a name is ambiguous."""


class Unavailable(RotaError):
    """No server can be reached or can answer now; a retry may help."""

    retry_after_seconds: float | None = None


class TimedOut(RotaError):
    """The timeout of the caller is over; the job keeps running."""


class Broken(RotaError):
    """The server failed, or sent an invalid answer."""


# Codes that are retried. 507 (store_full) is not: an operator has to free disk space first.
_RETRIED = ("queue_full", "rate_limited", "unavailable")
_KINDS: Mapping[int, type[RotaError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict}


def from_problem(status: int, problem: Mapping[str, Any], retry_after: str | None) -> RotaError:
    """The exception for an `application/problem+json` answer."""
    code = str(problem.get("code") or ("internal" if status >= 500 else "bad_request"))
    message = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    kind = _kind(status, code)
    error = kind(code, message, field=problem.get("field"), hint=problem.get("hint"))
    if isinstance(error, Unavailable):
        error.retry_after_seconds = _seconds(retry_after)
    return error


def _kind(status: int, code: str) -> type[RotaError]:
    if code in _RETRIED or status in (429, 502, 503, 504):
        return Unavailable
    if status >= 500:
        return Broken
    return _KINDS.get(status, Rejected)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
