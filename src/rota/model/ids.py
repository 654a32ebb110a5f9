"""Names of things: a child's id is its parent's plus a number."""

from typing import NewType

JobId = NewType("JobId", str)  # "12"; numbers are given out once, in order
NodeId = NewType("NodeId", str)  # "n3"; never reused, not even after the node is deleted
Key = NewType("Key", str)  # of a record in the store


def task_id(job: JobId, index: int) -> str:
    return f"{job}.{index}"


def attempt_id(job: JobId, index: int, attempt: int) -> str:
    return f"{job}.{index}.{attempt}"
