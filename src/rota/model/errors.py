"""The tree of deliberate errors, by whose fault they are.

RotaError
  Rejected          the user's: says what would be accepted
    BadField · NotFound · Conflict · QueueFull · NotAllowed
  Transient         the environment's: back off and try again
    Unavailable (Withheld · StaleState · Damaged) · StoreFull · LostLeadership
  Bug               ours: refuse the command, park the key, or read everything again
    IllegalTransition · NotQuiescent · WrongWriter
"""


class RotaError(Exception):
    """Base of all errors that Rota raises on purpose."""

    code = "internal"


class Rejected(RotaError):
    """The request is refused; `hint` says what would be accepted."""

    code = "bad_request"

    def __init__(self, detail: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.hint = hint


class BadField(Rejected):
    """One named field of the request is not acceptable."""

    code = "bad_field"

    def __init__(self, field: str, problem: str, hint: str | None = None) -> None:
        super().__init__(f"{field}: {problem}", field=field, hint=hint)


class NotFound(Rejected):
    """The object that the request names does not exist."""

    code = "not_found"


class Conflict(Rejected):
    """The object is in a state that does not allow the request."""

    code = "conflict"


class QueueFull(Rejected):
    """A bound of `limits` is reached; the request may succeed later."""

    code = "queue_full"


class NotAllowed(Rejected):
    """The caller is known, and not authorized for the request."""

    code = "not_allowed"


class Transient(RotaError):
    """A failure of the environment: the same request may succeed later."""

    code = "unavailable"


class Unavailable(Transient):
    """The store or a peer does not answer."""


class Withheld(Unavailable):
    """A peer answered that it will never provide what was requested: there is no retry."""


class StaleState(Unavailable):
    """A batch was decided on a state that is no longer the stored one: reload and decide again."""


class Damaged(Unavailable):
    """Stored data is not what was written; `hint` says what to do about it."""

    code = "store_damaged"

    def __init__(self, detail: str, *, hint: str | None = None) -> None:
        super().__init__(detail)
        self.hint = hint


class StoreFull(Transient):
    """The disk below the store is full."""

    code = "store_full"


class LostLeadership(Transient):
    """Another server leads with a higher epoch: this process must not write any more."""


class Bug(RotaError):
    """A fault of Rota's own code."""


class IllegalTransition(Bug):
    """A state table has no row for this state and event."""


class NotQuiescent(Bug):
    """A key was decided repeatedly without reaching quiescence."""


class WrongWriter(Bug):
    """A component wrote a record that is not its own."""


def flatten_group(error: BaseException) -> list[BaseException]:
    """The exceptions of a group and of groups nested in it; another exception as a list of one."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for nested in error.exceptions for leaf in flatten_group(nested)]
