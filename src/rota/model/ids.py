"""Names of things: a child's id is its parent's plus a number."""

from typing import NewType

JobId = NewType("JobId", str)  # "12"; numbers are given out once, in order
NodeId = NewType("NodeId", str)  # "n3"; never reused, not even after the node is deleted
Key = NewType("Key", str)  # of a record in the store
_OF_JOBS = frozenset(
    ("job", "task", "attempt", "status", "pin", "result")
)  # how keys of a job's records begin


def subject_of(key: str) -> str:
    """The key of a record -> the job or node that it is part of, or else the record itself."""
    head, _, rest = key.partition("/")
    if head in _OF_JOBS:
        return f"job/{rest.partition('/')[0]}"
    if head == "node":
        return f"node/{rest.partition('/')[0]}"
    return key
