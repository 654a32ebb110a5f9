"""The error that reports a violated invariant."""


class InvariantBroken(BaseException):
    """An invariant does not hold; its text names the invariant and the object.

    It is a BaseException on purpose: the product contains every Exception of a reconciler or a callback, and
    this one has to pass through that containment.
    """
