"""A promise that does not hold."""


class InvariantBroken(BaseException):
    """Which promise, and of what.

    It is no Exception: the product contains those, whatever they are, and this one must pass through it.
    """
