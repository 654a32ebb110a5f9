"""Sums over live attempts: reserved resources, usage and affinity counters, updated by differences."""

from rota.engine.state.entries import HoldChange, JobEntry
from rota.model.affinity import AffinityIndex, AffinityMembership
from rota.model.amounts import TASKS
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.namespace import UsageAccounts
from rota.model.node_table import NodeTable


class Aggregates:
    """Updates the node table, the usage accounts and the affinity index together."""

    def __init__(self, node_table: NodeTable, usage: UsageAccounts, affinity: AffinityIndex) -> None:
        self._node_table = node_table
        self._usage = usage
        self._affinity = affinity
        self.leased: dict[JobId, None] = {}  # jobs that have not ended and whose attempts run under leases
        self.leased_on: dict[NodeId, dict[JobId, None]] = {}  # those of them with live attempts on a node
        self._live: dict[JobId, JobEntry] = {}  # jobs with live attempts

    def apply_change(self, job: JobEntry, node: NodeId, change: HoldChange) -> None:
        """Apply a change of what attempts of a job hold on a node."""
        slot, shape, live = self._node_table.slot[node], job.spec.shape, change.reserved + change.lookahead
        self._node_table.reserve(slot, shape.needs, change.reserved, change.lookahead)
        self._node_table.capacity_version += change.freed
        self._usage.charge(job.spec.queue_key.owner, shape.needs, change.reserved)
        if job.spec.evictable and (change.preemptible or change.leaving):
            self._count_preemptible(job, slot, change)
        if shape.noise is not None:
            self._node_table.count_noise(slot, shape.noise, live)
        on_node = job.live_by_node.get(node, 0) + live
        if on_node:
            job.live_by_node[node] = on_node
        else:
            job.live_by_node.pop(node, None)
        self._index_live(job, node)
        # Without affinity rules in the cluster there is nothing to count: the common case costs no lookup.
        if self._affinity.members or self._affinity.own:
            self._affinity.count(job.spec.id, self._membership(job), slot, live)

    def _index_live(self, job: JobEntry, node: NodeId) -> None:
        name = job.spec.id
        if job.live_by_node:
            self._live[name] = job
        else:
            self._live.pop(name, None)
        if job.spec.lease_ms is None:
            return
        here = self.leased_on.setdefault(node, {})
        if node in job.live_by_node:
            here[name] = None
        else:
            here.pop(name, None)
        if not here:
            del self.leased_on[node]

    def add_job(self, spec: JobSpec) -> None:
        """Register a job's affinity rules; selectors used for the first time count existing attempts."""
        if spec.lease_ms is not None:
            self.leased[spec.id] = None
        if not (spec.near or spec.apart or spec.spread):
            return
        for selector in self._affinity.register(spec, self._node_table.width):
            column = self._affinity.members[selector]
            for job in self._live.values():
                if job.spec.namespace == selector[0] and selector[1].holds(job.spec.selector_labels):
                    for node, count in job.live_by_node.items():
                        column[self._node_table.slot[node]] += count

    def remove_job(self, spec: JobSpec) -> None:
        self.leased.pop(spec.id, None)
        if spec.near or spec.apart or spec.spread:
            self._affinity.unregister(spec)

    def _count_preemptible(self, job: JobEntry, slot: int, change: HoldChange) -> None:
        needs = ((TASKS, 1), *job.spec.shape.needs)
        self._node_table.preemptible.add(job.spec.priority, slot, needs, change.preemptible)
        if change.leaving:
            self._node_table.preemptible.add_leaving(slot, needs, change.leaving)

    def _membership(self, job: JobEntry) -> AffinityMembership:
        if job.counted_version != self._affinity.version:
            job.counted = self._affinity.membership(job.spec)
            job.counted_version = self._affinity.version
        return job.counted
