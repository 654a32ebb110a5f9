"""The tree of deliberate errors, told apart by whose fault they are.

RotaError
  Rejected          the user's: says what would be accepted
    BadField · NotFound · Conflict · QueueFull · NotAllowed
  Transient         the world's: pause and look again
    Unavailable (Outdated · Damaged) · StoreFull · Deposed
  Bug               ours: refuse the command or park the key, or read everything again
    IllegalTransition · NotQuiescent · WrongWriter
"""


class RotaError(Exception):
    """Anything Rota raises on purpose."""

    code = "internal"


class Rejected(RotaError):
    """The request cannot be honoured; `hint` says what would be."""

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
    """What was named does not exist."""

    code = "not_found"


class Conflict(Rejected):
    """It exists, and in a state that does not allow this."""

    code = "conflict"


class QueueFull(Rejected):
    """A bound of `limits` is reached; later it may be free again."""

    code = "queue_full"


class NotAllowed(Rejected):
    """Known caller, but not for this."""

    code = "not_allowed"


class Transient(RotaError):
    """Nobody's fault here: wait, look again."""

    code = "unavailable"


class Unavailable(Transient):
    """The store or a peer does not answer now."""


class Withheld(Unavailable):
    """A peer answers, and will never give what was asked for: it is not asked again."""


class StaleState(Unavailable):
    """What was decided on is no longer what is on disk: read again, decide anew."""


class Damaged(Unavailable):
    """What is on disk is not what was written; `hint` says what to do about it."""

    code = "store_damaged"

    def __init__(self, detail: str, *, hint: str | None = None) -> None:
        super().__init__(detail)
        self.hint = hint


class StoreFull(Transient):
    """The disk below the store is full."""

    code = "store_full"


class LostLeadership(Transient):
    """Somebody else leads with a higher epoch: this process may write nothing more."""


class Bug(RotaError):
    """A rule of our own was broken."""


class IllegalTransition(Bug):
    """A state table has no row for this state and event."""


class NotQuiescent(Bug):
    """Deciding did not come to rest within its bound."""


class WrongWriter(Bug):
    """A component wrote a record that is not its own."""


def flatten_group(error: BaseException) -> list[BaseException]:
    """The exceptions of a group, however deeply groups are nested; of any other exception itself alone."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for one in error.exceptions for leaf in flatten_group(one)]
