"""A task's own token: made by its node from a key for that job and node alone, checked without a record."""

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
    """One attempt of a task, on the node that may speak for it."""

    job: str
    task: int  # its index
    attempt: int
    node: str


class TaskTokens:
    def __init__(self, secrets: Callable[[], Sequence[bytes]]) -> None:
        """`secrets` are asked for each time: keys are made by the first one, and accepted by all."""
        self._secrets = secrets

    def key_for(self, job: str, node: str) -> str:
        """Given to a node with a job: by it tokens are made for its own attempts of that, and no others."""
        return _key(self._secrets()[0], job, node)

    def authenticate(self, token: str) -> TaskName | None:
        """None: nobody we know."""
        read = _TOKEN.fullmatch(token)
        if read is None:
            return None
        job, index, attempt, node, given = read.groups()
        name = f"{job}.{index}.{attempt}".encode()
        keys = (_key(secret, job, node) for secret in self._secrets())
        made = (hmac.new(key.encode(), name, hashlib.sha256).hexdigest() for key in keys)
        if not any(hmac.compare_digest(one, given) for one in made):
            return None
        return TaskName(job, int(index), int(attempt), node)


def _key(secret: bytes, job: str, node: str) -> str:
    return hmac.new(secret, f"{job}/{node}".encode(), hashlib.sha256).hexdigest()
