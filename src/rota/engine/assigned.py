"""Index of unfinished jobs by the cluster that each is assigned to, and of nodes by cluster and state."""

from collections import Counter
from collections.abc import Mapping

from rota.engine.entries import JobEntry, NodeEntry
from rota.model.ids import JobId
from rota.model.lifecycle import NodeState
from rota.model.serve import UNASSIGNED, Group, group_of


class Assigned:
    """Jobs are grouped by what decides which clusters can serve them: a search tests a group by one job."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[Group, dict[JobId, None]]] = {}
        self._nodes: dict[str, Counter[NodeState]] = {}

    def put(self, job: JobEntry) -> None:
        """Move a job to the group that it belongs to now; one that has ended belongs to none."""
        if job.status is not None and job.status.ended:
            self.take_out(job)
            return
        place = (UNASSIGNED if job.cluster is None else job.cluster.cluster, group_of(job.spec))
        if place == job.in_group:
            return
        self.take_out(job)
        job.in_group = place
        cluster, group = place
        self.jobs.setdefault(cluster, {}).setdefault(group, {})[job.spec.id] = None

    def take_out(self, job: JobEntry) -> None:
        if job.in_group is None:
            return
        cluster, group = job.in_group
        job.in_group = None
        groups = self.jobs[cluster]
        del groups[group][job.spec.id]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self.jobs[cluster]

    def count(self, node: NodeEntry) -> None:
        """Count a node by its cluster and state, in place of what it was counted as before."""
        counted = None if node.status is None else (node.spec.cluster, node.status.state)
        if counted != node.counted:
            self.discount(node)
            node.counted = counted
            if counted is not None:
                self._nodes.setdefault(counted[0], Counter())[counted[1]] += 1

    def discount(self, node: NodeEntry) -> None:
        if node.counted is not None:
            cluster, state = node.counted
            self._nodes[cluster][state] -= 1
            node.counted = None

    def nodes(self, cluster: str) -> Mapping[NodeState, int]:
        return self._nodes.get(cluster, Counter())
