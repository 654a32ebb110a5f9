"""Ids of jobs and nodes, and keys of records."""

from typing import NewType

JobId = NewType("JobId", str)  # "12"; numbers are assigned in order and never reused
NodeId = NewType("NodeId", str)  # "n3"; never reused, not even after the node is deleted
Key = NewType("Key", str)  # of a record in the store
_OF_JOBS = frozenset(("job", "task", "attempt", "status", "pin", "result"))  # first parts of a job's keys


def subject_of(key: str) -> str:
    """The key of a record -> the job or node that it belongs to, or else the key itself."""
    head, _, rest = key.partition("/")
    if head in _OF_JOBS:
        return f"job/{rest.partition('/')[0]}"
    if head == "node":
        return f"node/{rest.partition('/')[0]}"
    return key
