"""Names of things: a child's id is its parent's plus a number."""

from typing import NewType

JobId = NewType("JobId", str)  # "12"; numbers are given out once, in order
NodeId = NewType("NodeId", str)  # "n3"; never reused, not even after the node is deleted
Key = NewType("Key", str)  # of a record in the store
