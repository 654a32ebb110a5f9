"""A task's own token: made by its node from a key for that job and node alone, checked without a record."""

import hashlib
import hmac
import re
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
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def key_for(self, job: str, node: str) -> str:
        """Given to a node with a job: by it tokens are made for its own attempts of that, and no others."""
        return hmac.new(self._secret, f"{job}/{node}".encode(), hashlib.sha256).hexdigest()

    def who(self, token: str) -> TaskName | None:
        """None: nobody we know."""
        read = _TOKEN.fullmatch(token)
        if read is None:
            return None
        job, index, attempt, node, given = read.groups()
        key = self.key_for(job, node)
        made = hmac.new(key.encode(), f"{job}.{index}.{attempt}".encode(), hashlib.sha256).hexdigest()
        return TaskName(job, int(index), int(attempt), node) if hmac.compare_digest(made, given) else None
