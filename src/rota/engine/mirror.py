"""The cluster in memory and its indexes; written only by apply() and observations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rota.engine.assigned import Assigned
from rota.engine.entries import Devices, JobEntry, Move, NodeEntry, touched_by
from rota.engine.followers import Followers
from rota.engine.lines import Lines
from rota.engine.load_order import load_order
from rota.engine.refusals import Refusals
from rota.engine.standing import Standing
from rota.engine.sums import Sums
from rota.model import labels
from rota.model.accounts import Accounts, Kept, kept_of, of_ended
from rota.model.adoption import JobAdoption
from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import Machine
from rota.model.columns import FEW, changes, ints
from rota.model.ids import JobId, Key, NodeId, subject_of
from rota.model.job import (
    JobCluster,
    JobSpec,
    JobStatus,
    JobVerdict,
    JobWish,
    Kind,
    LineChange,
    Turn,
    Unplaceable,
    at_home,
)
from rota.model.lifecycle import AttemptState, JobState, NodeState
from rota.model.limits import BLOCK_TASKS
from rota.model.log import Log
from rota.model.namespace import Namespace
from rota.model.neighbours import Neighbours
from rota.model.node import Link, Load, NodeSpec, NodeStatus, NodeWish
from rota.model.phase import Cells, Hold, Phase, cells
from rota.model.pins import PinBlock, begun
from rota.model.plan import Record
from rota.model.recovery import JobAnswers, Presence
from rota.model.result import Result
from rota.model.rollout import JobFormer, JobRollout
from rota.model.room import Room
from rota.model.serve import Group
from rota.model.shape import Line
from rota.model.task import TaskBlock

# Plain numbers: enum members are slow to look up, and these are needed at every change.
_PENDING, _STOPPING = int(Phase.PENDING), int(Phase.STOPPING)
_REFUSED, _ROOM = int(AttemptState.REFUSED), int(Hold.ROOM)
_RAN = (int(AttemptState.SUCCEEDED), int(AttemptState.FAILED))
_SYSTEM, _CANCELING = Kind.SYSTEM, JobState.CANCELING


class Unapplied(Exception):
    """A record could not be applied: what it is part of is half-written, and the mirror is not to be used."""

    def __init__(self, key: Key, error: Exception) -> None:
        super().__init__(f"{key} could not be applied: {error!r}")
        self.subject = subject_of(key)
        self.error = error


class Mirror(Standing):
    def __init__(self, only_granted: frozenset[str] = frozenset()) -> None:
        """`only_granted`: keys of labels that count only where they were granted."""
        super().__init__()
        self.only_granted = only_granted
        self.jobs: dict[JobId, JobEntry] = {}
        self.nodes: dict[NodeId, NodeEntry] = {}
        self.room = Room()
        self.accounts = Accounts()
        self.neighbours = Neighbours()
        self._sums = Sums(self.room, self.accounts, self.neighbours)
        self.leased: Mapping[JobId, None] = self._sums.leased
        self.leased_on: Mapping[NodeId, Mapping[JobId, None]] = self._sums.leased_on
        self.presence = Presence()
        self._followers = Followers()
        self.systems: dict[JobId, None] = {}
        self.moving: dict[JobId, None] = {}  # jobs of which tasks are to run on other nodes, and do not yet
        self.unassigned: dict[JobId, None] = {}  # that have no cluster yet
        self._assigned = Assigned()
        self.jobs_by_cluster: Mapping[str, Mapping[Group, Mapping[JobId, None]]] = self._assigned.jobs
        self.aside: frozenset[JobId] = frozenset()  # jobs on disk that could not be loaded
        self.unfinished = 0
        self.now_ms = 0
        self.read_at_ms = 0
        self.is_short = False  # of disk space, as far as its store says
        # Nodes whose assignment may have changed, or that were revoked; emptied by the driver.
        self.touched: dict[NodeId, None] = {}
        self.refusals = Refusals()
        self._lines = Lines(self.refusals)
        self._appliers: dict[type, Callable[[Any], None]] = self.keepers() | {
            JobSpec: self._set_job,
            JobWish: self._set_job_wish,
            JobCluster: self._set_job_cluster,
            JobStatus: self._set_job_status,
            JobVerdict: self._set_job_verdict,
            Unplaceable: self._set_unplaceable,
            JobAnswers: self._set_job_answers,
            Result: lambda record: self.jobs[record.job].report(record),
            JobFormer: self._set_job_former,
            JobRollout: self._set_job_rollout,
            JobAdoption: lambda record: self.jobs[record.id].adopt(record),
            TaskBlock: self._set_block,
            AttemptBlock: self._set_block,
            StatusBlock: self._set_block,
            PinBlock: self._set_pins,
            NodeSpec: self._set_node_spec,
            NodeWish: self._set_node_wish,
            NodeStatus: self._set_node_status,
            Namespace: self._set_namespace,
            Machine: self._set_machine,
        }

    # ---- reading

    def waiting(self) -> Iterable[tuple[Line, Sequence[Turn]]]:
        self._lines.wake(self.now_ms)
        return self._lines.all()

    def waiting_in(self, cluster: str) -> int:
        self._lines.wake(self.now_ms)
        return self._lines.jobs_in[cluster]

    def nodes_in(self, cluster: str) -> Mapping[NodeState, int]:
        return self._assigned.nodes(cluster)

    def line(self, line: Line) -> Sequence[Turn]:
        return self._lines.of(line)

    @property
    def line_changes(self) -> Log[LineChange]:
        self._lines.wake(self.now_ms)
        return self._lines.changed

    def next_resume_ms(self) -> int | None:
        self._lines.wake(self.now_ms)
        return self._lines.next_ms()

    def followers(self, job: JobId) -> Sequence[JobId]:
        return self._followers.of(job)

    def refused_by(self, errand: Line) -> Mapping[NodeId, tuple[int, str]]:
        """By nodes that are there: one may have been deleted since."""
        return {node: said for node, said in self.refusals.of(errand).items() if node in self.nodes}

    # ---- writing

    def load(self, records: Iterable[Record]) -> None:
        self.count_as_read()
        self.take_in(records)
        self.past.settle(self.jobs)

    def count_as_read(self) -> None:
        """Just now: who was silent before was silent to somebody else."""
        self.read_at_ms = self.now_ms
        self.presence = Presence(self.now_ms)
        self.hear_all()

    def take_in(self, records: Iterable[Record]) -> None:
        """Each block is looked at when all of its three records are there. Raises Unapplied."""
        given = list(records)
        blocks: dict[tuple[JobId, int], TaskBlock | AttemptBlock | StatusBlock] = {}
        at: Record | None = None
        try:
            for at in sorted(given, key=load_order):
                match at:
                    case TaskBlock() | AttemptBlock() | StatusBlock():
                        self.jobs[at.job].keep(at)
                        blocks[at.job, at.block] = at
                    case _:
                        self.apply(at)
            for at in blocks.values():
                self._refresh(self.jobs[at.job], at.block)
        except Exception as error:
            raise Unapplied((at or _unsorted(given)).key, error) from error

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
                self.room.grown += head == "namespace"
                self.drop(key)

    # ---- parking: what our own code failed on

    def hold_back(self, job: JobId) -> None:
        """Keep a job out of the line of those that wait to be placed, until it is let back."""
        entry = self.jobs.get(job)
        if entry is not None:
            entry.is_parked = True
            self._note_moving(entry)
            self._lines.put(entry, self.now_ms)

    def let_back(self, job: JobId) -> None:
        self.jobs[job].is_parked = False
        self._note_moving(self.jobs[job])
        self._lines.put(self.jobs[job], self.now_ms)

    # ---- observing: what is never stored

    def hear(self, node: NodeId) -> None:
        self._node(node).heard_at_ms = self.now_ms

    def hear_all(self) -> None:
        for entry in self.nodes.values():
            entry.heard_at_ms = self.now_ms

    def connect(self, node: NodeId, link: Link) -> None:
        entry = self._node(node)
        entry.link = link
        if link is Link.UP:
            entry.parting = entry.left_at = None
        self._refit(entry)

    def measure(self, node: NodeId, load: Load, settled: Mapping[str, int] | None = None) -> None:
        """`settled` is what was reserved there when the node measured this; None: what is reserved now."""
        entry = self._node(node)
        capacity = entry.status.capacity if entry.status else {}
        free = {"memory": load.memory_free, "disk": load.disk_free}
        self.room.set_measured(
            self.room.slot[node],
            {resource: amount for resource, amount in free.items() if amount is not None},
            load.cpu_milli / max(1, capacity.get("cpu", 1)),
            settled,
        )
        entry.measured_at_ms = self.now_ms
        entry.load = load  # last: a load whose numbers do not fit must not be there to be inherited

    def settled_on(self, node: NodeId) -> Mapping[str, int]:
        """What was reserved on a node when it measured its load."""
        return self.room.settled_at(self.room.slot[node])

    def resume(self, before: "Mirror") -> None:
        """Take over what was observed, after a mirror that was half-written was read again.

        Unlike after a failed commit, nodes could be heard all the time: their silence counts on.
        """
        self.inherit(before)
        self.read_at_ms = before.read_at_ms
        self.refusals = before.refusals
        for node, entry in before.nodes.items():
            if node in self.nodes:
                self.nodes[node].heard_at_ms = entry.heard_at_ms
        for name, job in before.jobs.items():
            if name in self.jobs:
                self.jobs[name].run_us = job.run_us

    def inherit(self, before: "Mirror") -> None:
        """Take over what was observed, after everything was read again.

        But not the silence: who could not write could not greet anybody, so all count as heard just now.
        """
        self.presence = before.presence
        self.is_short = before.is_short
        for node, entry in before.nodes.items():
            if node in self.nodes:
                self.connect(node, entry.link)
                self.nodes[node].paced(entry.report_ms)
                self.nodes[node].refuse(entry.refused)
                if entry.load is not None:
                    self.measure(node, entry.load, before.settled_on(node))
                    self.nodes[node].measured_at_ms = entry.measured_at_ms

    # ---- inside: one setter per kind of record

    def _set_job(self, record: JobSpec) -> None:
        job = self.jobs.get(record.id)
        if job is not None:
            self._revise_job(job, record)
            return
        job = JobEntry(begun(record))
        self._list_job(job)
        self.unassigned[record.id] = None
        self._assigned.put(job)
        self.unfinished += 1
        self._keep(job, kept_of(record))
        self._followers.come(record)
        self._sums.begin(record)

    def _list_job(self, job: JobEntry) -> None:
        """Jobs are in the order of their numbers: an adopted one may come after jobs with higher numbers."""
        number = int(job.spec.id)
        higher = list(takewhile(lambda other: int(other) > number, reversed(self.jobs)))
        self.jobs[job.spec.id] = job
        for other in reversed(higher):
            self.jobs[other] = self.jobs.pop(other)

    def _revise_job(self, job: JobEntry, record: JobSpec) -> None:
        """An update: what was counted by the old spec is counted by the new one."""
        self._lines.take_out(job)
        for block, attempt in job.attempts.items():
            self._shift_holds(job, attempt, job.held(block), bytes(len(job.held(block))))
        self._sums.end(job.spec)
        job.revise(record)
        has_ended = job.status is not None and job.status.ended
        self._keep(job, of_ended(kept_of(record)) if has_ended else kept_of(record))
        self._assigned.put(job)
        self._sums.begin(record)
        for block, attempt in job.attempts.items():
            self._shift_holds(job, attempt, bytes(len(job.held(block))), job.held(block))
            self._touch_block(job, block)
        self._lines.put(job, self.now_ms)

    def _set_job_wish(self, record: JobWish) -> None:
        job = self.jobs[record.id]
        before, job.wish = job.wish, record
        job.note_moves(record.moves)
        self._note_moving(job)
        for block in touched_by(before, record, job.attempts):
            self._touch_block(job, block)
        self._lines.put(job, self.now_ms)

    def _set_job_cluster(self, record: JobCluster) -> None:
        """Its tasks may run on nodes of that cluster only: it waits in another line."""
        job = self.jobs[record.id]
        job.cluster = record
        self.unassigned.pop(record.id, None)
        if job.status is None or job.status.ended:
            job.spec = at_home(job.spec, record.cluster)
        elif job.spec.home != record.cluster:
            self._revise_job(job, job.spec)
        self._assigned.put(job)

    def _set_job_verdict(self, record: JobVerdict) -> None:
        self.jobs[record.id].verdict = record

    def _set_unplaceable(self, record: Unplaceable) -> None:
        self.jobs[record.id].unplaceable = record

    def _set_job_answers(self, record: JobAnswers) -> None:
        self.jobs[record.id].answers = record

    def _set_job_former(self, record: JobFormer) -> None:
        self.jobs[record.id].former = record

    def _set_job_rollout(self, record: JobRollout) -> None:
        self.jobs[record.id].rollout = record

    def _set_block(self, record: TaskBlock | AttemptBlock | StatusBlock) -> None:
        job = self.jobs[record.job]
        written = job.differing(record)
        if isinstance(record, StatusBlock):
            self._learn(job, record, written)
        job.keep(record)
        self._refresh(job, record.block, written)
        if isinstance(record, TaskBlock) and record.renew:
            self._touch_block(job, record.block)

    def _set_pins(self, record: PinBlock) -> None:
        job = self.jobs[record.job]
        job.pin(record)
        self._lines.put(job, self.now_ms)
        self._lines.note_better(job)

    def _note_system(self, record: JobStatus) -> None:
        if record.state is JobState.ACTIVE:
            self.systems[record.id] = None
        else:
            self.systems.pop(record.id, None)

    def _note_moving(self, job: JobEntry) -> None:
        """Parked and ended jobs are not offered to the scheduler."""
        ended = job.status is not None and job.status.ended
        if job.moving and not job.is_parked and not ended:
            self.moving[job.spec.id] = None
        else:
            self.moving.pop(job.spec.id, None)

    def _set_node_spec(self, record: NodeSpec) -> None:
        self._node(record.id).spec = record
        self._relabel(self.nodes[record.id])
        self._refit(self.nodes[record.id])

    def _set_node_wish(self, record: NodeWish) -> None:
        self._node(record.id).wish = record
        self._relabel(self.nodes[record.id])
        self._refit(self.nodes[record.id])
        if record.revoked:
            self.touched[record.id] = None  # its connections end

    def _set_namespace(self, record: Namespace) -> None:
        self.namespaces[record.name] = record
        self.room.grown += 1  # a larger quota is room too

    def _set_machine(self, record: Machine) -> None:
        self.machines[record.name] = record
        if record.node in self.nodes:
            self.nodes[record.node].retires = record.goes
            self._refit(self.nodes[record.node])

    def _refresh(self, job: JobEntry, block: int, written: list[int] | None = None) -> None:
        """Bring phases, tally, line, holds and room in step with the three records of a block.

        `written` are the positions at which one of them changed; None: maybe all.
        """
        size = job.spec.block_size(block)
        attempt = job.attempts.get(block)
        known = block in job.holds  # phases are there also of what is beyond the wanted, without a record
        before = Cells(job.phases.get(block) or bytes(size), job.holds.get(block) or bytes(size))
        records = job.tasks.get(block), attempt, job.statuses.get(block)
        if known and written is not None and len(written) <= FEW:
            now = before.changed(written, *records)
        else:
            now = cells(size, *records)
        now = job.bounded(block, now)
        changed = changes(before.phase, now.phase)
        job.tally.shift(before.phase, now.phase, changed)
        if attempt is not None:
            job.place_again(attempt, changed if known else list(range(size)), now.phase)
            self._shift_holds(job, attempt, before.hold, now.hold)
        elif changed:
            job.has_gaps = True
        job.phases[block], job.holds[block] = now.phase, now.hold
        if job.moving:
            job.note_moves(job.moving)
            self._note_moving(job)
        if _STOPPING in now.phase:
            self._touch_block(job, block)
        self._lines.put(job, self.now_ms)
        # Each task of a system job waits for its own node: one that is tried in vain says nothing of others.
        if job.spec.kind is _SYSTEM and any(now.phase[position] == _PENDING for position in changed):
            self._lines.note_better(job)

    def _shift_holds(self, job: JobEntry, attempt: AttemptBlock, before: bytes, now: bytes) -> None:
        """Attempts took, kept or gave back a place or room on their nodes."""
        first = attempt.block * BLOCK_TASKS
        number, place = ints(attempt, "number"), ints(attempt, "node")
        moves: dict[NodeId, Move] = {}
        for position in changes(before, now):
            node = attempt.nodes[place[position]]
            move = moves.get(node)
            if move is None:
                move = moves[node] = Move()
            move.shift(before[position], now[position])
            name = (job.spec.id, first + position)
            if now[position]:
                self._node(node).assigned[name] = number[position]
            else:
                self._node(node).assigned.pop(name, None)
            if now[position] >= _ROOM > before[position]:
                self._take_devices(job, first + position, node, attempt.gpus.get(position, 0))
            elif before[position] >= _ROOM > now[position]:
                self._return_devices(job, first + position)
        for node, move in moves.items():
            self._sums.move(job, node, move)
            self.touched[node] = None

    def _take_devices(self, job: JobEntry, index: int, node: NodeId, devices: int) -> None:
        """Reserve an attempt's GPUs, and remember what was reserved: by its end the spec may be another.

        An attempt of an older spec may have GPUs although the spec no longer asks for any. Their share is
        not known then, so they count as wholly taken until that attempt has ended.
        """
        if devices:
            share = job.spec.needs.get(GPU) or WHOLE_GPU
            slot = self.room.slot[node]
            job.devices[index] = Devices(slot, share, devices)
            self.room.hold_devices(slot, share, devices, 1)

    def _return_devices(self, job: JobEntry, index: int) -> None:
        held = job.devices.pop(index, None)
        if held is not None:
            self.room.hold_devices(held.slot, held.share, held.devices, -1)

    def _touch_block(self, job: JobEntry, block: int) -> None:
        attempt = job.attempts.get(block)
        if attempt is not None:
            self.touched |= {node: None for node in attempt.nodes if node in self.nodes}

    def _learn(self, job: JobEntry, new: StatusBlock, written: list[int] | None) -> None:
        """Run times of what just ended, and refusals."""
        changed = range(len(new.state)) if written is None else written
        ran_us = ints(new, "ran_us")
        ran = [ran_us[at] for at in changed if new.state[at] in _RAN]
        if ran:
            mean_us = sum(ran) / len(ran)
            was_short = job.is_short
            job.run_us = mean_us if job.run_us is None else 0.7 * job.run_us + 0.3 * mean_us
            if job.is_short and not was_short:
                self._lines.note_better(job)
        for at in changed:
            if new.state[at] == _REFUSED:
                attempt = job.attempts[new.block]
                node = attempt.nodes[ints(attempt, "node")[at]]
                self.refusals.note(job.spec.errand, node, new.reasons.get(at, "refused"), self.now_ms)
                self._lines.refuse(job.spec.errand)

    def _set_job_status(self, record: JobStatus) -> None:
        job = self.jobs[record.id]
        before, ended = job.status is not None and job.status.ended, record.ended
        job.status = record
        self.unfinished -= int(ended) - int(before)
        if ended != before:
            self._keep(job, of_ended(job.kept) if ended else kept_of(job.spec))
        self._followers.stand(job.spec, record.state)
        if job.spec.kind is _SYSTEM:
            self._note_system(record)
        if ended and not before:
            self._assigned.take_out(job)
            self._sums.end(job.spec)
            self.past.end(job.spec, record)
        self._note_moving(job)
        if record.state is _CANCELING:
            for block in job.attempts:
                self._touch_block(job, block)
        self._lines.put(job, self.now_ms)

    def _node(self, node: NodeId) -> NodeEntry:
        entry = self.nodes.get(node)
        if entry is None:
            entry = self.nodes[node] = NodeEntry(node)
            entry.heard_at_ms = self.now_ms
            self.room.add(node)
            self.neighbours.widen(self.room.width)
        return entry

    def _set_node_status(self, record: NodeStatus) -> None:
        entry = self._node(record.id)
        before = entry.status
        entry.status = record
        slot = self.room.slot[record.id]
        if before is None or before.capacity != record.capacity:
            self.room.set_capacity(slot, record.capacity)
        if before is None or before.news(record):
            self.refusals.forget(record.id)
            self.room.renew(slot)
        if before is None or before.labels != record.labels:
            self._relabel(entry)
        self._refit(entry)

    def _relabel(self, entry: NodeEntry) -> None:
        """Bring the labels and taints that the scheduler sees in step with the three records of a node."""
        slot = self.room.slot[entry.id]
        declared = entry.status.labels if entry.status else {}
        granted = {**entry.spec.labels, "node": entry.spec.name, "cluster": entry.spec.cluster}
        taints = entry.wish.taints if entry.wish else ()
        self.room.set_labels(slot, labels.counted(declared, granted, self.only_granted), taints)

    def _refit(self, entry: NodeEntry) -> None:
        slot = self.room.slot[entry.id]
        self.room.set_open(slot, entry.open)
        self.room.expect(slot, entry.expected)
        self._assigned.count(entry)

    def _keep(self, job: JobEntry, kept: Kept) -> None:
        """A job counts for this much in the account of its namespace, instead of what it did before."""
        self.accounts.keep(job.spec.namespace, job.kept, -1)
        job.kept = kept
        self.accounts.keep(job.spec.namespace, kept)

    def _forget_job(self, job_id: JobId) -> None:
        job = self.jobs.pop(job_id, None)
        if job is not None:
            self._keep(job, Kept())
            self.past.forget(job_id)
            self._lines.take_out(job)
            self._assigned.take_out(job)
            job.resumes_ms = None
        self.systems.pop(job_id, None)
        self.moving.pop(job_id, None)
        self.unassigned.pop(job_id, None)
        if job is not None and not (job.status is not None and job.status.ended):
            self.unfinished -= 1
            self._followers.go(job.spec)
            self._sums.end(job.spec)

    def _forget_node(self, node: NodeId) -> None:
        entry = self.nodes.pop(node, None)
        self.touched.pop(node, None)  # nobody is there to be told
        if entry is not None:
            self.room.remove(node)
            self._assigned.discount(entry)


def _unsorted(records: list[Record]) -> Record:
    """The first whose place in the order of loading cannot be told."""
    for record in records:
        try:
            load_order(record)
        except Exception:
            return record
    raise AssertionError("each record has a place in the order of loading")
