"""Everything that is added up over live attempts, kept up to date by how each of them moves."""

from rota.engine.state.entries import HoldChange, JobEntry
from rota.model.affinity import AffinityIndex, AffinityMembership
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.namespace import TASKS
from rota.model.node_table import NodeTable
from rota.model.usage import UsageAccounts


class Aggregates:
    """Room, accounts and neighbours, written together."""

    def __init__(self, room: NodeTable, accounts: UsageAccounts, neighbours: AffinityIndex) -> None:
        self._room = room
        self._accounts = accounts
        self._neighbours = neighbours
        self.leased: dict[JobId, None] = {}  # jobs that have not ended and whose attempts run under leases
        self.leased_on: dict[
            NodeId, dict[JobId, None]
        ] = {}  # of these, the ones with live attempts on a node
        self._live: dict[JobId, JobEntry] = {}  # jobs with live attempts

    def apply_change(self, job: JobEntry, node: NodeId, move: HoldChange) -> None:
        """Attempts of a job changed what they hold of a node."""
        slot, shape, live = self._room.slot[node], job.spec.shape, move.room + move.lookahead
        self._room.reserve(slot, shape.needs, move.room, move.lookahead)
        self._room.capacity_version += move.freed
        self._accounts.charge(job.spec.queue_key.owner, shape.needs, move.room)
        if job.spec.evictable and (move.preemptible or move.leaving):
            self._count_preemptible(job, slot, move)
        if shape.noise is not None:
            self._room.count_noise(slot, shape.noise, live)
        there = job.live_by_node.get(node, 0) + live
        if there:
            job.live_by_node[node] = there
        else:
            job.live_by_node.pop(node, None)
        self._index_live(job, node)
        if self._neighbours.members or self._neighbours.own:
            self._neighbours.count(job.spec.id, self._counted(job), slot, live)

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
        """A job has come: where are those its terms name, if nobody had such terms before?"""
        if spec.lease_ms is not None:
            self.leased[spec.id] = None
        if not (spec.near or spec.apart or spec.spread):
            return
        for selector in self._neighbours.register(spec, self._room.width):
            column = self._neighbours.members[selector]
            for job in self._live.values():
                if job.spec.namespace == selector[0] and selector[1].holds(job.spec.selector_labels):
                    for node, count in job.live_by_node.items():
                        column[self._room.slot[node]] += count

    def remove_job(self, spec: JobSpec) -> None:
        self.leased.pop(spec.id, None)
        if spec.near or spec.apart or spec.spread:
            self._neighbours.unregister(spec)

    def _count_preemptible(self, job: JobEntry, slot: int, move: HoldChange) -> None:
        needs = ((TASKS, 1), *job.spec.shape.needs)
        self._room.preemptible.add(job.spec.priority, slot, needs, move.preemptible)
        if move.leaving:
            self._room.preemptible.add_leaving(slot, needs, move.leaving)

    def _counted(self, job: JobEntry) -> AffinityMembership:
        if job.counted_version != self._neighbours.version:
            job.counted = self._neighbours.membership(job.spec)
            job.counted_version = self._neighbours.version
        return job.counted
