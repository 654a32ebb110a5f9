"""Tokens of tasks: made by the node from a key for that job and node only, verified without a record."""

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

TASK_PREFIX = "task_"
_TOKEN = re.compile(
    r"task_([0-9A-Za-z_-]{1,64})\.(\d{1,10})\.(\d{1,10})\.([0-9A-Za-z_-]{1,64})\.([0-9a-f]{64})"
)


class TaskName(NamedTuple):
    """One attempt of a task, and the node that it runs on."""

    job: str
    task: int  # index
    attempt: int
    node: str


class TaskTokens:
    """Derives the keys of task tokens, and verifies the tokens."""

    def __init__(self, secrets: Callable[[], Sequence[bytes]]) -> None:
        """`secrets` is called each time: keys are derived from the first one, and accepted from all."""
        self._secrets = secrets

    def key_for(self, job: str, node: str) -> str:
        """The key that a node gets with a job, to make tokens for its own attempts of that job only."""
        return _key(self._secrets()[0], job, node)

    def authenticate(self, token: str) -> TaskName | None:
        """The attempt that a token was made for; None if it is not valid."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        job, index, attempt, node, given = match.groups()
        name = f"{job}.{index}.{attempt}".encode()
        keys = (_key(secret, job, node) for secret in self._secrets())
        valid = (hmac.new(key.encode(), name, hashlib.sha256).hexdigest() for key in keys)
        if not any(hmac.compare_digest(expected, given) for expected in valid):
            return None
        return TaskName(job, int(index), int(attempt), node)


def _key(secret: bytes, job: str, node: str) -> str:
    return hmac.new(secret, f"{job}/{node}".encode(), hashlib.sha256).hexdigest()
