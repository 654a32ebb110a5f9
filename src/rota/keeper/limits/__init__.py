"""WHAT WORK MAY USE: groups of the kernel where there are any, else an eye on it."""
