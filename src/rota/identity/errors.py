"""What can be wrong with what a caller sent, and with what lies on the disk."""


class Refused(ValueError):
    """The caller's: the message says what would be accepted."""


class JoinRefused(Refused):
    """A join token that does not open the door."""


class Taken(Refused):
    """What is to be made was made before, otherwise."""


class NameTaken(Taken):
    """Another token that is still valid has the name."""


class NoSuchToken(Refused):
    """The token that is to be replaced does not exist."""


class Unsafe(ValueError):
    """The operator's: a file that must not be trusted or used as it is; the message says how to mend it."""


class Rotating(Refused):
    """A rotation of the CA is under way already."""


class NotRotating(Refused):
    """No rotation of the CA is under way."""
