"""A promise that does not hold."""


class Broken(Exception):
    """Which promise, and of what."""
