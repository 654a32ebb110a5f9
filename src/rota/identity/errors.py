"""Errors in what a caller has sent, and in files on disk."""


class IdentityRefused(ValueError):
    """The caller's fault; the message says what would be accepted."""


class JoinRefused(IdentityRefused):
    """A join token that is unknown, used, revoked or expired, or may not be used from this address."""


class AlreadyExists(IdentityRefused):
    """A token of this key was made before, with other properties."""


class NameTaken(AlreadyExists):
    """Another valid token has this name."""


class NoSuchToken(IdentityRefused):
    """The token to be replaced does not exist."""


class Unsafe(ValueError):
    """The operator's fault: a file that must not be used as it is; the message says how to repair it."""


class Rotating(IdentityRefused):
    """A rotation of the CA is already in progress."""


class NotRotating(IdentityRefused):
    """No rotation of the CA is in progress."""
