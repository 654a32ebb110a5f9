"""What can be wrong with what a caller sent, and with what lies on the disk."""


class IdentityRefused(ValueError):
    """The caller's: the message says what would be accepted."""


class JoinRefused(IdentityRefused):
    """A join token that does not open the door."""


class AlreadyExists(IdentityRefused):
    """What is to be made was made before, otherwise."""


class NameTaken(AlreadyExists):
    """Another token that is still valid has the name."""


class NoSuchToken(IdentityRefused):
    """The token that is to be replaced does not exist."""


class Unsafe(ValueError):
    """The operator's: a file that must not be trusted or used as it is; the message says how to mend it."""


class Rotating(IdentityRefused):
    """A rotation of the CA is under way already."""


class NotRotating(IdentityRefused):
    """No rotation of the CA is under way."""
