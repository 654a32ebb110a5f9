"""Fit: how well the nodes of a cluster suit a job, as far as the scheduler can tell."""

from typing import NamedTuple


class ClusterFit(NamedTuple):
    """Of the nodes of one cluster that take work."""

    able: int  # nodes that could run a task of it, were they empty and connected
    free: int  # tasks of it that have room there now


class ScaleEstimate(NamedTuple):
    """By how much a cluster would have to grow for those who wait in it."""

    waiting: int  # tasks that find no room, also when the machines on their way are there
    nodes: int  # the fewest more with which as many of them start as with the most there may be
    starts: int  # tasks that start with these
