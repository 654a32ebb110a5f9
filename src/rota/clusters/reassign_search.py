"""Incremental search for stranded jobs, which another cluster could serve.

A job is stranded if the cluster that it waits in cannot serve it: none could when it was submitted, or the
nodes that could were removed. Any change of a node or a cluster may end that, so after each change all groups
of unfinished jobs are searched. Both the number of groups and the number of jobs in one may be 100,000, and
10,000 nodes may change within a minute. So the search is done in steps with a delay after each expensive one,
and changes during a search lead to one more search after it, not to one for each change. A search of a small
cluster is one step without a delay.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rota.model.cluster import ClusterIntent, ClusterRecord
from rota.model.ids import JobId
from rota.model.job import NO_CLUSTER, JobGroup
from rota.model.limits import REASSIGN_SEARCH_PAUSE_MS, REASSIGN_SEARCH_VISITS, REASSIGN_STEP_MAX
from rota.model.node_table import NodeTable
from rota.model.plan import Instant
from rota.model.view import View

# The cluster of a group, and one of its jobs -> whether jobs of that group are stranded.
GroupTest = Callable[[View, str, JobId], bool]


class SearchStep(NamedTuple):
    """One step of a search."""

    jobs: list[JobId]
    wake_at_ms: int | None  # when the next step is due; None: not before something changes


class ClusterCriteria(NamedTuple):
    """What decides which clusters can serve a job."""

    node_table: NodeTable  # a new one after a reload, whose versions restart
    feasibility_version: int  # of nodes
    clusters: tuple[ClusterRecord, ...]
    intents: tuple[ClusterIntent, ...]


class ReassignSearch:
    """Its position is kept in memory only: after a restart every group is searched again."""

    def __init__(self, is_stranded: GroupTest) -> None:
        self._is_stranded = is_stranded
        self._criteria: ClusterCriteria | None = None  # as of the start of the last search
        self._groups: deque[tuple[str, JobGroup]] = deque()
        self._jobs: deque[JobId] = deque()  # of stranded groups
        self._not_before_ms = 0
        self._again_at_ms: int | None = None

    def search_again_at(self, at_ms: int) -> None:
        """Search again then even if nothing changes: a stranded job may have live tasks until then."""
        self._again_at_ms = at_ms

    def step(self, view: View, now: Instant) -> SearchStep:
        # The delay is kept here as well, because any change of a node wakes this key before its timer.
        if now.ms < self._not_before_ms:
            return SearchStep([], self._not_before_ms)
        if not self._groups and not self._jobs:
            is_due = self._again_at_ms is not None and self._again_at_ms <= now.ms
            if (criteria := _criteria_of(view)) == self._criteria and not is_due:
                return SearchStep([], self._again_at_ms)
            self._criteria, self._again_at_ms = criteria, None
            self._groups.extend(_all_groups(view))
        # In proportion to the nodes visited, so the search takes a bounded share of the loop at any size.
        delay_ms = REASSIGN_SEARCH_PAUSE_MS * self._test_groups(view) // REASSIGN_SEARCH_VISITS
        jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), REASSIGN_STEP_MAX))]
        self._not_before_ms = now.ms + delay_ms
        # Compared again: what changed during the search may have changed the answer
        # for groups that it had passed.
        is_over = not self._groups and not self._jobs and _criteria_of(view) == self._criteria
        return SearchStep(jobs, self._again_at_ms if is_over else now.ms + max(1, delay_ms))

    def _test_groups(self, view: View) -> int:
        """Test groups until one is stranded or the step is long enough; returns how many nodes it visited."""
        visits = 0
        while self._groups and not self._jobs and visits < REASSIGN_SEARCH_VISITS:
            cluster, group = self._groups.popleft()
            jobs = view.jobs_by_cluster.get(cluster, {}).get(group)
            if jobs is None:
                continue  # all of its jobs have ended or moved
            visits += max(1, view.node_table.size)
            if self._is_stranded(view, cluster, next(iter(jobs))):
                self._jobs.extend(jobs)
        return visits


def _all_groups(view: View) -> Iterator[tuple[str, JobGroup]]:
    """All groups; where there is one cluster only, no job that has a cluster could move."""
    names = view.jobs_by_cluster if len(view.clusters) > 1 else (NO_CLUSTER,)
    for name in names:
        yield from ((name, group) for group in view.jobs_by_cluster.get(name, {}))


def _criteria_of(view: View) -> ClusterCriteria:
    clusters, intents = tuple(view.clusters.values()), tuple(view.cluster_intents.values())
    return ClusterCriteria(view.node_table, view.node_table.feasibility_version, clusters, intents)
