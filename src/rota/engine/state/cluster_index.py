"""Index of unfinished jobs by the cluster that each is assigned to, and of nodes by cluster and state."""

from collections import Counter
from collections.abc import Mapping

from rota.engine.state.entries import JobEntry, NodeEntry
from rota.model.ids import JobId
from rota.model.job import NO_CLUSTER, JobGroup, group_of
from rota.model.lifecycle import NodeState


class ClusterIndex:
    """Jobs are grouped by what decides which clusters can serve them: a search tests a group by one job."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[JobGroup, dict[JobId, None]]] = {}
        self._nodes: dict[str, Counter[NodeState]] = {}

    def update_job(self, job: JobEntry) -> None:
        """Move a job to the group that it belongs to now; one that has ended belongs to none."""
        if job.status is not None and job.status.ended:
            self.remove_job(job)
            return
        place = (NO_CLUSTER if job.cluster is None else job.cluster.cluster, group_of(job.spec))
        if place == job.in_group:
            return
        self.remove_job(job)
        job.in_group = place
        cluster, group = place
        self.jobs.setdefault(cluster, {}).setdefault(group, {})[job.spec.id] = None

    def remove_job(self, job: JobEntry) -> None:
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

    def update_node(self, node: NodeEntry) -> None:
        """Count a node by its cluster and state, in place of what it was counted as before."""
        counted = None if node.status is None else (node.spec.cluster, node.status.state)
        if counted != node.counted:
            self.remove_node(node)
            node.counted = counted
            if counted is not None:
                self._nodes.setdefault(counted[0], Counter())[counted[1]] += 1

    def remove_node(self, node: NodeEntry) -> None:
        if node.counted is not None:
            cluster, state = node.counted
            self._nodes[cluster][state] -= 1
            node.counted = None

    def nodes(self, cluster: str) -> Mapping[NodeState, int]:
        return self._nodes.get(cluster, Counter())
