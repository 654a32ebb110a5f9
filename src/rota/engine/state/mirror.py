"""The cluster in memory: every record, and everything derived from records, kept up to date incrementally.

Theory of operation
-------------------
The mirror is what deciding code reads (as `rota.model.view.View`) and what API routes read through
`Engine.read`. It holds three kinds of state:

* **Records**, as they are in the store. Job and node records are in `JobEntry` and `NodeEntry`
  (`rota.engine.state.entries`); last-write-wins records without indexes are in `Tables`.
* **Derived state**: phases and holds per block of tasks, counts per phase, pending queues, reserved
  resources per node, usage per namespace, affinity counters, indexes by cluster and by dependency. None of it
  is stored. All of it is a function of the records alone, so a mirror that was loaded equals one that applied
  the same records one by one. tests/properties/test_mirror.py checks that against a recount from scratch.
* **Observations**: connections, loads, the time of a node's last message, recent refusals, measured run
  times, presence of subscribers. They are in no record and do not survive the process.

Writing. `apply` dispatches a record to the setter of its type, which updates the derived state by the
difference to the previous record of that key. Its cost depends on the number of tasks that changed, not on
the size of the cluster: `_refresh_block` compares the phases of a block before and after, and only positions
that differ move counters, holds and queues. `apply_all` (loading and replay) sorts records so that what
others refer to comes first, and derives each block once, when its three records are there.

The three records of a block are written by three components and overlap by design:

    TaskBlock (controllers)      which attempt number of each task is desired, or how the task ended
    AttemptBlock (scheduler)     the number, node and GPUs of each task's newest attempt
    StatusBlock (watcher)        the state of an attempt as its node reported it

`rota.rules.phases.block_phases` combines them: a status counts only for the attempt number it was written
for, so a late report about an earlier attempt changes nothing. From the phases follow the *holds*: what an
attempt occupies on its node (nothing, a lookahead slot, resources, or resources until it has stopped).

Invariants
----------
* Only the loop (or the replay of a standby) calls `apply` and `forget`, on one thread; there is no lock.
* A record is applied whole, or the mirror is discarded: an exception in a setter leaves derived state half
  updated, which the loop turns into `Tainted` and `apply_all` into `Unapplied`. No setter may be retried.
* What a block holds on nodes is released by the same numbers by which it was reserved. So whatever changes
  those numbers (a new spec, other GPUs) first releases by the old ones: see `_replace_spec`, `_reserve_gpus`.
* `jobs` is in the order of job numbers: pages of job lists rely on it.
* `touched` names nodes whose orders may have changed. The driver of node sessions empties it after a commit;
  a standby, which gives no orders, clears it after each replayed commit.

A crash loses observations only. After a load or a takeover, liveness clocks restart (see
`restart_liveness_clocks`): silence that another process observed does not count against a node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rota.engine.state.aggregates import Aggregates
from rota.engine.state.cluster_index import ClusterIndex
from rota.engine.state.dependents import Dependents
from rota.engine.state.entries import HoldChange, JobEntry, NodeEntry, ReservedGpus, touched_by
from rota.engine.state.load_order import load_order
from rota.engine.state.queues import PendingQueues
from rota.engine.state.refusals import Refusals
from rota.engine.state.tables import Tables
from rota.model.adoption import JobAdoption, Restored
from rota.model.affinity import AffinityIndex
from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.columns import FEW, changes, ints
from rota.model.cron import CronRecord, CronStatus
from rota.model.ids import JobId, Key, NodeId, subject_of
from rota.model.job import (
    Counters,
    JobCluster,
    JobGroup,
    JobIntent,
    JobKind,
    JobSpec,
    JobStatus,
    QueueChange,
    QueueRank,
    SchedulerVerdict,
    SubmitKey,
    Unplaceable,
    assigned_to,
)
from rota.model.lifecycle import AttemptState, JobState, NodeState
from rota.model.limits import BLOCK_TASKS
from rota.model.namespace import NamespaceRecord, NamespaceUsage, UsageAccounts, ended_usage, usage_of
from rota.model.node import Connection, NodeIntent, NodeLoad, NodeSpec, NodeStatus, ReportInterval
from rota.model.node_table import NodeTable
from rota.model.plan import Record
from rota.model.recovery import RecoveryAnswers
from rota.model.result import ResultRecord
from rota.model.rollout import JobPreviousVersion, JobRollout
from rota.model.shape import QueueKey
from rota.model.structures import ChangeLog
from rota.model.subscriber import Subscriber, SubscriberPresence
from rota.model.task import PinBlock, TaskBlock, begun
from rota.rules.node_labels import matched_labels
from rota.rules.phases import BlockPhases, NodeHold, Phase, block_phases

# Plain numbers: enum members are slow to look up, and these are needed at every change.
_PENDING, _STOPPING = int(Phase.PENDING), int(Phase.STOPPING)
_REFUSED, _RESERVED = int(AttemptState.REFUSED), int(NodeHold.RESERVED)
_RAN = (int(AttemptState.SUCCEEDED), int(AttemptState.FAILED))
_SYSTEM, _CANCELING = JobKind.SYSTEM, JobState.CANCELING


class Unapplied(Exception):
    """A record could not be applied: derived state is half updated, and the mirror must be discarded."""

    def __init__(self, key: Key, error: Exception) -> None:
        super().__init__(f"{key} could not be applied: {error!r}")
        self.subject = subject_of(key)
        self.error = error


class Mirror:
    def __init__(self, only_granted: frozenset[str] = frozenset()) -> None:
        """`only_granted`: keys of labels that have an effect only on nodes which were granted them."""
        self.granted_only_labels = only_granted
        # Tables never replaces its dictionaries, so that readers can share them with it.
        self._tables = Tables()
        self.namespaces: Mapping[str, NamespaceRecord] = self._tables.namespaces
        self.clusters: Mapping[str, ClusterRecord] = self._tables.clusters
        self.cluster_intents: Mapping[str, ClusterIntent] = self._tables.cluster_intents
        self.machines: Mapping[str, Machine] = self._tables.machines
        self.subscribers: Mapping[str, Subscriber] = self._tables.subscribers
        self.crons: Mapping[str, CronRecord] = self._tables.crons
        self.cron_statuses: Mapping[str, CronStatus] = self._tables.cron_statuses
        self.ended_jobs = self._tables.ended_jobs
        self.submit_keys: Mapping[Key, SubmitKey] = self.ended_jobs.submit_keys
        self.jobs: dict[JobId, JobEntry] = {}
        self.nodes: dict[NodeId, NodeEntry] = {}
        self.node_table = NodeTable()
        self.usage = UsageAccounts()
        self.affinity = AffinityIndex()
        self._aggregates = Aggregates(self.node_table, self.usage, self.affinity)
        self.leased: Mapping[JobId, None] = self._aggregates.leased
        self.leased_on: Mapping[NodeId, Mapping[JobId, None]] = self._aggregates.leased_on
        self.presence = SubscriberPresence()
        self._dependents = Dependents()
        self.system_jobs: dict[JobId, None] = {}
        self.moving: dict[JobId, None] = {}  # jobs with tasks ordered to other nodes and not started there
        self.unassigned: dict[JobId, None] = {}  # jobs without a cluster
        self._clusters_index = ClusterIndex()
        self.jobs_by_cluster: Mapping[str, Mapping[JobGroup, Mapping[JobId, None]]] = (
            self._clusters_index.jobs
        )
        self.unloadable: frozenset[JobId] = frozenset()  # jobs on disk that could not be loaded
        self.unfinished = 0
        self.now_ms = 0
        self.read_at_ms = 0
        self.disk_low = False  # as last reported by the store
        # Nodes whose orders may have changed, or that were revoked; emptied by the driver of node sessions.
        self.touched: dict[NodeId, None] = {}
        self.refusals = Refusals()
        self._queues = PendingQueues(self.refusals)
        self._appliers = self._tables.setters() | self._setters()

    def _setters(self) -> dict[type, Callable[[Any], None]]:
        """By type of record: one dictionary lookup per record is the whole dispatch."""
        return {
            JobSpec: self._set_job,
            JobIntent: self._set_job_intent,
            JobCluster: self._set_job_cluster,
            JobStatus: self._set_job_status,
            SchedulerVerdict: self._set_job_verdict,
            Unplaceable: self._set_unplaceable,
            RecoveryAnswers: self._set_job_answers,
            ResultRecord: lambda record: self.jobs[record.job].add_result(record),
            JobPreviousVersion: self._set_job_previous_version,
            JobRollout: self._set_job_rollout,
            JobAdoption: lambda record: self.jobs[record.id].adopt(record),
            TaskBlock: self._set_block,
            AttemptBlock: self._set_block,
            StatusBlock: self._set_block,
            PinBlock: self._set_pins,
            NodeSpec: self._set_node_spec,
            NodeIntent: self._set_node_intent,
            NodeStatus: self._set_node_status,
            NamespaceRecord: self._set_namespace,
            Machine: self._set_machine,
        }

    # ---- reading

    @property
    def counters(self) -> Counters:
        return self._tables.counters

    @property
    def report_interval(self) -> ReportInterval:
        return self._tables.report_interval

    @property
    def restored(self) -> Restored | None:
        return self._tables.restored

    def submitted(self, namespace: str, name: str) -> SubmitKey | None:
        return self._tables.submitted(namespace, name)

    def pending_queues(self) -> Iterable[tuple[QueueKey, Sequence[QueueRank]]]:
        self._queues.resume_due(self.now_ms)
        return self._queues.all()

    def pending_jobs_in(self, cluster: str) -> int:
        self._queues.resume_due(self.now_ms)
        return self._queues.jobs_in[cluster]

    def nodes_in(self, cluster: str) -> Mapping[NodeState, int]:
        return self._clusters_index.nodes(cluster)

    def pending_queue(self, queue: QueueKey) -> Sequence[QueueRank]:
        return self._queues.jobs(queue)

    @property
    def queue_changes(self) -> ChangeLog[QueueChange]:
        self._queues.resume_due(self.now_ms)
        return self._queues.changed

    def next_resume_ms(self) -> int | None:
        self._queues.resume_due(self.now_ms)
        return self._queues.next_resume_ms()

    def dependents(self, job: JobId) -> Sequence[JobId]:
        return self._dependents.of_job(job)

    def refused_by(self, refusal_key: QueueKey) -> Mapping[NodeId, tuple[int, str]]:
        """Recent refusals by nodes that still exist: refusals outlive the deletion of their node."""
        refusals = self.refusals.by_node(refusal_key)
        return {node: refusal for node, refusal in refusals.items() if node in self.nodes}

    # ---- writing

    def load(self, records: Iterable[Record]) -> None:
        self.restart_liveness_clocks()
        self.apply_all(records)
        self.ended_jobs.finish_loading(self.jobs)

    def restart_liveness_clocks(self) -> None:
        """Restart liveness clocks: silence that the previous leader observed does not count."""
        self.read_at_ms = self.now_ms
        self.presence = SubscriberPresence(self.now_ms)
        self.mark_all_seen()

    def apply_all(self, records: Iterable[Record]) -> None:
        """Apply records given in any order; each block is derived once. Raises Unapplied."""
        given = list(records)
        blocks: dict[tuple[JobId, int], TaskBlock | AttemptBlock | StatusBlock] = {}
        # Outside the try block, so that the error names the record at which the loop stopped.
        at: Record | None = None
        try:
            for at in sorted(given, key=load_order):
                match at:
                    case TaskBlock() | AttemptBlock() | StatusBlock():
                        self.jobs[at.job].set_block(at)
                        blocks[at.job, at.block] = at
                    case _:
                        self.apply(at)
            for at in blocks.values():
                self._refresh_block(self.jobs[at.job], at.block)
        except Exception as error:
            raise Unapplied((at or _first_unsortable(given)).key, error) from error

    def apply(self, record: Record) -> None:
        self._appliers[type(record)](record)

    def forget(self, key: Key) -> None:
        head, _, rest = key.partition("/")
        name = rest.partition("/")[0]
        match head:
            case "job" | "task" | "attempt" | "status" | "pin" | "result":
                self._forget_job(JobId(name))
            case "node":
                self._forget_node(NodeId(name))
            case _:
                self.node_table.capacity_version += head == "namespace"
                self._tables.delete(key)

    # ---- parking: jobs that our own code failed on

    def park_job(self, job: JobId) -> None:
        """Keep a job out of the pending queues until it is unparked."""
        entry = self.jobs.get(job)
        if entry is not None:
            entry.is_parked = True
            self._index_moving(entry)
            self._queues.update(entry, self.now_ms)

    def unpark_job(self, job: JobId) -> None:
        self.jobs[job].is_parked = False
        self._index_moving(self.jobs[job])
        self._queues.update(self.jobs[job], self.now_ms)

    # ---- observations, which are never stored

    def mark_seen(self, node: NodeId) -> None:
        self._node(node).last_seen_at_ms = self.now_ms

    def mark_all_seen(self) -> None:
        for entry in self.nodes.values():
            entry.last_seen_at_ms = self.now_ms

    def connect(self, node: NodeId, link: Connection) -> None:
        entry = self._node(node)
        entry.connection = link
        if link is Connection.UP:
            entry.disconnect_reason = entry.left_at = None
        self._update_openness(entry)

    def measure(self, node: NodeId, load: NodeLoad, settled: Mapping[str, int] | None = None) -> None:
        """`settled` is what was reserved on the node when it measured this; None: what is reserved now."""
        entry = self._node(node)
        capacity = entry.status.capacity if entry.status else {}
        free = {"memory": load.memory_free, "disk": load.disk_free}
        self.node_table.set_measured(
            self.node_table.slot[node],
            {resource: amount for resource, amount in free.items() if amount is not None},
            load.cpu_milli / max(1, capacity.get("cpu", 1)),
            settled,
        )
        entry.measured_at_ms = self.now_ms
        # Last: if set_measured() raises on numbers that do not fit, inherit() must not find this load.
        entry.load = load

    def reserved_when_measured(self, node: NodeId) -> Mapping[str, int]:
        """The amounts that were reserved on a node when it measured its load."""
        return self.node_table.settled_at(self.node_table.slot[node])

    def resume(self, before: "Mirror") -> None:
        """Copy observations from a tainted mirror into this one, which was loaded in its place.

        Unlike after a failed commit, messages of nodes were served all the time, so silence counts on.
        """
        self.inherit(before)
        self.read_at_ms = before.read_at_ms
        self.refusals = before.refusals
        for node, entry in before.nodes.items():
            if node in self.nodes:
                self.nodes[node].last_seen_at_ms = entry.last_seen_at_ms
        for name, job in before.jobs.items():
            if name in self.jobs:
                self.jobs[name].run_us = job.run_us

    def inherit(self, before: "Mirror") -> None:
        """Copy observations into this mirror, which was loaded after a failed commit or at a takeover.

        The time of last messages is not copied: while no commit succeeded no handshake could complete, so a
        node's silence may be our own fault. All nodes count as seen now.
        """
        self.presence = before.presence
        self.disk_low = before.disk_low
        for node, entry in before.nodes.items():
            if node in self.nodes:
                self.connect(node, entry.connection)
                self.nodes[node].set_report_interval(entry.report_ms)
                self.nodes[node].set_refused(entry.refused)
                if entry.load is not None:
                    self.measure(node, entry.load, before.reserved_when_measured(node))
                    self.nodes[node].measured_at_ms = entry.measured_at_ms

    # ---- one setter per type of record

    def _set_job(self, record: JobSpec) -> None:
        job = self.jobs.get(record.id)
        if job is not None:
            self._replace_spec(job, record)
            return
        job = JobEntry(begun(record))
        self._insert_job(job)
        self.unassigned[record.id] = None
        self._clusters_index.update_job(job)
        self.unfinished += 1
        self._charge_namespace(job, usage_of(record))
        self._dependents.add(record)
        self._aggregates.add_job(record)

    def _insert_job(self, job: JobEntry) -> None:
        """Keep `jobs` in the order of job numbers: an adopted job may come after jobs with higher numbers."""
        number = int(job.spec.id)
        higher = list(takewhile(lambda other: int(other) > number, reversed(self.jobs)))
        self.jobs[job.spec.id] = job
        for other in reversed(higher):
            self.jobs[other] = self.jobs.pop(other)

    def _replace_spec(self, job: JobEntry, record: JobSpec) -> None:
        """Apply an updated spec, and count everything by the new spec that was counted by the old one."""
        # Order matters: leave the queue and release all holds while the old spec still says by how much.
        # Leaving the queue needs the old queue key, which follows from the spec.
        self._queues.remove(job)
        for block, attempt in job.attempts.items():
            self._shift_holds(job, attempt, job.holds_of(block), bytes(len(job.holds_of(block))))
        self._aggregates.remove_job(job.spec)
        job.replace_spec(record)
        has_ended = job.status is not None and job.status.ended
        self._charge_namespace(job, ended_usage(usage_of(record)) if has_ended else usage_of(record))
        self._clusters_index.update_job(job)
        self._aggregates.add_job(record)
        for block, attempt in job.attempts.items():
            self._shift_holds(job, attempt, bytes(len(job.holds_of(block))), job.holds_of(block))
            self._touch_block(job, block)
        self._queues.update(job, self.now_ms)

    def _set_job_intent(self, record: JobIntent) -> None:
        job = self.jobs[record.id]
        before, job.intent = job.intent, record
        job.set_moves(record.moves)
        self._index_moving(job)
        for block in touched_by(before, record, job.attempts):
            self._touch_block(job, block)
        self._queues.update(job, self.now_ms)

    def _set_job_cluster(self, record: JobCluster) -> None:
        """Assign the job to a cluster: its tasks run on nodes of that cluster only, so its queue changes."""
        job = self.jobs[record.id]
        job.cluster = record
        self.unassigned.pop(record.id, None)
        if job.status is None or job.status.ended:
            job.spec = assigned_to(job.spec, record.cluster)
        elif job.spec.home != record.cluster:
            self._replace_spec(job, job.spec)
        self._clusters_index.update_job(job)

    def _set_job_verdict(self, record: SchedulerVerdict) -> None:
        self.jobs[record.id].verdict = record

    def _set_unplaceable(self, record: Unplaceable) -> None:
        self.jobs[record.id].unplaceable = record

    def _set_job_answers(self, record: RecoveryAnswers) -> None:
        self.jobs[record.id].answers = record

    def _set_job_previous_version(self, record: JobPreviousVersion) -> None:
        self.jobs[record.id].previous_version = record

    def _set_job_rollout(self, record: JobRollout) -> None:
        self.jobs[record.id].rollout = record

    def _set_block(self, record: TaskBlock | AttemptBlock | StatusBlock) -> None:
        job = self.jobs[record.job]
        written = job.differing(record)
        if isinstance(record, StatusBlock):
            # Before set_block: outcomes are the difference to
            # the previous status block, which that replaces.
            self._record_outcomes(job, record, written)
        job.set_block(record)
        self._refresh_block(job, record.block, written)
        if isinstance(record, TaskBlock) and record.renew:
            self._touch_block(job, record.block)

    def _set_pins(self, record: PinBlock) -> None:
        job = self.jobs[record.job]
        job.add_pins(record)
        self._queues.update(job, self.now_ms)
        self._queues.mark_improved(job)

    def _index_system_job(self, record: JobStatus) -> None:
        if record.state is JobState.ACTIVE:
            self.system_jobs[record.id] = None
        else:
            self.system_jobs.pop(record.id, None)

    def _index_moving(self, job: JobEntry) -> None:
        """Update `moving`, which leaves out parked and ended jobs."""
        ended = job.status is not None and job.status.ended
        if job.moving and not job.is_parked and not ended:
            self.moving[job.spec.id] = None
        else:
            self.moving.pop(job.spec.id, None)

    def _set_node_spec(self, record: NodeSpec) -> None:
        self._node(record.id).spec = record
        self._update_labels(self.nodes[record.id])
        self._update_openness(self.nodes[record.id])

    def _set_node_intent(self, record: NodeIntent) -> None:
        self._node(record.id).intent = record
        self._update_labels(self.nodes[record.id])
        self._update_openness(self.nodes[record.id])
        if record.revoked:
            self.touched[record.id] = None  # its connections must be closed

    def _set_namespace(self, record: NamespaceRecord) -> None:
        self._tables.namespaces[record.name] = record
        # A larger quota can let blocked queues start, as freed resources can.
        self.node_table.capacity_version += 1

    def _set_machine(self, record: Machine) -> None:
        self._tables.machines[record.name] = record
        if record.node in self.nodes:
            self.nodes[record.node].machine_leaving = record.is_being_removed
            self._update_openness(self.nodes[record.node])

    def _refresh_block(self, job: JobEntry, block: int, written: list[int] | None = None) -> None:
        """Update phases, counts, queue and holds to match the three records of a block.

        `written`: positions at which one of the records changed; None: possibly all.
        """
        size = job.spec.block_size(block)
        attempt = job.attempts.get(block)
        # Not `in job.phases`: scaled-down tasks have phases without having any record.
        known = block in job.holds
        before = BlockPhases(job.phases.get(block) or bytes(size), job.holds.get(block) or bytes(size))
        records = job.tasks.get(block), attempt, job.statuses.get(block)
        if known and written is not None and len(written) <= FEW:
            now = before.changed(written, *records)
        else:
            now = block_phases(size, *records)
        now = job.bounded(block, now)
        changed = changes(before.phase, now.phase)
        job.task_counts.shift(before.phase, now.phase, changed)
        if attempt is not None:
            job.update_retries(attempt, changed if known else list(range(size)), now.phase)
            self._shift_holds(job, attempt, before.hold, now.hold)
        elif changed:
            job.has_gaps = True
        job.phases[block], job.holds[block] = now.phase, now.hold
        if job.moving:
            job.set_moves(job.moving)
            self._index_moving(job)
        if _STOPPING in now.phase:
            self._touch_block(job, block)
        self._queues.update(job, self.now_ms)
        # Each task of a system job waits for its own node: one that does not fit says nothing about others.
        if job.spec.kind is _SYSTEM and any(now.phase[position] == _PENDING for position in changed):
            self._queues.mark_improved(job)

    def _shift_holds(self, job: JobEntry, attempt: AttemptBlock, before: bytes, now: bytes) -> None:
        """Move reservations on nodes by the difference between two hold columns of a block."""
        first = attempt.block * BLOCK_TASKS
        number, place = ints(attempt, "number"), ints(attempt, "node")
        by_node: dict[NodeId, HoldChange] = {}
        for position in changes(before, now):
            node = attempt.nodes[place[position]]
            change = by_node.get(node)
            if change is None:
                change = by_node[node] = HoldChange()
            change.shift(before[position], now[position])
            name = (job.spec.id, first + position)
            if now[position]:
                self._node(node).assigned[name] = number[position]
            else:
                self._node(node).assigned.pop(name, None)
            if now[position] >= _RESERVED > before[position]:
                self._reserve_gpus(job, first + position, node, attempt.gpus.get(position, 0))
            elif before[position] >= _RESERVED > now[position]:
                self._release_gpus(job, first + position)
        for node, change in by_node.items():
            self._aggregates.apply_change(job, node, change)
            self.touched[node] = None

    def _reserve_gpus(self, job: JobEntry, index: int, node: NodeId, devices: int) -> None:
        """Reserve an attempt's GPUs, and record what was reserved: the spec may change before it ends.

        An attempt of an older spec may have GPUs although the spec no longer requests any. Their share is
        unknown then, so they count as fully allocated until that attempt has ended.
        """
        if devices:
            share = job.spec.needs.get(GPU) or WHOLE_GPU
            slot = self.node_table.slot[node]
            job.devices[index] = ReservedGpus(slot, share, devices)
            self.node_table.reserve_gpus(slot, share, devices, 1)

    def _release_gpus(self, job: JobEntry, index: int) -> None:
        held = job.devices.pop(index, None)
        if held is not None:
            self.node_table.reserve_gpus(held.slot, held.share, held.devices, -1)

    def _touch_block(self, job: JobEntry, block: int) -> None:
        attempt = job.attempts.get(block)
        if attempt is not None:
            self.touched |= {node: None for node in attempt.nodes if node in self.nodes}

    def _record_outcomes(self, job: JobEntry, new: StatusBlock, written: list[int] | None) -> None:
        """Learn from a status block: run times of attempts that ended, and refusals by nodes."""
        changed = range(len(new.state)) if written is None else written
        ran_us = ints(new, "ran_us")
        ran = [ran_us[at] for at in changed if new.state[at] in _RAN]
        if ran:
            mean_us = sum(ran) / len(ran)
            was_short = job.runs_briefly
            job.run_us = mean_us if job.run_us is None else 0.7 * job.run_us + 0.3 * mean_us
            if job.runs_briefly and not was_short:
                self._queues.mark_improved(job)
        for at in changed:
            if new.state[at] == _REFUSED:
                attempt = job.attempts[new.block]
                node = attempt.nodes[ints(attempt, "node")[at]]
                self.refusals.record(job.spec.refusal_key, node, new.reasons.get(at, "refused"), self.now_ms)
                self._queues.split_refused(job.spec.refusal_key)

    def _set_job_status(self, record: JobStatus) -> None:
        job = self.jobs[record.id]
        before, ended = job.status is not None and job.status.ended, record.ended
        job.status = record
        self.unfinished -= int(ended) - int(before)
        if ended != before:
            self._charge_namespace(job, ended_usage(job.usage) if ended else usage_of(job.spec))
        self._dependents.update(job.spec, record.state)
        if job.spec.kind is _SYSTEM:
            self._index_system_job(record)
        if ended and not before:
            self._clusters_index.remove_job(job)
            self._aggregates.remove_job(job.spec)
            self.ended_jobs.end(job.spec, record)
        self._index_moving(job)
        if record.state is _CANCELING:
            for block in job.attempts:
                self._touch_block(job, block)
        self._queues.update(job, self.now_ms)

    def _node(self, node: NodeId) -> NodeEntry:
        entry = self.nodes.get(node)
        if entry is None:
            entry = self.nodes[node] = NodeEntry(node)
            entry.last_seen_at_ms = self.now_ms
            self.node_table.add(node)
            self.affinity.widen(self.node_table.width)
        return entry

    def _set_node_status(self, record: NodeStatus) -> None:
        entry = self._node(record.id)
        before = entry.status
        entry.status = record
        slot = self.node_table.slot[record.id]
        if before is None or before.capacity != record.capacity:
            self.node_table.set_capacity(slot, record.capacity)
        if before is None or before.may_accept_again(record):
            self.refusals.forget(record.id)
            self.node_table.bump_acceptance(slot)
        if before is None or before.labels != record.labels:
            self._update_labels(entry)
        self._update_openness(entry)

    def _update_labels(self, entry: NodeEntry) -> None:
        """Update the labels and taints in the node table from the three records of a node."""
        slot = self.node_table.slot[entry.id]
        declared = entry.status.labels if entry.status else {}
        granted = {**entry.spec.labels, "node": entry.spec.name, "cluster": entry.spec.cluster}
        taints = entry.intent.taints if entry.intent else ()
        self.node_table.set_labels(slot, matched_labels(declared, granted, self.granted_only_labels), taints)

    def _update_openness(self, entry: NodeEntry) -> None:
        slot = self.node_table.slot[entry.id]
        self.node_table.set_open(slot, entry.open)
        self.node_table.set_expected(slot, entry.expected)
        self._clusters_index.update_node(entry)

    def _charge_namespace(self, job: JobEntry, kept: NamespaceUsage) -> None:
        """Charge a job's namespace this usage, in place of what the job was charged before."""
        self.usage.add(job.spec.namespace, job.usage, -1)
        job.usage = kept
        self.usage.add(job.spec.namespace, kept)

    def _forget_job(self, job_id: JobId) -> None:
        job = self.jobs.pop(job_id, None)
        if job is not None:
            self._charge_namespace(job, NamespaceUsage())
            self.ended_jobs.forget(job_id)
            self._queues.remove(job)
            self._clusters_index.remove_job(job)
            job.resumes_ms = None
        self.system_jobs.pop(job_id, None)
        self.moving.pop(job_id, None)
        self.unassigned.pop(job_id, None)
        if job is not None and not (job.status is not None and job.status.ended):
            self.unfinished -= 1
            self._dependents.remove(job.spec)
            self._aggregates.remove_job(job.spec)

    def _forget_node(self, node: NodeId) -> None:
        entry = self.nodes.pop(node, None)
        self.touched.pop(node, None)  # a deleted node gets no orders
        if entry is not None:
            self.node_table.remove(node)
            self._clusters_index.remove_node(entry)


def _first_unsortable(records: list[Record]) -> Record:
    """The first record for which load_order() raises."""
    for record in records:
        try:
            load_order(record)
        except Exception:
            return record
    raise AssertionError("load_order() accepts each of these records")
